"""A compacted network takes inputs with other axes before the channels than the example had, as the gated one does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import headgate as hg
from tests.surgery.exactness import LIMIT, error, outputs, randomise_

WIDTH = 12


class Residual(nn.Module):
    """Its input plus a branch of two layers."""

    def __init__(self, first: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.first, self.last = first, last

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(torch.relu(self.first(x)))


def net(kind: Callable[..., nn.Module], branch: Sequence[nn.Module], *kernel: int) -> nn.Module:
    """A layer, a residual branch and a layer."""
    return nn.Sequential(kind(4, WIDTH, *kernel), Residual(*branch), kind(WIDTH, 3, *kernel))


Shapes = tuple[tuple[int, ...], ...]
# Builders, with the shape of the example and then others.
NETS: dict[str, tuple[Callable[[], nn.Module], Shapes]] = {
    "linear": (
        lambda: net(nn.Linear, (nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH))),
        ((5, 4), (4,), (2, 7, 4), (2, WIDTH, 4), (2, 1, 4)),
    ),
    "conv1d": (
        lambda: net(nn.Conv1d, (nn.Conv1d(WIDTH, 16, 1), nn.Conv1d(16, WIDTH, 1)), 1),
        ((5, 4, 9), (4, 7), (4, WIDTH), (4, 1)),
    ),
    "conv2d, without batch": (
        lambda: net(nn.Conv2d, (nn.Conv2d(WIDTH, 16, 1), nn.Conv2d(16, WIDTH, 1)), 1),
        ((4, 5, 5), (2, 4, 3, 3), (WIDTH, 4, 1, 1)),
    ),
    "instance norm": (
        lambda: net(nn.Conv2d, (nn.Conv2d(WIDTH, WIDTH, 1), nn.InstanceNorm2d(WIDTH, affine=True)), 1),
        ((2, 4, 6, 6), (4, 5, 5), (1, 4, 3, 3)),
    ),
}


@pytest.mark.parametrize("order", ["index", "random:0"])
@pytest.mark.parametrize("offset", [-2.0, -4.6, -5.0], ids=["some left", "one left", "silent"])
@pytest.mark.parametrize("name", NETS)
def test_equal_whatever_axes_there_are_before_channels(name: str, offset: float, order: str, tmp_path: Path) -> None:
    build, (example, *others) = NETS[name]
    model = randomise_(build().double())
    found = hg.insert_gates_(model, torch.randn(example, dtype=torch.float64), order=order, floor=1)
    (write,) = (gate for where, gate in found.items() if where.endswith(":write"))
    with torch.no_grad():
        write.offset.fill_(offset)
    small = hg.compact(model)
    hg.save(small, tmp_path / "small.safetensors")
    torch.compiler.reset()
    compiled = torch.compile(small, fullgraph=True, backend="eager")
    again = hg.load(tmp_path / "small.safetensors", lambda: build().double())
    for shape in (example, *others):
        x = torch.randn(shape, dtype=torch.float64)
        expected = outputs(model, x)
        assert error(expected, outputs(small, x)) < LIMIT, shape
        assert error(expected, outputs(compiled, x)) < LIMIT, shape
        assert error(expected, outputs(again.eval(), x)) < LIMIT, shape
