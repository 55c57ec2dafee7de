"""An example that a model does not run on, or that its code writes into: told apart from what cannot be traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headgate as hg
from tests.surgery.exactness import LIMIT, error, outputs, randomise_


class Nested(nn.Module):
    """A gate placed by hand, deep inside."""

    def __init__(self, gate: hg.Gate) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), gate, nn.Conv2d(8, 6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def images(channels: int = 3) -> Tensor:
    return torch.randn(2, channels, 7, 7)


def plain() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 3))


def gated() -> nn.Module:
    model = plain()
    hg.insert_gates_(model, images(), floor=1)
    return model


USES: dict[str, Callable[[nn.Module, Any], Any]] = {
    "find_groups": hg.find_groups,
    "insert_gates_": hg.insert_gates_,
    "compact": hg.compact,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    ("gate", "words"),
    [
        (lambda: hg.Gate(7, offset=-2.0), "masks 7 units along dim 1, but got a tensor of shape (2, 8, 5, 5), which "
         "has 8 there; use n=8, or set the gate's dim"),
        (lambda: hg.Gate(8, dim=2, offset=-2.0), "has 5 there; use n=5, or set the gate's dim"),
        (lambda: hg.Gate(8, dim=4, offset=-2.0), "shape (2, 8, 5, 5), which has no dim 4; set the gate's dim"),
        (lambda: hg.Gate(1, dim=1), "which has 8 there; use n=8"),
    ],
)  # fmt: skip
def test_a_gate_that_does_not_fit_is_named(use: str, gate: Callable[[], hg.Gate], words: str) -> None:
    with pytest.raises(hg.ShapeError) as refusal:
        USES[use](Nested(gate()), images())
    assert str(refusal.value).startswith(f"{use}: gate 'body.2': Gate(")
    assert words in str(refusal.value)


WRONG: dict[str, tuple[Any, str]] = {
    "channels": (images(4), "(float32 (2, 4, 7, 7) on cpu): module '0': RuntimeError: "),
    "dtype": (images().double(), "(float64 (2, 3, 7, 7) on cpu): module '0': RuntimeError: "),
    "nothing": (None, "(NoneType): module '0': TypeError: "),
    "too many": ((images(), images()), "TypeError: "),
    "none": ((), "(no arguments): TypeError: "),
    "another name": ({"y": images()}, "unexpected keyword argument 'y'"),
}
MADE: dict[str, Callable[[], nn.Module]] = {
    "find_groups": plain,
    "insert_gates_": plain,
    "compact": gated,
    "cost": plain,
    "cost, timed": plain,
    "Budget": gated,
    "Budget, timed": gated,
    "export_onnx": plain,
}
ALL: dict[str, Callable[[nn.Module, Any], Any]] = {
    **USES,
    "cost": hg.cost,
    "cost, timed": lambda model, x: hg.cost(model, x, trace=False, latency=True),
    "Budget": lambda model, x: hg.Budget(model, x, macs=0.5, steps=1000),
    "Budget, timed": lambda model, x: hg.Budget(model, x, latency_ms=1e-3, steps=1000),
    "export_onnx": lambda model, x: hg.export_onnx(model, x, "never.onnx"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("use", ALL)
def test_a_model_that_does_not_run_on_its_example(use: str, wrong: str) -> None:
    example, words = WRONG[wrong]
    if wrong == "nothing" and MADE[use] is gated:
        pytest.skip("means the example of the insertion")
    model = MADE[use]()
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(hg.ArgumentError) as refusal:
        ALL[use](model, example)
    assert str(refusal.value).startswith(f"{use.partition(',')[0]}: Sequential ")
    assert words in str(refusal.value)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Writing(nn.Module):
    """Writes into what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(1.5).add_(1.0)
        return self.last(self.first(x).relu())


def test_a_model_that_writes_into_its_input_is_no_reason_to_differ() -> None:
    model, example = randomise_(Writing().double()), torch.randn(4, 6, dtype=torch.float64)
    before = example.clone()
    (gate,) = hg.insert_gates_(model, example, floor=1, order="random:2").values()
    with torch.no_grad():
        gate.offset.fill_(-2.3)
    small = hg.compact(model, example)
    assert torch.equal(example, before)
    assert small.first.out_features == 5
    assert error(outputs(model, example), outputs(small, example)) < LIMIT
