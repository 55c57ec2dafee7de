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
