"""Network Slimming (Liu et al. 2017): scales of BatchNorm learn under an L1 penalty, then the smallest are cut.

Two methods, one after the other: `Sparse` for the training, `Slimmed` for the cut and the fine-tuning that follows. As
in the authors' code a residual stream keeps its width, and a block reads of it what its first BatchNorm kept. Two
things differ: a layer of which nothing would be left keeps its largest scale, and what the last BatchNorm of a
residual network cuts is zeroed, not removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

import headgate as hg
from headgate_lab.methods.contract import Method
from headgate_lab.methods.narrower import parameters, widest
from headgate_lab.methods.norm_channels import cut, scales


@dataclass(frozen=True)
class Sparse(Method):
    """The training before the cut; `strength` is the weight of the sum of all |scale|."""

    strength: float

    @property
    def placement(self) -> str:
        """Nothing is placed, whatever the strength."""
        return "sparse"

    def attach(self, model: nn.Module, example: Tensor) -> nn.Module:
        """Nothing is to be attached."""
        return model

    def penalty(self, model: nn.Module) -> Tensor:
        """Its gradient is the strength times the sign of every scale."""
        return self.strength * torch.cat(list(scales(model).values())).abs().sum()

    def small(self, model: nn.Module, example: Tensor) -> nn.Module:
        """Nothing is removed yet."""
        return model


@dataclass(frozen=True)
class Slimmed(Method):
    """The network cut by one threshold for all scales.

    Attributes:
        share: the fraction of all channels that stays.
        params: instead, the parameters: as many channels stay as these allow.
    """

    share: float | None = None
    params: int | None = None

    def attach(self, model: nn.Module, example: Tensor) -> nn.Module:
        """The network that has been cut; the one given is left as it is."""
        return self.cut(model, hg.find_groups(model, example, readers=True))

    def cut(self, model: nn.Module, plan: hg.Plan) -> nn.Module:
        """The same where the plan is known."""
        at = partial(leaving, model, plan)
        if self.share is not None:
            return at(self.share)
        assert self.params is not None
        return at(widest(at, parameters, self.params))

    def small(self, model: nn.Module, example: Tensor) -> nn.Module:
        """Nothing is left to be removed."""
        return model


@torch.no_grad()
def leaving(model: nn.Module, plan: hg.Plan, share: float) -> nn.Module:
    """A copy with this share of all BatchNorm channels, those of the largest scales; at least one of each layer."""
    sizes = {name: scale.abs() for name, scale in scales(model).items()}
    every = torch.cat(list(sizes.values())).sort().values
    gone = len(every) - max(1, round(share * len(every)))
    stays = {name: _largest(size, every[gone - 1]) if gone else size >= 0 for name, size in sizes.items()}
    return cut(model, plan, stays)


def _largest(size: Tensor, threshold: Tensor) -> Tensor:
    """Which are above the threshold; the largest in any case."""
    stays = size > threshold
    stays[size.argmax()] = True
    return stays
