"""Representatives of the torchvision zoo: random weights, orders and offsets in float64, exact to 1e-9.

One or two per way of building networks, narrow or shallow where the class allows it, on small images. `make zoo` tries
them all as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn

import headgate as hg
from benchmarks.vision import vision_models
from tests.surgery.exactness import LIMIT, error, move_offsets_, outputs, parameters, randomise_

if find_spec("torchvision") is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
models = vision_models()


def with_head(model: nn.Module, channels: int) -> nn.Module:
    """In place of the classifier, most of whose parameters read one layer, a narrow one."""
    model.avgpool = nn.AdaptiveAvgPool2d(2)
    model.classifier = nn.Sequential(nn.Linear(4 * channels, 64), nn.ReLU(inplace=True), nn.Linear(64, 10))
    return model


def residual(block: type[nn.Module], **options: Any) -> nn.Module:
    """ResNet's own class, one block a stage."""
    return models.resnet.ResNet(block, [1, 2, 1, 1], num_classes=10, **options)


def dense() -> nn.Module:
    return models.DenseNet(8, (2, 3, 2), 16, num_classes=10)


def efficient() -> nn.Module:
    mobile = partial(models.efficientnet.MBConvConfig, width_mult=0.5, depth_mult=0.5)
    return models.EfficientNet(
        [mobile(1, 3, 1, 32, 16, 1), mobile(6, 3, 2, 16, 24, 2), mobile(6, 5, 2, 24, 40, 4)],
        dropout=0.2,
        num_classes=10,
    )


def convnext() -> nn.Module:
    setting = models.convnext.CNBlockConfig
    return models.ConvNeXt([setting(16, 32, 2), setting(32, None, 1)], layer_scale=1.0, num_classes=10)


def regular() -> nn.Module:
    sizes = models.regnet.BlockParams.from_init_params(depth=6, w_0=24, w_a=12.0, w_m=2.5, group_width=8, se_ratio=0.25)
    return models.RegNet(sizes, num_classes=10)


def vision_transformer() -> nn.Module:
    return models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64, num_classes=10
    )


def segmenter() -> nn.Module:
    return models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)


# How to build each, and its images' size.
ZOO: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "alexnet": (lambda: with_head(models.AlexNet(), 256), 64),
    "vgg": (lambda: with_head(models.VGG(models.vgg.make_layers([16, "M", 32], batch_norm=True)), 32), 16),
    "resnet": (lambda: residual(models.resnet.BasicBlock), 32),
    "resnext": (lambda: residual(models.resnet.Bottleneck, groups=8, width_per_group=4), 32),
    "densenet": (dense, 32),
    "mobilenet_v2": (lambda: models.mobilenet_v2(weights=None, width_mult=0.35, num_classes=10), 32),
    "mobilenet_v3": (lambda: models.mobilenet_v3_small(weights=None, width_mult=0.5, num_classes=10), 32),
    "shufflenet": (lambda: models.ShuffleNetV2([1, 2, 1], [8, 16, 32, 64, 64], num_classes=10), 32),
    "squeezenet": (lambda: models.squeezenet1_1(weights=None, num_classes=10), 32),
    "googlenet": (lambda: models.googlenet(weights=None, init_weights=False, num_classes=10), 64),
    "regnet": (regular, 32),
    "efficientnet": (efficient, 32),
    "convnext": (convnext, 32),
    "vision transformer": (vision_transformer, 32),
    "segmenter": (segmenter, 32),
}


@pytest.mark.parametrize("name", ZOO)
def test_it_compacts_exactly(name: str) -> None:
    build, size = ZOO[name]
    model = randomise_(build()).double()
    example = torch.randn(2, 3, size, size, dtype=torch.float64)
    untouched, before = outputs(model, example), parameters(model)
    hg.insert_gates_(model, example, order=f"random:{len(name)}", floor=1)
    move_offsets_(model, seed=len(name))
    small = hg.compact(model)
    gated = outputs(model, example)
    assert error(untouched, gated) > 1e-3, "the offsets changed nothing, so that nothing is shown"
    assert error(gated, outputs(small, example)) < LIMIT
    assert parameters(small) < before and type(small) is type(build())
