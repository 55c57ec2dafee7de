"""Channels of BatchNorms: what Network Slimming and ChipNet choose among, and how what they did not choose gets out.

A block of a residual network reads of its stream what its first BatchNorm keeps; the stream keeps its width. A layer
of which nothing stays silences the branch it is in, which then goes as a whole. What the last BatchNorm of a residual
network loses is zeroed, not removed; before a ReLU it stays zero, since no gradient comes through.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

import headgate as hg


def scales(model: nn.Module) -> dict[str, Tensor]:
    """The scales of all BatchNorms over feature maps, by their names as parameters."""
    return {f"{path}.weight": norm.weight for path, norm in model.named_modules() if isinstance(norm, nn.BatchNorm2d)}


def branches(plan: hg.Plan, names: Mapping[str, object]) -> dict[str, list[str]]:
    """By residual branch, the scales among `names` that only it needs; branches without any are left out."""
    found = {
        branch.name: [name for path in branch.inner if (name := f"{path}.weight") in names] for branch in plan.branches
    }
    return {branch: inside for branch, inside in found.items() if inside}


def sites(plan: hg.Plan, stays: Mapping[str, Tensor]) -> dict[str, tuple[str, Tensor]]:
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


@torch.no_grad()
def silenced_(model: nn.Module, stays: Mapping[str, Tensor]) -> nn.Module:
    """The model, the scales and shifts of what does not stay set to zero."""
    for name, keep in stays.items():
        for parameter in model.get_submodule(name.removesuffix(".weight")).parameters():
            parameter.mul_(keep.to(parameter.device))
    return model


def cut(model: nn.Module, plan: hg.Plan, stays: Mapping[str, Tensor]) -> nn.Module:
    """A small copy that computes what the model would with its other channels silenced.

    Args:
        model: it is left as it is.
        plan: the model's, with its readers.
        stays: by scale, a bool vector. In a branch either something of every layer stays, or nothing of any.

    Raises:
        headgate.ArgumentError: nothing of a layer stays that is in no branch.
    """
    silent = {
        branch: inside
        for branch, inside in branches(plan, stays).items()
        if not any(bool(stays[name].any()) for name in inside)
    }
    gone = {name for inside in silent.values() for name in inside}
    left = {name: keep for name, keep in stays.items() if name not in gone}
    where = sites(plan, left)
    sizes = {branch.name: branch.size for branch in plan.branches}
    keep = dict(where.values()) | {branch: torch.zeros(sizes[branch], dtype=torch.bool) for branch in silent}
    small = hg.shrink(model, plan, keep)
    return silenced_(small, {name: keep for name, keep in left.items() if name not in where})


def _by_unit(stays: Tensor, units: tuple[int, ...] | list[int], size: int) -> Tensor:
    keep = torch.ones(size, dtype=torch.bool)
    keep[list(units)] = stays.cpu()
    return keep
