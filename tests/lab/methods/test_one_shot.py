"""One cut by magnitude: the largest stay, the same share of every layer, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headgate_lab.methods.one_shot import OneShot


def network() -> nn.Sequential:
    """Hidden layers of 4 and 8 units; of each those of the largest weights are the even ones."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight[::2].mul_(100.0)
        for layer in (model[2], model[4]):
            layer.weight[:, ::2].mul_(100.0)
    return model


def test_the_units_of_the_largest_weights_stay() -> None:
    model = network()
    # Of 2 and 4 units: 3·2 + 2, 2·4 + 4, 4·2 + 2.
    small = OneShot(30).attach(model, torch.randn(5, 3))
    assert torch.equal(small[0].weight, model[0].weight[::2])  # type: ignore[index]
    assert torch.equal(small[2].weight, model[2].weight[::2, ::2])  # type: ignore[index]
    assert torch.equal(small[4].weight, model[4].weight[:, ::2])  # type: ignore[index]
    assert model[2].weight.shape == (8, 4)


def test_as_much_stays_as_fits() -> None:
    sizes = [
        sum(parameter.numel() for parameter in OneShot(params).attach(network(), torch.randn(5, 3)).parameters())
        for params in (29, 30, 31, 74)
    ]
    assert sizes[0] < 29 and sizes[1:] == [30, 30, 74]


def test_a_size_that_no_cut_reaches_is_refused() -> None:
    with pytest.raises(ValueError, match="at least"):
        OneShot(3).attach(network(), torch.randn(5, 3))
