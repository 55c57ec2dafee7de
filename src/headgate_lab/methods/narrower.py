"""The controls: the network as it is, and the same network made uniformly narrower to a given size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import headgate as hg
from headgate_lab.methods.contract import Build, Method

# Widths are tried on a grid this fine: finer ones round to the same numbers of channels.
STEPS = 1024


@dataclass(frozen=True)
class Narrower(Method):
    """The widest uniformly narrower network that has at most so many parameters, or multiply-accumulates.

    Attributes:
        params: the parameters; None: as many as there are.
        macs: the multiply-accumulates, as a fraction of the full network's; None: as many as there are.
    """

    params: int | None = None
    macs: float | None = None

    def width(self, build: Build, example: Tensor) -> float:
        """Found by halving intervals."""
        width = 1.0
        if self.params is not None:
            width = min(width, widest(build, parameters, self.params))
        if self.macs is not None:

            def macs(model: nn.Module) -> int:
                found = hg.cost(model, example[:1].cpu()).macs
                assert found is not None  # without an example only
                return found

            width = min(width, widest(build, macs, self.macs * _size(build, macs, 1.0)))
        return width

    def attach(self, model: nn.Module, example: Tensor) -> nn.Module:
        """Nothing is to be attached."""
        return model

    def small(self, model: nn.Module, example: Tensor) -> nn.Module:
        """Nothing is to be removed."""
        return model


def parameters(model: nn.Module) -> int:
    """How many there are."""
    return sum(parameter.numel() for parameter in model.parameters())


def widest(build: Build, measure: Callable[[nn.Module], int], limit: float) -> float:
    """The largest fraction of the width at which the network measures no more than the limit.

    Raises:
        ValueError: even the narrowest network measures more.
    """
    low, high = 1, STEPS
    least = _size(build, measure, low / STEPS)
    if least > limit:
        raise ValueError(f"a uniformly narrower network has at least {least:,} {measure.__name__}, not {limit:,}")
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _size(build, measure, middle / STEPS) <= limit else (low, middle - 1)
    return low / STEPS


def _size(build: Build, measure: Callable[[nn.Module], int], width: float) -> int:
    with torch.random.fork_rng(devices=[]):
        return measure(build(width))
