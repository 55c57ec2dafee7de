"""Sizes of the networks against the counts their papers' code gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headgate_lab.models.preresnet import PreResNet
from headgate_lab.models.vgg import VGG


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("depth", "classes", "expected"),
    [(20, 10, 219_482), (20, 100, 242_612), (56, 10, 590_426), (110, 100, 1_169_972), (164, 10, 1_703_258)],
)
def test_preresnet_has_the_published_size(depth: int, classes: int, expected: int):
    assert parameters(PreResNet(depth, classes)) == expected


@pytest.mark.parametrize(("classes", "expected"), [(10, 20_035_018), (100, 20_081_188)])
def test_vgg19_has_the_published_size(classes: int, expected: int):
    assert parameters(VGG(classes)) == expected


@pytest.mark.parametrize("size", [32, 64])
def test_any_image_size_works(size: int):
    images = torch.randn(2, 3, size, size)
    assert PreResNet(11)(images).shape == (2, 10)
    assert VGG(7, widths=(4, 0, 8, 0, 8, 0, 8, 0, 8))(images).shape == (2, 7)


@pytest.mark.parametrize("depth", [2, 18, 21])
def test_a_depth_that_is_not_9n_plus_2_is_refused(depth: int):
    with pytest.raises(ValueError, match="9n \\+ 2"):
        PreResNet(depth)
