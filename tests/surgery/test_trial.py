"""What the trial sees, and what it must not be fooled by."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headgate as hg
from headgate.surgery import trial
from headgate.surgery.trial import difference, failure


class Empty(nn.Module):
    """Returns no rows, as a detector does that finds nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)[:0]


def test_outputs_are_compared_by_what_they_are():
    zeros, ones = torch.zeros(3), torch.ones(3)
    assert difference({"a": [ones, True]}, {"a": [ones, True]}, 0.0) is None
    assert "differ by 1.0e+00" in str(difference(ones, zeros, 1e-3))
    assert "differ by nan" in str(difference(ones, ones * math.nan, 1e-3))
    assert "shape (2,) instead of (3,)" in str(difference(ones, ones[:2], 1.0))
    assert "2 tensors instead of 1" in str(difference(ones, (ones, ones), 1.0))
    assert difference(ones > 0, ones > 0, 1e-3) is None
    assert "differ by inf" in str(difference(ones > 0, ones < 0, 1e-3))
    assert "differ by inf" in str(difference(torch.tensor([1]), torch.tensor([2]), 1e-3))


def test_a_model_that_returns_nothing_proves_nothing():
    model, example = Empty(), torch.randn(3, 4)
    assert hg.find_groups(model.layers, example).groups
    whole = hg.find_groups(model, example)
    assert not whole.groups
    assert "trial: even with nothing removed the model returns nothing on the example that could be compared" in str(
        whole
    )


class Counting(nn.Module):
    """Code that looks at the number of channels, which no rule can see."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.last(hidden / hidden.shape[1])


class InFloat32(nn.Sequential):
    """Code that insists on a dtype."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())


def test_a_failed_trial_names_the_module() -> None:
    with pytest.raises(hg.GateError, match=r"first: trial: outputs differ by .*; the first .* is last \(Linear\)"):
        hg.insert_gates_(Counting(), torch.randn(4, 6), floor=1)


def test_a_model_that_insists_on_float32_is_told_apart() -> None:
    model = InFloat32(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(
        hg.GateError, match="0: trial: even with nothing removed the model does not run in float64, where this is tried"
    ):
        hg.insert_gates_(model, torch.randn(4, 6), floor=1)
    by_hand = InFloat32(nn.Linear(6, 8), hg.Gate(8, offset=-2.0), nn.Linear(8, 3))
    with pytest.raises(hg.GateError, match="gate '1': 0: trial: the model does not run in float64"):
        hg.compact(by_hand, torch.randn(4, 6))


class Noisy(nn.Sequential):
    """Draws numbers in evaluation too."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.rand(())


def test_a_model_that_disagrees_with_itself_is_not_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [layer for _ in range(9) for layer in (nn.Linear(8, 8), nn.ReLU())]
    tried: list[int] = []

    def noted(*args: Any) -> str | None:
        tried.append(len(args))
        return failure(*args)

    monkeypatch.setattr(trial, "failure", noted)
    with pytest.raises(hg.GateError, match="0: trial: even with nothing removed outputs differ by "):
        hg.insert_gates_(Noisy(*layers), torch.randn(4, 8))
    assert len(tried) <= 3
