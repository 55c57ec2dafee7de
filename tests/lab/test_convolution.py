"""Convolutions between few channels: the kernels' arithmetic, and when they are used. `fake_triton` runs them here."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d
from torch.nn.utils import parametrize

from headgate_lab.models import convolution
from headgate_lab.models.convolution import FewChannels, convolved
from headgate_lab.models.kernel_images import are_for_kernels
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.models.resnet import resnet_cifar
from tests import fake_triton


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Everything goes through the kernels, in tiles so small that there are several; what did is returned."""
    for name, value in {"TALL": 16, "SHORT": 8, "LINES": 192}.items():
        monkeypatch.setattr(convolution, name, value)
    return fake_triton.used_by(convolution, "are_for_kernels", monkeypatch)


# Images, inputs, outputs, height, width.
SHAPES = {
    "whole tiles": (2, 16, 16, 8, 8),
    "channels that fill no tile": (3, 24, 8, 5, 7),
    "more outputs": (1, 8, 40, 6, 6),
    "as many channels as there may be": (2, 64, 64, 3, 4),
    "images of one row": (2, 8, 8, 1, 9),
    "fewer pixels than a tile has": (1, 8, 8, 2, 2),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_kernels_compute_what_torch_computes(shape: tuple[int, ...], layout: torch.memory_format, kernels: Any):
    images, inputs, outputs, height, width = shape
    torch.manual_seed(0)
    x = torch.randn(images, inputs, height, width).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(outputs, inputs, 3, 3).contiguous(memory_format=layout).requires_grad_()
    slopes = torch.randn(images, outputs, height, width)
    found = FewChannels.apply(x, weight)
    found.backward(slopes)
    wide, wide_weight = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    expected = conv2d(wide, wide_weight, padding=1)
    expected.backward(slopes.double())
    for mine, other in ((found, expected), (x.grad, wide.grad), (weight.grad, wide_weight.grad)):
        assert mine.shape == other.shape
        assert torch.allclose(mine.double(), other, rtol=1e-4, atol=1e-4)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_images_of_half_precision_and_weights_of_full(kernels: list[Tensor]):
    layer = nn.Conv2d(8, 16, 3, padding=1, bias=False)
    x = torch.randn(2, 8, 5, 5).to(torch.bfloat16, memory_format=torch.channels_last).requires_grad_()
    found = convolved(layer, x)
    found.sum().backward()
    assert found.dtype == x.grad.dtype == torch.bfloat16 and layer.weight.grad.dtype == torch.float32
    assert torch.allclose(found.float(), layer(x.float()), atol=0.05) and len(kernels) == 1


def test_what_is_not_asked_for_is_not_computed(kernels: list[Tensor]):
    layer, x = nn.Conv2d(8, 8, 3, padding=1, bias=False), torch.randn(1, 8, 4, 4)
    convolved(layer, x).sum().backward()
    assert x.grad is None and layer.weight.grad is not None
    layer.requires_grad_(False)
    x.requires_grad_()
    convolved(layer, x).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("build", [lambda: PreResNet(11), lambda: resnet_cifar(8)], ids=["preresnet", "resnet"])
def test_networks_learn_the_same(
    build: Callable[[], nn.Module], kernels: list[Tensor], monkeypatch: pytest.MonkeyPatch
):
    torch.manual_seed(0)  # of some networks a rounding decides about a ReLU, and gradients part
    network = build()
    plain = copy.deepcopy(network)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    network(x).square().sum().backward()
    assert kernels
    monkeypatch.setattr(convolution, "are_for_kernels", lambda x: False)
    plain(x).square().sum().backward()
    for name, value in plain.named_parameters():
        assert torch.allclose(network.get_parameter(name).grad, value.grad, rtol=1e-3, atol=1e-4), name


class Doubled(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Half(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight / 2


def with_hook() -> nn.Conv2d:
    layer = nn.Conv2d(8, 8, 3, padding=1, bias=False)
    layer.register_forward_hook(lambda module, inputs, output: output + 1)
    return layer


OTHERS = {
    "a bias": nn.Conv2d(8, 8, 3, padding=1),
    "a stride": nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False),
    "no border": nn.Conv2d(8, 8, 3, bias=False),
    "groups": nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False),
    "another border": nn.Conv2d(8, 8, 3, padding=1, bias=False, padding_mode="circular"),
    "one pixel": nn.Conv2d(8, 8, 1, bias=False),
    "holes": nn.Conv2d(8, 8, 3, padding=1, dilation=2, bias=False),
    "an odd width": nn.Conv2d(8, 12, 3, padding=1, bias=False),
    "many channels": nn.Conv2d(8, 72, 3, padding=1, bias=False),
    "a class of its own": Doubled(8, 8, 3, padding=1, bias=False),
    "a hook": with_hook(),
    "no convolution": nn.Identity(),
}


@pytest.mark.parametrize("layer", OTHERS.values(), ids=OTHERS)
def test_what_the_kernels_do_not_know_takes_the_plain_way(layer: nn.Module, kernels: list[Tensor]):
    x = torch.randn(2, 8, 6, 6)
    assert torch.equal(convolved(layer, x), layer(x))
    assert not kernels


def test_a_weight_may_be_computed(kernels: list[Tensor]):
    layer = nn.Conv2d(8, 8, 3, padding=1, bias=False)
    x = torch.randn(2, 8, 6, 6).contiguous(memory_format=torch.channels_last)
    parametrize.register_parametrization(layer, "weight", Half())
    assert torch.allclose(convolved(layer, x), layer(x), atol=1e-5)
    assert len(kernels) == 1


def test_without_a_gpu_nothing_is_fast():
    x = torch.randn(2, 8, 4, 4).to(torch.bfloat16, memory_format=torch.channels_last)
    assert not are_for_kernels(x)
