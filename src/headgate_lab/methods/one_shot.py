"""One cut, by magnitude, before the training: what is commonly done to a network that has been trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

import headgate as hg
from headgate_lab.methods.contract import Method
from headgate_lab.methods.narrower import parameters, widest
from headgate_lab.models.width import scaled


@dataclass(frozen=True)
class OneShot(Method):
    """Of every group of channels the same share stays, those of the largest weights: as much as `params` allows."""

    params: int

    def attach(self, model: nn.Module, example: Tensor) -> nn.Module:
        """The network that has been cut; the one given is left as it is."""
        order = hg.order_by(model, "magnitude", [example])
        cut = partial(leaving, model, hg.find_groups(model, example), order)
        return cut(widest(cut, parameters, self.params))

    def small(self, model: nn.Module, example: Tensor) -> nn.Module:
        """Nothing is left to be removed."""
        return model


def leaving(model: nn.Module, plan: hg.Plan, order: Mapping[str, Tensor], share: float) -> nn.Module:
    """A copy with this share of every group, at least one unit: the last ones of the order."""
    keep = {group.name: order[group.name] >= group.size - scaled(group.size, share) for group in plan.groups}
    return hg.shrink(model, plan, keep)
