"""torchvision's models, also beside a torch for which torchvision's own operators do not load.

torchvision's wheel on PyPI is built for CUDA; beside a CPU build of torch its library of operators stays unloaded, and
the import then fails where it describes them to torch. Declared by name and signature alone they let the import pass.
Whoever calls one, as some detectors do, gets torch's error that it has no implementation.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import torch
from torch import nn

_SIGNATURES = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
    "roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) "
    "-> (Tensor, Tensor)",
    "ps_roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio) -> (Tensor, Tensor)",
    "ps_roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) "
    "-> (Tensor, Tensor)",
    "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, "
    "SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, "
    "SymInt offset_groups, bool use_mask) -> Tensor",
    "_roi_align_backward(Tensor grad) -> Tensor",
    "_roi_pool_backward(Tensor grad) -> Tensor",
    "_ps_roi_align_backward(Tensor grad) -> Tensor",
    "_ps_roi_pool_backward(Tensor grad) -> Tensor",
    "_deform_conv2d_backward(Tensor grad) -> Tensor",
)
# Declarations last as long as the object that made them.
_declared: list[torch.library.Library] = []

CLASSIFIERS = [
    "alexnet", "vgg11", "vgg13", "vgg16", "vgg19", "vgg11_bn", "vgg13_bn", "vgg16_bn", "vgg19_bn", "resnet18",
    "resnet34", "resnet50", "resnet101", "resnet152", "resnext50_32x4d", "resnext101_32x8d", "wide_resnet50_2",
    "wide_resnet101_2", "densenet121", "densenet161", "densenet169", "densenet201", "efficientnet_b0",
    "efficientnet_b1", "efficientnet_b2", "efficientnet_b3", "efficientnet_b4", "efficientnet_b5", "efficientnet_b6",
    "efficientnet_b7", "efficientnet_v2_s", "efficientnet_v2_m", "efficientnet_v2_l", "regnet_x_400mf",
    "regnet_x_1_6gf", "regnet_x_3_2gf", "regnet_x_8gf", "regnet_y_400mf", "regnet_y_1_6gf", "regnet_y_3_2gf",
    "regnet_y_8gf", "convnext_tiny", "convnext_small", "convnext_base", "convnext_large", "vit_b_16", "vit_b_32",
    "vit_l_16", "vit_l_32", "vit_h_14", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "mnasnet0_5",
    "mnasnet0_75", "mnasnet1_0", "mnasnet1_3", "squeezenet1_0", "squeezenet1_1", "inception_v3", "googlenet",
    "swin_t", "swin_s", "swin_v2_t", "maxvit_t", "shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "shufflenet_v2_x1_5",
    "shufflenet_v2_x2_0",
]  # fmt: skip
SEGMENTERS = [
    "deeplabv3_mobilenet_v3_large", "deeplabv3_resnet50", "deeplabv3_resnet101", "fcn_resnet50", "fcn_resnet101",
    "lraspp_mobilenet_v3_large",
]  # fmt: skip
DETECTORS = [
    "fasterrcnn_mobilenet_v3_large_320_fpn", "fasterrcnn_resnet50_fpn", "fcos_resnet50_fpn", "maskrcnn_resnet50_fpn",
    "retinanet_resnet50_fpn", "ssd300_vgg16", "ssdlite320_mobilenet_v3_large",
]  # fmt: skip
MODELS = [*CLASSIFIERS, *SEGMENTERS, *DETECTORS, "raft_small"]
# The smallest images at which these still work; all others take 64 pixels.
SIZES = {"alexnet": 96, "inception_v3": 299, "maxvit_t": 224} | dict.fromkeys(
    ("vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14"), 224
)
# Of 32 equal layers: the copies of all of them in float64 do not fit into the memory of an ordinary machine.
LAYERS_OF_VIT_H_14 = 4
PARTLY_TRIED = {"vit_h_14": f"{LAYERS_OF_VIT_H_14} of 32 layers"}


def vision_models() -> Any:
    """The module `torchvision.models`.

    Raises:
        ImportError: torchvision is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its library of operators or of image formats did not load
        try:
            return importlib.import_module("torchvision.models")
        except RuntimeError as error:
            if "torchvision::" not in str(error):
                raise
        _declare_operators()
        return importlib.import_module("torchvision.models")


def _declare_operators() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for signature in _SIGNATURES:
        library.define(signature)
    _declared.append(library)


def build(name: str) -> tuple[nn.Module, Any]:
    """The model with fresh weights, and an example."""
    models = vision_models()
    if name == "raft_small":
        return models.optical_flow.raft_small(weights=None), (torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128))
    size = SIZES.get(name, 64)
    if name == "vit_h_14":
        model = models.VisionTransformer(
            image_size=size, patch_size=14, num_layers=LAYERS_OF_VIT_H_14, num_heads=16, hidden_dim=1280, mlp_dim=5120
        )
    elif name in SEGMENTERS:
        model = getattr(models.segmentation, name)(weights=None, weights_backbone=None)
    elif name in DETECTORS:
        # Whatever it finds counts: an untrained detector is sure of nothing.
        threshold = {"box_score_thresh": 0.0} if "rcnn" in name else {"score_thresh": 0.0}
        model = getattr(models.detection, name)(weights=None, weights_backbone=None, **threshold)
        return model, ([torch.rand(3, 128, 128)],)
    else:
        options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        model = getattr(models, name)(weights=None, **options)
    return model, torch.randn(2, 3, size, size)
