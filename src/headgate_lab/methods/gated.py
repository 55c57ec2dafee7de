"""What the methods that close gates share: how gates get into a network, and how what they closed gets out of it."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

import headgate as hg
from headgate_lab.methods.contract import Method


@dataclass(frozen=True, kw_only=True)
class Gated(Method, ABC):
    """The options are those of `insert_gates_`.

    Attributes:
        by_hand: the network has its gates already; none is inserted.
        before_norm: gates stand before BatchNorm, as the paper's do.
        permutation: instead of one `order` for all, every site has a random one of its own, drawn from this seed;
            branches and readers of a stream with a gate have the stream's.
    """

    by_hand: bool = False
    where: Callable[[str, nn.Module], bool] | None = None
    before_norm: bool = False
    streams: bool = True
    order: str = "index"
    permutation: int | None = None
    scale: Literal["relative", "plain"] = "relative"
    floor: int = 4
    multiple_of: int = 1

    @property
    def placement(self) -> Hashable:
        """What `insert_gates_` is told."""
        order, widths = (self.order, self.permutation), (self.floor, self.multiple_of)
        return self.by_hand, self.where, self.before_norm, self.streams, order, self.scale, widths

    def attach(self, model: nn.Module, example: Tensor) -> nn.Module:
        """Inserts the gates, unless they are there."""
        if self.by_hand:
            return model
        hg.insert_gates_(
            model,
            example,
            where=self.where,
            placement="before_norm" if self.before_norm else "exact",
            streams=self.streams,
            order=self.order if self.permutation is None else permutations(model, example, self.permutation),
            scale=self.scale,
            floor=self.floor,
            multiple_of=self.multiple_of,
        )
        return model

    def keep(self, model: nn.Module) -> dict[str, Tensor]:
        """What each gate has open."""
        return {name: gate.keep() for name, gate in hg.gates(model).items()}

    def small(self, model: nn.Module, example: Tensor) -> nn.Module:
        """The compacted network, which checks itself against the gated one; the same if it has no gates any more."""
        if not hg.gates(model):
            return model
        with torch.autocast(example.device.type, enabled=False):
            return hg.compact(model, example)


def permutations(model: nn.Module, example: Tensor, seed: int) -> dict[str, Tensor]:
    """A random order for every site that gates could be put on, one after the other from one generator."""
    plan, generator = hg.find_groups(model, example), torch.Generator().manual_seed(seed)
    sizes = {group.name: group.size for group in plan.groups} | {branch.name: branch.size for branch in plan.branches}
    return {name: torch.randperm(size, generator=generator) for name, size in sizes.items()}
