"""Masks on large weights in one pass: the kernels' arithmetic, and when they are used. `fake_triton` runs them here."""

from __future__ import annotations

import contextlib
import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import headgate as hg
from headgate import fused, product
from headgate.fused import Layout, layout
from tests import fake_triton
from tests.surgery.gated_nets import NETS, apart, expected_gradients, gradients, inserted, pair, square


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every weight that the kernels can take goes through them, in tiles so small that there are several."""
    imitated = fake_triton.kernels("headgate.kernels", monkeypatch)
    monkeypatch.setattr(fused, "_kernels", lambda: imitated)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(fused, "is_fast_for", lambda weight: weight.dtype == torch.float32)
    monkeypatch.setattr(fused, "TILE_ROWS", 4)
    monkeypatch.setattr(fused, "TILE_COLUMNS", 8)


CASES = {
    "a matrix, read": ((9, 11), (1,), False),
    "a matrix, written": ((9, 11), (0,), False),
    "a matrix, both": ((8, 16), (0, 1), False),
    "the other way round": ((5, 7), (1, 0), False),
    "one row": ((1, 20), (1,), False),
    "one entry in the mask": ((9, 1, 2), (1,), False),
    "a convolution": ((6, 5, 3, 3), (1,), False),
    "a convolution, both": ((6, 5, 3, 3), (1, 0), False),
    "its last axis": ((6, 5, 3), (2,), False),
    "channels last": ((6, 5, 3, 3), (1,), True),
    "channels last, written": ((6, 5, 3, 3), (0,), True),
    "channels last, both": ((6, 5, 3, 2), (0, 1), True),
}


def one_weight(case: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, product.Vectors]:
    shape, axes, last = CASES[case]
    torch.manual_seed(0)
    weight, gradient = torch.randn(shape), torch.randn(shape).to(dtype)
    if last:
        weight, gradient = (each.to(memory_format=torch.channels_last) for each in (weight, gradient))
    return weight, gradient, [(axis, torch.rand(1, shape[axis])) for axis in axes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("kernels")
def test_the_kernels_compute_what_plain_operations_compute(case: str, dtype: torch.dtype):
    weight, gradient, vectors = one_weight(case, dtype)
    how = fused.plan([weight], vectors)
    assert how is not None and how.tiles[0] * how.tiles[1] > 1
    lone = [vector[0] for _, vector in vectors]
    masked = fused.multiply(weight, lone, how, dtype)
    assert masked.dtype == dtype and masked.stride() == weight.stride()
    plain = product.product(weight.unsqueeze(0), vectors)[0]
    assert torch.allclose(masked.float(), plain, rtol=1e-6 if dtype == torch.float32 else 0.01)
    passed, sums = fused.go_back(gradient, weight, lone, how)
    assert passed.dtype == torch.float32 and passed.stride() == weight.stride()
    wide = [(axis, vector.double()) for axis, vector in vectors]
    expected = product.product(gradient.double().unsqueeze(0), wide)[0]
    assert torch.allclose(passed.double(), expected, rtol=1e-6)
    by_product = product._vector_gradients(gradient.double().unsqueeze(0), [weight.double()], wide)
    for found, by_definition in zip(sums, by_product, strict=True):
        assert torch.allclose(found.double(), by_definition[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.usefixtures("kernels")
def test_whole_networks(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(product, "STACKED_BELOW", 0)
    dense, gated, x = pair(name, dtype=torch.float32)
    used: list[str] = []
    launch = fused._launch

    def watched(name: str, *args: Any) -> None:
        used.append(name)
        launch(name, *args)

    monkeypatch.setattr(fused, "_launch", watched)
    square(gated(x)).backward()
    assert {"multiply", "go_back"} <= set(used)
    assert apart(gradients(gated), expected_gradients(dense, gated, square, x)) < 1e-4


@pytest.mark.usefixtures("kernels")
def test_gradients_of_gradients_take_the_plain_way(monkeypatch: pytest.MonkeyPatch):
    _, gated, x = pair("residual", dtype=torch.float32)
    loss = square(gated(x))
    monkeypatch.setattr(fused, "go_back", lambda *_: pytest.fail("not differentiable"))
    (slope,) = torch.autograd.grad(loss, inserted(gated).offset, create_graph=True)
    assert slope.requires_grad and slope.any()


def test_how_weights_lie_in_memory():
    image = torch.zeros(6, 5, 3, 2)
    last = image.to(memory_format=torch.channels_last)
    assert layout(image, (1,)) == Layout(6, 30, 5, 6, (1,))
    assert layout(image, (2, 0)) == Layout(6, 30, 3, 2, (2, 0))
    assert layout(last, (0, 1)) == Layout(6, 30, 5, 1, (0, 1))
    assert layout(torch.zeros(70, 130), (0,)) == Layout(70, 130, 1, 1, (0,))
    assert layout(torch.zeros(70, 130), (0,)).tiles == (2, 3)


def test_what_the_kernels_cannot_take():
    image = torch.zeros(6, 5, 3, 2)
    assert layout(torch.zeros(4), (0,)) is None
    assert layout(torch.zeros(0, 4), (1,)) is None
    assert layout(image, (1, 2)) is None
    assert layout(image.to(memory_format=torch.channels_last), (2,)) is None
    assert layout(image.transpose(0, 1), (1,)) is None
    assert layout(torch.zeros(8, 6)[:, ::2], (0,)) is None


def test_stacks_and_weights_on_a_cpu_take_the_plain_way():
    weight = torch.zeros(4, 4)
    assert not fused.is_fast_for(weight)
    assert fused.plan([weight], [(1, torch.ones(1, 4))]) is None
    assert fused.plan([weight, weight], [(1, torch.ones(2, 4))]) is None


class OnGpu(nn.Parameter):
    """Says that it lies on a GPU."""

    is_cuda = True


def test_whoever_watches_operations_sees_plain_ones(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fused, "_works_on", lambda device: True)
    monkeypatch.setattr(fused, "_ORDINARY", (OnGpu,))
    weight = OnGpu(torch.zeros(2, 2))
    assert fused.is_fast_for(weight)
    assert not fused.is_fast_for(nn.Parameter(torch.zeros(2, 2)))
    with FlopCounterMode(display=False):
        assert not fused.is_fast_for(weight)


@pytest.fixture
def nothing_tried(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """No device has been tried yet; the flag says whether a CUDA graph is being captured."""
    capturing = [False]
    monkeypatch.setattr(fused, "_works", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    return capturing


def test_a_triton_that_does_not_work_is_said_once(nothing_tried: list[bool], monkeypatch: pytest.MonkeyPatch):
    def fails(*args: object) -> None:
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(fused, "_launch", fails)
    with pytest.warns(hg.HeadgateWarning, match="Triton does not work on cpu.*no C compiler"):
        assert not fused._works_on(torch.device("cpu"))
    assert not fused._works_on(torch.device("cpu"))


@pytest.mark.usefixtures("kernels")
def test_nothing_is_tried_while_a_graph_is_captured(nothing_tried: list[bool], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    for capturing, works in ((True, False), (False, True), (True, True)):
        nothing_tried[0] = capturing
        assert fused._works_on(torch.device("cpu")) == works


def test_without_triton_nothing_is_said(nothing_tried: list[bool], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not fused._works_on(torch.device("cpu"))
