"""Networks for the tests of recipes and files: every kind of thing that a recipe holds, and a quick way to cut them."""

from __future__ import annotations

import copy
from functools import cache

import torch
from torch import Tensor, nn

import headgate as hg


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.n = nn.BatchNorm2d(width)
        self.b = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(self.n(self.a(x.relu())).relu())


class Residual(nn.Module):
    """A stream, branches to narrow and to empty, a buffer outside the state dict that carries the stream's channels."""

    def __init__(self, width: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, width, 3, padding=1)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(3)))
        self.head = nn.Linear(width, classes)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, width).view(1, -1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.blocks(self.stem(x)) * self.scale).relu().mean((2, 3)))


class Sizes(nn.Module):
    """One of every layer whose size attributes change."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 12, 3, padding=1)
        self.depthwise = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.norm = nn.GroupNorm(6, 12)
        self.slope = nn.PReLU(12)
        self.up = nn.ConvTranspose2d(12, 8, 2, stride=2)
        self.plain = nn.BatchNorm2d(8, affine=False)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.slope(self.norm(self.depthwise(self.first(x))))
        return self.out(self.plain(self.up(x)).relu().mean((2, 3)))


class Tied(nn.Module):
    """One matrix under two names, cut once."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(4, 8)
        self.second.weight = self.first.weight
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out((self.first(x) + self.second(x.flip(-1))).relu())


def image(batch: int = 2) -> Tensor:
    return torch.randn(batch, 2, 6, 6)


def trained(model: nn.Module) -> nn.Module:
    """The model with statistics and weights as training leaves them: nothing is 0 or 1 by chance."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor), alpha=0.3)
    return model


def compacted(model: nn.Module, example: Tensor, empty: str = "", floor: int = 2) -> nn.Module:
    """Gates inserted, moved to different offsets each, and cut; the branch named `empty` falls silent."""
    gates = hg.insert_gates_(model, example, floor=floor)
    with torch.no_grad():
        for number, (name, gate) in enumerate(gates.items()):
            gate.offset.fill_(-5.5 if name == empty else -1.0 - 0.3 * (number % 5))
    return hg.compact(model)


@cache
def _small_residual() -> nn.Module:
    return compacted(trained(Residual()), image(), empty="blocks.1.b:write")


def small_residual() -> nn.Module:
    """A stream of 7 channels, two narrow branches that write back, one block that is gone."""
    return copy.deepcopy(_small_residual())


def same(left: nn.Module, right: nn.Module, example: Tensor) -> bool:
    with torch.no_grad():
        return torch.equal(left.eval()(example), right.eval()(example))


def channels_last(model: nn.Module) -> nn.Module:
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
