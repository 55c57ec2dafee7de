"""Large strengths end in a small network, not in a dead one.

Two networks with hand-placed gates learn scikit-learn's digits by SGD with momentum. A sane strength closes a good part
of the units and costs next to nothing. A hundred times that strength must leave a network at its floor that still
tells digits apart, because three things hold together: relative masks, a floor, bounded steps of the offsets. Without
them the same run ends at chance, 10 %.

Measured, test accuracy in percent over seeds 0 to 3, and units that stay open:

| strength, gates                                 | convolutional, BatchNorm | MLP, no normalisation |
|-------------------------------------------------|--------------------------|-----------------------|
| 0                                               | 99, all 48               | 98, all 512           |
| sane, relative masks, floor 4, bounded          | 97 … 99, 27 … 29         | 97, 132 … 153         |
| 100 × sane, relative masks, floor 4, bounded    | 91 … 97, 8 … 10          | 64 … 81, 16 … 19      |
| 100 × sane, plain masks, floor 4, bounded       | 96, 8 … 10               | 9 … 17, 16            |
| 100 × sane, either mask, no floor, left to SGD  | 8 … 10, none             | 8 … 10, none          |

BatchNorm restores the scale that plain masks take away; a network without it has nothing else to do so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import headgate as hg
from headgate import Gate, Status

CHANCE = 0.1
MakeGate = Callable[[int], Gate]
SANE = {"convolutional": 0.03, "mlp": 0.3}
RATE = {"convolutional": 0.05, "mlp": 0.1}


def convolutional(gate: MakeGate) -> nn.Sequential:
    """Two convolutions with BatchNorm, gated after the activation, where removal is exact."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), gate(16), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), gate(32), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def mlp(gate: MakeGate) -> nn.Sequential:
    """Four hidden layers of 128 units and nothing that restores the scale of a signal."""
    layers: list[nn.Module] = []
    for inputs in (64, 128, 128, 128):
        layers += [nn.Linear(inputs, 128), nn.ReLU(), gate(128)]
    return nn.Sequential(*layers, nn.Linear(128, 10))


def train(network: str, digits: Any, times: float, gate: dict[str, Any], offset_update: Any) -> tuple[float, Status]:
    """Test accuracy and gates after training at `times` the sane strength."""
    model = {"convolutional": convolutional, "mlp": mlp}[network](lambda n: Gate(n, **gate))
    groups = hg.param_groups(model, lr=RATE[network], offset_lr=0.01, offset_update=offset_update)
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    strength = times * SANE[network]
    for _ in range(800):  # the way from offset 1 to the floor takes 550 steps of at most 0.01
        batch = torch.randint(len(digits.train_y), (64,))
        task = nn.functional.cross_entropy(model(digits.train_x[batch]), digits.train_y[batch])
        optimizer.zero_grad()
        (task + strength * hg.penalty(model)).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(digits.test_x).argmax(1) == digits.test_y).float().mean().item()
    return accuracy, hg.status(model)


SAFE: dict[str, Any] = {"gate": {"scale": "relative", "floor": 4}, "offset_update": "bounded"}
FLOOR_ALONE: dict[str, Any] = {"gate": {"scale": "plain", "floor": 4}, "offset_update": "bounded"}


@pytest.mark.parametrize(("network", "good"), [("convolutional", 0.96), ("mlp", 0.93)])
def test_the_sane_strength_is_sane(network: str, good: float, digits: Any):
    accuracy, status = train(network, digits, times=1, **SAFE)
    assert accuracy > good
    assert 0.1 < status.open / status.total < 0.9


@pytest.mark.parametrize(("network", "working"), [("convolutional", 0.75), ("mlp", 0.45)])
def test_a_hundred_times_too_strong_ends_small_but_working(network: str, working: float, digits: Any):
    accuracy, status = train(network, digits, times=100, **SAFE)
    assert accuracy > working
    assert all(4 <= gate.open <= 8 for gate in status.gates)


@pytest.mark.parametrize("network", ["convolutional", "mlp"])
@pytest.mark.parametrize("scale", ["plain", "relative"])
def test_without_the_machinery_it_dies(scale: str, network: str, digits: Any):
    accuracy, status = train(network, digits, times=100, gate={"scale": scale}, offset_update="plain")
    assert accuracy < CHANCE + 0.05
    assert status.open == 0


def test_a_floor_alone_does_not_save_a_network_without_normalisation(digits: Any):
    """Four of 128 units are open, but a plain mask is then at most tanh(3.5·5/128) = 0.14: four times in a row."""
    accuracy, status = train("mlp", digits, times=100, **FLOOR_ALONE)
    assert accuracy < CHANCE + 0.2
    assert all(gate.open == 4 for gate in status.gates)
