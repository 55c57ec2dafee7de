"""What the trial sees, and what it must not be fooled by."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import headgate as hg
from headgate.channels.trace import Example
from headgate.surgery.keep import chosen
from headgate.surgery.trial import difference, failure, randomised


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
    plan = hg.find_groups(model.layers, example)
    whole = hg.find_groups(model, example)
    assert plan.groups and whole.groups
    problem = failure(randomised(model, seed=0), Example.of(example), whole, chosen(whole, {}))
    assert problem is not None and "nothing on the example that could be compared" in problem
