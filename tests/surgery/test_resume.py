"""After `transfer_`: the optimizer lists parameters as the small model does, and a training can be taken up again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

import headgate as hg


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(6, 12), nn.Linear(12, 3)
        self.attend = nn.MultiheadAttention(12, 4, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        x = self.embed(x)
        return self.head(self.attend(x, x, x, need_weights=False)[0])


class Reading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(6, 10, 2, batch_first=True), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.rnn(x)[0])


def linears() -> nn.Sequential:
    """Two of equal shape, so that states may end on each other's tensors unnoticed."""
    sizes = [(6, 12), (12, 12), (12, 12)]
    return nn.Sequential(*(layer for size in sizes for layer in (nn.Linear(*size), nn.ReLU())), nn.Linear(12, 3))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 12, 3, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1),
        nn.BatchNorm2d(12), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 3),
    )  # fmt: skip


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (linears, (8, 6)),
    "convolution": (convolutions, (8, 2, 6, 6)),
    "attention": (Attending, (4, 5, 6)),
    "lstm": (Reading, (4, 5, 6)),
}
ADAM: Any = lambda groups: torch.optim.Adam(groups, lr=1e-2)  # noqa: E731
OPTIMIZERS: dict[str, Any] = {
    "Adam": ADAM,
    "Adam fused": lambda groups: torch.optim.Adam(groups, lr=1e-2, fused=True),
    "Adam foreach": lambda groups: torch.optim.Adam(groups, lr=1e-2, foreach=True),
    "SGD momentum": lambda groups: torch.optim.SGD(groups, lr=1e-2, momentum=0.9),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def settled(build: Callable[[], nn.Module], x: Tensor, offset: float = -2.3, seed: int = 0) -> nn.Module:
    """A gated network that has closed some units, its masks in its weights."""
    torch.manual_seed(seed)
    model = build()
    gates = hg.insert_gates_(model, x, floor=2, order=f"random:{seed}")
    assert gates
    with torch.no_grad():
        for gate in gates.values():
            gate.offset.fill_(offset)
    hg.bake_(model)
    return model


def example(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_training_taken_up_again_is_the_same_training(network: str, make: Any, tmp_path: Path) -> None:
    build, shape = NETWORKS[network]
    x = example(shape)
    model = settled(build, x)
    optimizer = make(hg.param_groups(model))
    train(model, optimizer, x, 3)
    small = hg.compact(model)
    hg.transfer_(optimizer, model, small)
    assert list(map(id, optimizer.param_groups[0]["params"])) == list(map(id, small.parameters()))
    train(small, optimizer, x, 2)
    hg.save(small, tmp_path / "small.safetensors")
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")

    again = hg.load(tmp_path / "small.safetensors", build).train()
    other = make([{"params": again.parameters()}, {"params": []}])
    other.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    train(small, optimizer, x, 4)
    train(again, other, x, 4)
    for (name, ours), theirs in zip(small.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name


def test_groups_of_ones_own_are_ordered_each_by_itself() -> None:
    x = example((8, 6))
    model = settled(linears, x)
    other, first = nn.Parameter(torch.ones(3)), [p for p in model.parameters() if p.dim() == 1]
    rest = [p for p in model.parameters() if p.dim() == 2]
    offsets = hg.offset_group(model)
    first = [p for p in first if p is not offsets["params"][0]]
    groups = [{"params": [*rest[:2], other, *rest[2:]]}, {"params": first[::-1], "lr": 0.2}, offsets]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    small = hg.compact(model)
    hg.transfer_(optimizer, model, small)
    weights, biases = ([p for p in small.parameters() if p.dim() == dim] for dim in (2, 1))
    assert [group["lr"] for group in optimizer.param_groups[:2]] == [0.1, 0.2]
    assert list(map(id, optimizer.param_groups[0]["params"])) == list(map(id, [*weights[:2], other, *weights[2:]]))
    assert list(map(id, optimizer.param_groups[1]["params"])) == list(map(id, biases))


def test_names_that_the_optimizer_knows_follow() -> None:
    x = example((8, 6))
    model = settled(linears, x)
    named = [(f"net.{name}", parameter) for name, parameter in model.named_parameters()]
    optimizer = torch.optim.SGD(named, lr=0.1)
    small = hg.compact(model)
    hg.transfer_(optimizer, model, small)
    assert optimizer.param_groups[0]["param_names"] == [f"net.{name}" for name, _ in small.named_parameters()]


def test_layers_with_parametrizations_of_their_own_stay_in_the_optimizer() -> None:
    def build() -> nn.Module:
        first = nn.utils.parametrizations.weight_norm(nn.Linear(6, 12))
        last = nn.utils.parametrizations.spectral_norm(nn.Linear(12, 3))
        return nn.Sequential(first, nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), last)

    x = example((8, 6))
    model = settled(build, x)
    optimizer = ADAM(hg.param_groups(model))
    train(model, optimizer, x, 1)
    small = hg.compact(model.eval())  # in training a spectral norm changes whenever it is looked at
    hg.transfer_(optimizer, model, small)
    assert list(map(id, optimizer.param_groups[0]["params"])) == list(map(id, small.parameters()))
    assert set(optimizer.state) == set(small.parameters())


class TiedAcross(nn.Module):
    """A parameter of the root that a layer shares: with gates on, the layer's name comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner, self.head = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 3)
        self.shared = self.inner.weight

    def forward(self, x: Tensor) -> Any:
        x = torch.relu(self.stem(x))
        return self.head(torch.relu(linear(torch.relu(x + self.inner(x)), self.shared)))


def test_tied_parameters_stay_whichever_name_comes_first() -> None:
    x = example((8, 6))
    model = settled(TiedAcross, x)
    optimizer = ADAM(hg.param_groups(model))
    train(model, optimizer, x, 1)
    small = hg.compact(model)
    hg.transfer_(optimizer, model, small)
    assert list(map(id, optimizer.param_groups[0]["params"])) == list(map(id, small.parameters()))


def test_a_network_changed_before_it_is_gated_again() -> None:
    """What the first compaction left is no longer what the second begins with: indices are those of the network."""
    x = example((8, 6))
    model: Any = hg.compact(settled(linears, x))
    model[6] = nn.Linear(model[6].in_features, 5)
    gates = hg.insert_gates_(model, x, floor=1)
    with torch.no_grad():
        for gate in gates.values():
            gate.offset.fill_(-2.3)
    hg.bake_(model)
    optimizer = torch.optim.SGD(hg.param_groups(model), lr=0.1, momentum=0.9)
    for parameter in optimizer.param_groups[0]["params"]:
        optimizer.state[parameter]["momentum_buffer"] = parameter.detach().clone()
    smaller = hg.compact(model)
    hg.transfer_(optimizer, model, smaller)
    for parameter in smaller.parameters():
        assert torch.equal(optimizer.state[parameter]["momentum_buffer"], parameter.detach())


def test_a_small_model_of_another_one_is_refused_and_nothing_has_changed() -> None:
    x = example((8, 6))
    model = settled(linears, x)
    optimizer = ADAM(hg.param_groups(model))
    train(model, optimizer, x, 1)
    before = copy.deepcopy(optimizer.state_dict()["state"])
    held = [list(map(id, group["params"])) for group in optimizer.param_groups]
    others = {
        "other units than the gates leave": settled(linears, x, seed=1),
        "other units": settled(linears, x, offset=-3.1),
        "is not what compact would make": settled(lambda: linears()[2:], torch.randn(8, 12)),
        "it never had a": settled(lambda: nn.Sequential(*list(linears())[:3], linears()[6]), x),
    }
    for words, other in others.items():
        with pytest.raises(hg.GateError, match=words):
            hg.transfer_(optimizer, model, hg.compact(other))
        assert [list(map(id, group["params"])) for group in optimizer.param_groups] == held
        torch.testing.assert_close(optimizer.state_dict()["state"], before, rtol=0, atol=0)


@pytest.mark.parametrize("move", [nn.Module.half, nn.Module.double, copy.deepcopy], ids=["half", "double", "copy"])
@pytest.mark.parametrize("options", [{"multiple_of": 4}, {"branches": "full"}])
def test_its_own_small_model_is_never_refused(move: Any, options: dict[str, Any]) -> None:
    """Whatever happened to it since: another dtype, other numbers."""
    x = example((8, 2, 6, 6))
    model = convolutions()
    gates = hg.insert_gates_(model, x, **options)
    with torch.no_grad():
        for gate in gates.values():
            gate.offset.fill_(-2.3)
    hg.bake_(model)
    optimizer = torch.optim.SGD(hg.param_groups(model), lr=0.1, momentum=0.9)
    small = move(hg.compact(model))
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.mul_(2)
    hg.transfer_(optimizer, model, small)
    assert list(map(id, optimizer.param_groups[0]["params"])) == list(map(id, small.parameters()))


@pytest.mark.parametrize("inserted", [False, True])
def test_gates_placed_by_hand_may_have_closed_more(inserted: bool) -> None:
    x = example((8, 6))
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 12), nn.ReLU(), hg.Gate(12), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.Sigmoid(),
        hg.Gate(12), nn.Sigmoid(), nn.Linear(12, 3),
    )  # fmt: skip
    if inserted:
        hg.insert_gates_(model, x)
    with torch.no_grad():
        for gate in hg.gates(model).values():
            gate.offset.fill_(-2.3)
    hg.bake_(model)
    optimizer = torch.optim.SGD(hg.param_groups(model), lr=0.1, momentum=0.9)
    small = hg.compact(model, x, unremovable="scale")
    hg.transfer_(optimizer, model, small)
    assert list(map(id, optimizer.param_groups[0]["params"])) == list(map(id, small.parameters()))
