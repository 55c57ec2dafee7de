"""BatchNorm and ReLU in few passes: the kernels' arithmetic, and when they are used. `fake_triton` runs them here."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headgate as hg
from headgate_lab.models import norm
from headgate_lab.models.norm import norm_relu
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.models.resnet import resnet_cifar
from tests import fake_triton


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Everything goes through the kernels, in tiles so small that there are several; what did is returned."""
    for name, value in {"TILE": 32, "FEWEST": 4, "MOST": 8, "PROGRAMS": 6}.items():
        monkeypatch.setattr(norm, name, value)
    return fake_triton.used_by(norm, "is_fast_for", monkeypatch)


SHAPES = {
    "whole tiles": (2, 8, 4, 4),
    "channels that fill no tile": (3, 11, 3, 5),
    "few channels": (2, 3, 4, 4),
    "one channel": (2, 1, 3, 3),
    "one pixel each": (5, 6, 1, 1),
    "fewer rows than a tile has": (1, 16, 1, 3),
}


def norms(channels: int) -> tuple[nn.BatchNorm2d, nn.BatchNorm2d]:
    """Two that are the same, the second in double precision."""
    torch.manual_seed(0)
    ours = nn.BatchNorm2d(channels)
    nn.init.normal_(ours.weight)
    nn.init.normal_(ours.bias)
    return ours, copy.deepcopy(ours).double()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_kernels_compute_what_torch_computes(shape: tuple[int, ...], kernels: list[Tensor]):
    ours, plain = norms(shape[1])
    for _ in range(2):  # the second time the statistics run on
        # Far from zero for its spread: sums of plain squares would lose the variance.
        pixels, slopes = 3 * torch.randn(shape) + 50, torch.randn(shape)
        x, wide = pixels.to(memory_format=torch.channels_last).requires_grad_(), pixels.double().requires_grad_()
        found, expected = norm_relu(ours, x), plain(wide).relu()
        found.backward(slopes)
        expected.backward(slopes.double())
        assert torch.allclose(found.double(), expected, rtol=1e-4, atol=1e-4)
        assert x.grad is not None and wide.grad is not None
        assert x.grad.is_contiguous(memory_format=torch.channels_last)
        assert torch.allclose(x.grad.double(), wide.grad, rtol=1e-3, atol=1e-4)
    for name, value in ours.state_dict().items():
        assert torch.allclose(value.double(), plain.state_dict()[name].double(), rtol=1e-5)
    for mine, other in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine.grad.double(), other.grad, rtol=1e-3, atol=1e-3)
    assert len(kernels) == 2


def test_half_precision_comes_out_as_it_went_in(kernels: list[Tensor]):
    ours, plain = norms(5)
    x = torch.randn(2, 5, 4, 4).to(torch.bfloat16, memory_format=torch.channels_last)
    found = norm_relu(ours, x)
    assert found.dtype == torch.bfloat16 and len(kernels) == 1
    assert torch.allclose(found.double(), plain(x.double()).relu(), atol=0.02)


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
    monkeypatch.setattr(norm, "is_fast_for", lambda x: False)
    plain(x).square().sum().backward()
    for name, value in plain.named_parameters():
        assert torch.allclose(network.get_parameter(name).grad, value.grad, rtol=1e-3, atol=1e-4), name


def test_evaluation_takes_the_plain_way(kernels: list[Tensor]):
    ours, _ = norms(5)
    x, _ = torch.randn(2, 5, 4, 4), ours.eval()
    assert torch.equal(norm_relu(ours, x), ours(x).relu())
    assert not kernels


@pytest.mark.parametrize("given", [{"momentum": None}, {"track_running_stats": False}, {"affine": False}])
def test_what_the_kernels_do_not_know_takes_the_plain_way(given: dict[str, Any], kernels: list[Tensor]):
    x = torch.randn(2, 5, 4, 4)
    assert torch.equal(norm_relu(nn.BatchNorm2d(5, **given), x), nn.BatchNorm2d(5, **given)(x).relu())
    assert not kernels


def test_any_layer_may_have_come_in_its_place(kernels: list[Tensor]):
    x = torch.randn(2, 5, 4, 4)
    assert torch.equal(norm_relu(nn.Identity(), x), x.relu())
    assert not kernels


@pytest.fixture
def picking() -> nn.Module:
    """The first norm of a block that Network Slimming or ChipNet has cut: it reads every other channel."""
    whole = PreResNet(11)
    plan = hg.find_groups(whole, torch.randn(2, 3, 8, 8), readers=True)
    reader = next(one for one in plan.readers if one.entry[0] == "stage2.0.bn1.weight")
    small = hg.shrink(whole, plan, {reader.name: torch.arange(reader.size) % 2 == 0})
    return small.get_submodule("stage2.0.bn1")


def test_a_norm_that_picks_its_channels_picks_them(picking: nn.Module, kernels: list[Tensor]):
    assert isinstance(picking, nn.BatchNorm2d) and picking.num_features == 32
    x = torch.randn(2, 64, 4, 4).to(memory_format=torch.channels_last)
    assert torch.equal(norm_relu(picking.train(), x), picking(x).relu())
    assert not kernels


def test_without_a_gpu_nothing_is_fast():
    x = torch.randn(2, 5, 4, 4).to(torch.bfloat16, memory_format=torch.channels_last)
    assert not norm.is_fast_for(x)


def test_rows_are_shared_among_programs():
    how = norm.tiles(torch.empty(128, 64, 32, 32, device="meta"))
    assert how.grid == (2048, 1) and how.lines == norm.PROGRAMS
    assert norm.tiles(torch.empty(128, 512, 2, 2, device="meta")).lines == 8
    assert norm.tiles(torch.empty(128, 100, 32, 32, device="meta")).wide == norm.MOST
