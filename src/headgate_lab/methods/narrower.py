"""The controls: the network as it is, and the same network made uniformly narrower to a given size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headgate_lab.methods.contract import Build, Method

# Widths are tried on a grid this fine: finer ones round to the same numbers of channels.
STEPS = 1024


@dataclass(frozen=True)
class Narrower(Method):
    """The widest uniformly narrower network that has at most `params` parameters; None: the full network."""

    params: int | None = None

    def width(self, build: Build) -> float:
        """Found by halving intervals."""
        return 1.0 if self.params is None else widest(build, self.params)

    def attach(self, model: nn.Module, example: Tensor) -> nn.Module:
        """Nothing is to be attached."""
        return model

    def small(self, model: nn.Module, example: Tensor) -> nn.Module:
        """Nothing is to be removed."""
        return model


def widest(build: Build, params: int) -> float:
    """The largest fraction of the width at which the network has at most `params` parameters.

    Raises:
        ValueError: even the narrowest network has more.
    """
    low, high = 1, STEPS
    if size(build, low / STEPS) > params:
        raise ValueError(
            f"a uniformly narrower network has at least {size(build, low / STEPS):,} parameters, not {params:,}"
        )
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if size(build, middle / STEPS) <= params else (low, middle - 1)
    return low / STEPS


def size(build: Build, width: float) -> int:
    """Parameters of the network at a fraction of its width."""
    with torch.random.fork_rng(devices=[]):
        return sum(parameter.numel() for parameter in build(width).parameters())
