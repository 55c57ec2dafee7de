"""`kept` tells what `compact` will leave: the very number, not an estimate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headgate as hg
from headgate.layers import WriteBack
from headgate.surgery import kept as kept_module
from headgate.surgery.compact import insertion_of


class Block(nn.Module):
    """Its input plus a branch, and nothing else: can leave the network altogether."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.norm = nn.Conv2d(width, inner, 3, padding=1), nn.BatchNorm2d(inner)
        self.down = nn.Conv2d(inner, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.relu(self.norm(self.up(x))))


class PostBlock(nn.Module):
    """Goes on with a ReLU after the sum, so a silent branch leaves one row behind; may have a projection."""

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.project = nn.Conv2d(inputs, width, 1, stride) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        out += x if self.project is None else self.project(x)
        return F.relu(out, inplace=True)


class Unused(nn.Module):
    """Computes something that it does not return, beside a branch whose end writes back, or returns zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.dead, self.stem = nn.Conv2d(3, 5, 1), nn.Conv2d(3, 6, 3)
        self.branch, self.out = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        self.dead(x)
        y = F.relu(self.stem(x))
        return self.out(y + self.branch(y))


class Tied(nn.Module):
    """The same table reads and writes, and one layer is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up = nn.Embedding(9, 8), nn.Linear(8, 12)
        self.again, self.down = nn.Linear(12, 12), nn.Linear(12, 8)
        self.out = nn.Linear(8, 9, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        inner = torch.tanh(self.again(torch.tanh(self.again(F.relu(self.up(self.embed(ids)))))))
        return self.out(self.down(inner))


class AcrossTokens(nn.Module):
    """A linear map along the tokens is applied once per channel: fewer channels, fewer uses of the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.mix, self.down = nn.Linear(3, 12), nn.Linear(5, 5), nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.mix(self.up(x).transpose(1, 2)).transpose(1, 2)))


class Mixing(AcrossTokens):
    """The same within a branch that can fall silent and leave, after which nothing tells what its work depends on."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        return self.down(y + self.mix(y.transpose(1, 2)).transpose(1, 2))


class Similar(nn.Module):
    """A product of activations, so the plan alone cannot tell the work; the rest can be removed."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(3, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(F.relu(self.up(x)))
        return y @ y.transpose(1, 2)


@dataclass(frozen=True)
class Toy:
    build: Callable[[], nn.Module]
    example: Any
    told_by_plan: bool = True


def image(size: int = 6) -> Tensor:
    return torch.randn(2, 3, size, size)


def chain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8),
        nn.ConvTranspose2d(8, 10, 2, 2), nn.ReLU(), nn.Conv2d(10, 6, 1), nn.Flatten(),
        nn.Linear(6 * 16, 12), nn.Linear(12, 5),
    )  # fmt: skip


def residual() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), Block(12, 9), Block(12, 7), nn.Sequential(Block(12, 6)), nn.Conv2d(12, 4, 1)
    )


def post_residual() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), PostBlock(8, 8), PostBlock(8, 12, 2), PostBlock(12, 12), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(12, 3),
    )  # fmt: skip


TOYS = {
    "chain": Toy(chain, image()),
    "residual": Toy(residual, image()),
    "post-activation": Toy(post_residual, image()),
    "unused": Toy(Unused, image()),
    "tied": Toy(Tied, torch.tensor([[1, 2, 3]])),
    "across tokens": Toy(AcrossTokens, torch.randn(2, 5, 3), told_by_plan=False),
    "across tokens in a branch": Toy(Mixing, torch.randn(2, 5, 3), told_by_plan=False),
    "product of activations": Toy(Similar, torch.randn(2, 5, 3), told_by_plan=False),
}


def gated(name: str, **options: Any) -> tuple[nn.Module, hg.Cost]:
    """The toy with gates, and what it cost before."""
    toy = TOYS[name]
    model = toy.build().double()
    example = toy.example.double() if toy.example.is_floating_point() else toy.example
    dense = hg.cost(model, example)
    hg.insert_gates_(model, example, **options)
    return model, dense


@torch.no_grad()
def draw_offsets_(model: nn.Module, seed: int) -> None:
    """Between the floor and five eighths open; branches may be silent, and some of them are."""
    generator = torch.Generator().manual_seed(seed)
    for number, (name, gate) in enumerate(hg.gates(model).items()):
        lowest = -5 * (1 - (gate.floor + 0.5) / gate.n) if gate.floor else -5.0
        silent = name.endswith(":write") and (number + seed) % 2
        gate.offset.fill_(-5.0 if silent else lowest + (-1.9 - lowest) * torch.rand((), generator=generator).item())


@pytest.mark.parametrize(("name", "multiple_of"), [*((name, 1) for name in TOYS if name != "chain"), ("chain", 4)])
def test_kept_is_what_compact_leaves(name: str, multiple_of: int):
    model, dense = gated(name, floor=2, multiple_of=multiple_of, order="random:3")
    assert hg.kept(model) == hg.kept(model, of="params") == hg.kept(model, of="macs") == 1
    example = insertion_of(model, "test").example
    for seed in range(2 if TOYS[name].told_by_plan else 1):
        draw_offsets_(model, seed)
        predicted = hg.kept(model, of="params"), hg.kept(model, of="macs")
        small = hg.cost(hg.compact(model), example)
        assert predicted == (small.params / dense.params, small.macs / dense.macs)
        assert max(predicted) < 1
    assert (kept_module._KNOWN[model].sizes is not None) == TOYS[name].told_by_plan


def test_narrow_and_silent_branches_and_blocks_that_are_gone():
    """Each of them was there, with widths that are filled up, so that the law really says something about them."""
    model, dense = gated("residual", floor=2, multiple_of=4)
    gone: list[str] = []
    narrowed = 0
    for seed in range(2):
        draw_offsets_(model, seed)
        small = hg.compact(model)
        assert hg.kept(model, of="params") == sum(p.numel() for p in small.parameters()) / dense.params
        gone += [path for path, module in small.named_modules() if isinstance(module, nn.Identity)]
        narrowed += sum(isinstance(module, WriteBack) for module in small.modules())
    assert {"1", "2", "3.0"} <= set(gone) and narrowed
    example = insertion_of(model, "test").example
    assert hg.kept(model, of="macs") == hg.cost(small, example).macs / dense.macs


def test_by_hand():
    """A 4-8-3 network with 6 of 8 hidden units left: 6·4 + 6 + 3·6 + 3 of 67 parameters, 42 of 56 products."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    hg.insert_gates_(model, torch.randn(5, 4))
    with torch.no_grad():
        hg.gates(model)["0"].offset.fill_(-1.3)
    assert hg.gates(model)["0"].active == 6
    assert hg.kept(model) == 6 / 8
    assert hg.kept(model, of="params") == 51 / 67
    assert hg.kept(model, of="macs") == 42 / 56


def test_channels_are_those_that_compact_keeps():
    """Closed units that fill a width up to a multiple stay."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    hg.insert_gates_(model, torch.randn(5, 4), multiple_of=4, floor=1)
    with torch.no_grad():
        hg.gates(model)["0"].offset.fill_(-3.0)
    assert hg.status(model).open == 4
    with torch.no_grad():
        hg.gates(model)["0"].offset.fill_(-2.0)
    assert hg.status(model).open == 5 and hg.kept(model) == 1
    assert hg.compact(model)[0].out_features == 8


def test_asking_changes_nothing_and_wrappers_are_seen_through():
    model, _ = gated("residual")
    draw_offsets_(model, 0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    names = [name for name, _ in model.named_parameters()]
    for of in ("channels", "params", "macs"):
        assert hg.kept(nn.DataParallel(model), of=of) == hg.kept(model, of=of)
    assert names == [name for name, _ in model.named_parameters()]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert len(hg.gates(model)) and model.training


@pytest.mark.parametrize("name", ["residual", "product of activations"])
def test_the_example_goes_where_the_model_has_gone(name: str):
    """As it does in `compact`: gates are inserted, and then the model is cast or brought to a device."""
    left = []
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        model, _ = gated(name, floor=2)
        model.to(dtype)
        draw_offsets_(model, 0)
        left.append(hg.kept(model, of="macs"))
    assert left[0] == left[1] == left[2] < 1


def test_new_gates_are_counted_anew():
    """What is known of a model belongs to one insertion: another example, other numbers."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.LazyLinear(5))
    model(image())
    hg.insert_gates_(model, image())
    assert hg.kept(model, of="macs") == 1
    first = kept_module._KNOWN[model].macs
    hg.remove_gates_(model)
    hg.insert_gates_(model, torch.randn(1, 3, 6, 6))
    assert hg.kept(model, of="macs") == 1
    assert kept_module._KNOWN[model].macs * 2 == first


def test_a_model_whose_work_is_nothing_is_refused():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    hg.insert_gates_(model, torch.randn(5, 4))
    insertion = insertion_of(model, "test")
    kept_module._KNOWN[model] = kept_module._Work(insertion, 0, None)
    with pytest.raises(hg.GateError, match="no multiply-accumulates"):
        hg.kept(model, of="macs")


@pytest.mark.parametrize("offset", [-5.0, -7.0])
def test_a_gate_that_is_shut_is_told_by_its_offset_and_floor(offset: float):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    gate = hg.insert_gates_(model, torch.randn(5, 4), floor=2)["0"]
    with torch.no_grad():
        gate.offset.fill_(offset)
    words = rf"the gate '0' has closed all of its 8 units.*its offset is {offset:g}.*floor of 2 open is -4.0625"
    for of in ("params", "macs"):
        with pytest.raises(hg.GateError, match=f"^kept: {words}"):
            hg.kept(model, of=of)
    with pytest.raises(hg.GateError, match=f"^compact: {words}"):
        hg.compact(model)
    with torch.no_grad():
        gate.offset.fill_(-4.0625)
    assert hg.compact(model)[0].out_features == 2


def test_a_gate_that_was_baked_shut_is_told_too():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    gate = hg.insert_gates_(model, torch.randn(5, 4))["0"]
    with torch.no_grad():
        gate.offset.fill_(-5.0)
    hg.bake_(model)
    with pytest.raises(hg.GateError, match=r"one must stay; masks were moved into the weights at an offset of -5$"):
        hg.compact(model)


@pytest.mark.parametrize("of", ["params", "macs"])
def test_hand_placed_gates_have_channels_only(of: str):
    model = nn.Sequential(nn.Linear(8, 4), hg.Gate(4, offset=-2.0), nn.Linear(4, 2))
    assert hg.kept(model) == 0.75
    with pytest.raises(hg.GateError, match=f"of='{of}' needs gates that insert_gates_ has placed; '1' of Sequential"):
        hg.kept(model, of=of)


def test_unknown_of():
    with pytest.raises(hg.ArgumentError, match="of='flops' is unknown; use one of 'channels', 'params', 'macs'"):
        hg.kept(nn.Sequential(hg.Gate(4)), of="flops")


def test_no_gates():
    with pytest.raises(hg.GateError, match="no gates"):
        hg.kept(nn.Linear(2, 2), of="params")
