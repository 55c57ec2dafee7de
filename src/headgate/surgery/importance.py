"""Which weights carry the units of a site, and how important these make each unit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from headgate.channels.plan import Group, Plan
from headgate.channels.readers import Reader
from headgate.channels.taps import LocalAxes
from headgate.surgery.keep import Site
from headgate.surgery.recipe import named_tensors


def carried_by(plan: Plan, site: Site, axes: Iterable[tuple[str, int]] | None = None) -> LocalAxes:
    """For every index of the axes that carry a site (or of those given) its unit, counted within the site."""
    if isinstance(site, Reader):
        return {axis: site.axes[axis] for axis in (site.axes if axes is None else axes)}
    if isinstance(site, Group):
        chosen = (*site.writers, *site.readers) if axes is None else axes
        return {axis: plan.along(axis, site) for axis in chosen}
    return dict.fromkeys(site.sliced if axes is None else axes, site.units)


def magnitudes(model: nn.Module, plan: Plan, site: Site) -> Tensor:
    """The Euclidean norm of each unit's weights: all tensors of two axes or more that carry it, else of one."""
    tensors, carried = named_tensors(model), carried_by(plan, site)
    parameters = {axis: units for axis, units in carried.items() if isinstance(tensors[axis[0]], nn.Parameter)}
    weights = {axis: units for axis, units in parameters.items() if tensors[axis[0]].dim() > 1} or parameters
    squares = {(name, axis): tensors[name].detach().double().square() for name, axis in weights}
    return _summed_by_unit(squares, weights, site.size).sqrt()


def norm_scales(model: nn.Module, plan: Plan, site: Site) -> Tensor | None:
    """The sum of |scale| over the Batch-, Instance- and GroupNorms that normalise each unit; None if there are none."""
    tensors = named_tensors(model)
    scales = {axis: units for axis, units in carried_by(plan, site).items() if _is_scale(model, axis[0])}
    sizes = {axis: tensors[axis[0]].detach().double().abs() for axis in scales}
    return _summed_by_unit(sizes, scales, site.size) if scales else None


def _is_scale(model: nn.Module, name: str) -> bool:
    path, _, leaf = name.rpartition(".")
    return leaf == "weight" and isinstance(model.get_submodule(path), (nn.modules.batchnorm._NormBase, nn.GroupNorm))


def _summed_by_unit(values: Mapping[tuple[str, int], Tensor], axes: LocalAxes, size: int) -> Tensor:
    total = torch.zeros(size + 1, dtype=torch.float64)
    for axis, units in axes.items():
        along = values[axis].movedim(axis[1], 0).flatten(1).sum(1) if values[axis].dim() > 1 else values[axis]
        total.index_add_(0, torch.tensor(units) % (size + 1), along.cpu())
    return total[:size]
