"""Network Slimming (Liu et al. 2017): scales of BatchNorm learn under an L1 penalty, then the smallest are cut.

Two methods, one after the other: `Sparse` for the training, `Slimmed` for the cut and the fine-tuning that follows. As
in the authors' code a residual stream keeps its width, and a block reads of it what its first BatchNorm kept. Two
things differ: a layer of which nothing would be left keeps its largest scale, and what the last BatchNorm of a
residual network cuts is zeroed, not removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

import headgate as hg
from headgate_lab.methods.contract import Method
from headgate_lab.methods.narrower import parameters, widest


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
    """The network cut by one threshold for all scales: as many channels stay as `params` parameters allow."""

    params: int

    def attach(self, model: nn.Module, example: Tensor) -> nn.Module:
        """The network that has been cut; the one given is left as it is."""
        cut = partial(leaving, model, hg.find_groups(model, example, readers=True))
        return cut(widest(cut, parameters, self.params))

    def small(self, model: nn.Module, example: Tensor) -> nn.Module:
        """Nothing is left to be removed."""
        return model


def scales(model: nn.Module) -> dict[str, Tensor]:
    """The scales of all BatchNorms over feature maps, by their names as parameters."""
    return {f"{path}.weight": norm.weight for path, norm in model.named_modules() if isinstance(norm, nn.BatchNorm2d)}


@torch.no_grad()
def leaving(model: nn.Module, plan: hg.Plan, share: float) -> nn.Module:
    """A copy with this share of all BatchNorm channels, those of the largest scales; at least one of each layer."""
    sizes = {name: scale.abs() for name, scale in scales(model).items()}
    every = torch.cat(list(sizes.values())).sort().values
    cut = len(every) - max(1, round(share * len(every)))
    stays = {name: _largest(size, every[cut - 1]) if cut else size >= 0 for name, size in sizes.items()}
    sites = _sites(plan, stays)
    small = hg.shrink(model, plan, dict(sites.values()))
    for name in stays.keys() - sites.keys():
        norm = small.get_submodule(name.removesuffix(".weight"))
        for parameter in norm.parameters():
            parameter.mul_(stays[name])
    return small


def _largest(size: Tensor, threshold: Tensor) -> Tensor:
    """Which are above the threshold; the largest in any case."""
    stays = size > threshold
    stays[size.argmax()] = True
    return stays


def _sites(plan: hg.Plan, stays: Mapping[str, Tensor]) -> dict[str, tuple[str, Tensor]]:
    """By scale, the site whose units it stands for, and which of them stay: a block's reading end, or a whole group."""
    found: dict[str, tuple[str, Tensor]] = {}
    for reader in plan.readers:
        if (name := reader.entry[0]) in stays:
            found[name] = reader.name, _by_unit(stays[name], reader.axes[reader.entry], reader.size)
    for group in plan.groups:
        norms = [name for name, axis in group.writers if axis == 0 and name in stays]
        if len(norms) == 1 and norms[0] not in found:
            units = [unit - group.start for unit in plan.axes[norms[0], 0]]
            found[norms[0]] = group.name, _by_unit(stays[norms[0]], units, group.size)
    return found


def _by_unit(stays: Tensor, units: tuple[int, ...] | list[int], size: int) -> Tensor:
    keep = torch.ones(size, dtype=torch.bool)
    keep[list(units)] = stays.cpu()
    return keep
