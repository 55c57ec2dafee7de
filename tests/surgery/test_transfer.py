"""Training on with the small network is the same training: the same optimizer, the same next steps."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import headgate as hg
from headgate_lab.models.preresnet import PreResNet
from tests.offset_cases import OPTIMIZERS

BY_ELEMENT = sorted(set(OPTIMIZERS) - {"Adafactor"})
LABELS = torch.arange(8) % 3


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 12)
        self.norm, self.head = nn.BatchNorm1d(12), nn.Linear(12, 3)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = x + self.two(torch.relu(self.norm(self.one(x))))
        return self.head(x)


def chain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 12, 3, padding=1, bias=False),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 16, 3),
    )


class Tempered(nn.Module):
    """Parameters of one element, of two shapes: the bias of a single output, and a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.temperature = nn.Linear(6, 12), nn.Linear(12, 1), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        score = self.two(torch.relu(self.one(x))) * self.temperature
        return torch.cat([score, -score, score.square()], dim=1)


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "chain": (chain, (8, 2, 6, 6)),
    "one element": (Tempered, (8, 6)),
    "tied": (Tied, (8, 6)),
    "residual": (lambda: PreResNet(11, classes=3), (8, 3, 8, 8)),
}


def images(network: str) -> Tensor:
    return torch.randn(NETWORKS[network][1], generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> float:
    optimizer.zero_grad()
    loss = cross_entropy(model(x), LABELS)
    loss.backward()
    optimizer.step()
    return loss.item()


def settled(network: str, make: Any, silent: str = "") -> tuple[nn.Module, torch.optim.Optimizer]:
    """A gated network after a few steps, its masks in its weights, and its optimizer."""
    torch.manual_seed(0)
    model, x = NETWORKS[network][0]().double(), images(network)
    gates = hg.insert_gates_(model, x, floor=2)
    optimizer = make(hg.param_groups(model))
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * 0.05
    for _ in range(3):
        step(model, optimizer, x)
    with torch.no_grad():
        for number, (name, gate) in enumerate(gates.items()):
            gate.offset.fill_(-9.0 if silent and silent in name else -1.0 - number % 3)
    hg.bake_(model)
    return model, optimizer


def same_steps(network: str, make: Any, silent: str = "") -> None:
    model, optimizer = settled(network, make, silent)
    x = images(network)
    small = hg.compact(model, x)
    twin, _ = settled(network, make, silent)
    other = make(hg.param_groups(twin))
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    hg.transfer_(optimizer, model, small)
    for _ in range(20):
        ours, theirs = step(small, optimizer, x), step(twin, other, x)
        assert ours == pytest.approx(theirs, rel=1e-6)
    torch.testing.assert_close(small.eval()(x), twin.eval()(x), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", BY_ELEMENT)
def test_the_next_steps_are_the_gated_models(name: str) -> None:
    same_steps("chain", OPTIMIZERS[name])
    same_steps("one element", OPTIMIZERS[name])


@pytest.mark.parametrize("network", NETWORKS)
def test_on_every_network(network: str) -> None:
    same_steps(network, OPTIMIZERS["Adam"])
    same_steps(network, OPTIMIZERS["SGD momentum"])


def test_silent_branches_leave_the_optimizer() -> None:
    same_steps("residual", OPTIMIZERS["Adam"], silent="stage2.0.conv3:write")
    model, optimizer = settled("residual", OPTIMIZERS["Adam"], silent="stage2.0.conv3:write")
    before = len(optimizer.param_groups[0]["params"])
    small = hg.compact(model)
    hg.transfer_(optimizer, model, small)
    assert len(optimizer.param_groups[0]["params"]) == len(list(small.parameters())) < before
    assert set(optimizer.state) == set(small.parameters())


def test_schedulers_and_groups_go_on() -> None:
    model, optimizer = settled("chain", OPTIMIZERS["SGD momentum"])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    rates = [group["lr"] for group in optimizer.param_groups]
    small = hg.compact(model)
    hg.transfer_(optimizer, model, small)
    assert optimizer.param_groups[1]["params"] == []
    step(small, optimizer, images("chain"))
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == rates[0] / 2


def test_gated_compacted_gated_again() -> None:
    model, _ = settled("chain", OPTIMIZERS["Adam"])
    x, small = images("chain"), hg.compact(model)
    hg.insert_gates_(small, x, floor=1)
    again = OPTIMIZERS["Adam"](hg.param_groups(small))
    step(small, again, x)
    with torch.no_grad():
        for gate in hg.gates(small).values():
            gate.offset.fill_(-2.5)
    hg.bake_(small)
    smaller = hg.compact(small)
    moment = again.state[
        small[0].parametrizations.weight.original
        if "parametrizations" in dict(small[0].named_children())
        else small[0].weight
    ]["exp_avg"]
    hg.transfer_(again, small, smaller)
    cut = again.state[smaller[0].weight]["exp_avg"]
    assert cut.shape == smaller[0].weight.shape != moment.shape
    assert torch.equal(cut, moment[-cut.shape[0] :]), "the order closes the first units first"
    step(smaller, again, x)


def test_parameters_of_others_stay() -> None:
    model, _ = settled("chain", OPTIMIZERS["SGD"])
    other = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([*hg.param_groups(model), {"params": [other]}], lr=0.1, momentum=0.9)
    small = hg.compact(model)
    hg.transfer_(optimizer, model, small)
    assert optimizer.param_groups[2]["params"] == [other]


def test_the_state_has_the_memory_format_of_the_weights() -> None:
    torch.manual_seed(0)
    model = chain().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    gates, x = hg.insert_gates_(model, torch.randn(8, 2, 6, 6), floor=2), torch.randn(8, 2, 6, 6)
    optimizer = torch.optim.SGD(hg.param_groups(model, lr=0.1), momentum=0.9)
    step(model, optimizer, x)
    with torch.no_grad():
        gates["0"].offset.fill_(-2.0)
    hg.bake_(model)
    small = hg.compact(model)
    hg.transfer_(optimizer, model, small)
    for parameter in small.parameters():
        assert optimizer.state[parameter]["momentum_buffer"].stride() == parameter.stride()
    step(small, optimizer, x)


def test_what_cannot_be_transferred_is_refused_and_nothing_has_changed() -> None:
    torch.manual_seed(0)
    model, x = chain().double(), images("chain")
    hg.insert_gates_(model, x)
    optimizer = torch.optim.SGD(hg.param_groups(model), lr=0.1)
    held = [list(group["params"]) for group in optimizer.param_groups]
    with pytest.raises(hg.GateError, match="have not moved into the weights"):
        hg.transfer_(optimizer, model, hg.compact(model))
    hg.bake_(model)
    with pytest.raises(hg.GateError, match="was not made by compact"):
        hg.transfer_(optimizer, model, chain())
    with pytest.raises(hg.OptimizerError, match="Adafactor is not element by element"):
        hg.transfer_(torch.optim.Adafactor(hg.param_groups(model)), model, hg.compact(model))
    with pytest.raises(hg.OptimizerError, match="holds no parameter of Sequential"):
        hg.transfer_(torch.optim.SGD([nn.Parameter(torch.ones(1))]), model, hg.compact(model))
    assert all(a is b for one, two in zip(held, (g["params"] for g in optimizer.param_groups), strict=True)
               for a, b in zip(one, two, strict=True))  # fmt: skip


def test_a_state_of_another_shape_is_refused() -> None:
    model, optimizer = settled("chain", OPTIMIZERS["Adam"])
    first = optimizer.param_groups[0]["params"][0]
    optimizer.state[first]["rows"] = torch.ones(5)
    with pytest.raises(hg.OptimizerError, match=r"state of shape \(5,\)"):
        hg.transfer_(optimizer, model, hg.compact(model))
    assert optimizer.param_groups[0]["params"][0] is first
