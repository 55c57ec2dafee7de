"""Where gates act: which weights the mask of each site multiplies.

The exact placement is on what reads a group. The paper's is on the rows of the layer that writes it, before a norm:
there a closed channel leaves the norm as a constant, which its readers still see and removal drops.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor, nn

from headgate.bank import Bank
from headgate.channels.plan import STAYS, Axis, Branch, Group, Plan
from headgate.channels.readers import Reader
from headgate.channels.trace import aliases
from headgate.masked import put_mask_on_
from headgate.surgery.keep import Site

Placement = Literal["exact", "before_norm"]


def rows_before_norm(model: nn.Module, plan: Plan, group: Group) -> tuple[Axis, ...]:
    """Rows, weight and bias, of the layer that writes the group before a norm: where the paper has its gates.

    Nothing for streams, which have many writers, and for groups with no norm or not exactly one convolution or linear
    map to write them: their gates stay on the read side.
    """
    normalised = any(
        unit in group.units for numbers in plan.widths.values() for number in numbers for unit in plan.units_at(number)
    )
    if group.stream or not normalised:
        return ()
    maps = [name.removesuffix(".weight") for name, _ in group.writers if _is_map(model, name)]
    own = {f"{path}.{leaf}" for path in maps for leaf in ("weight", "bias")}
    return tuple(axis for axis in group.writers if axis[0] in own) if len(maps) == 1 else ()


def _is_map(model: nn.Module, name: str) -> bool:
    """Whether this is the weight of a convolution or linear map that sums over all its inputs."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    whole = isinstance(module, nn.modules.conv._ConvNd) and module.groups == 1
    return leaf == "weight" and (whole or isinstance(module, nn.Linear))


def put_masks_on_(
    model: nn.Module, bank: Bank, plan: Plan, chosen: list[Site], before_norm: dict[str, tuple[Axis, ...]]
) -> None:
    """One mask per weight and axis that reads a gated group, and per axis of a branch's or reader's own gate.

    Groups named in `before_norm` are masked along the axes given there instead. Every alias of a weight is masked.
    """
    names: dict[str, list[str]] = {}
    for alias, name in aliases(model).items():
        names.setdefault(name, []).append(alias)

    def mask_(axis: Axis, gates: list[int], index: Tensor) -> None:
        for alias in names[axis[0]]:
            put_mask_on_(model, alias, bank, gates, index, axis[1])

    groups: dict[Axis, dict[int, Group]] = {}
    for gate, site in enumerate(chosen):
        if isinstance(site, Group):
            for axis in before_norm.get(site.name, site.readers):
                groups.setdefault(axis, {})[gate] = site
    for axis, gated in sorted(groups.items()):
        # An index may carry a head and a place, each with its own gate.
        for inner in (False, True):
            if side := {gate: group for gate, group in gated.items() if plan.is_inner(group) == inner}:
                mask_(axis, list(side), _gather_index(plan, axis, side))
    for gate, site in enumerate(chosen):
        if isinstance(site, Branch):
            for axis in site.masked:
                mask_(axis, [gate], torch.tensor(site.units))
        elif isinstance(site, Reader):
            for axis in site.masked:
                mask_(axis, [gate], torch.tensor(site.axes[axis]))


def _gather_index(plan: Plan, axis: Axis, gated: dict[int, Group]) -> Tensor:
    """Every index's place in the masks of these gates laid end to end (the end itself: no gate)."""
    starts = list(accumulate((group.size for group in gated.values()), initial=0))
    index = torch.full((len(plan.axes[axis]),), starts[-1])
    for start, group in zip(starts, gated.values(), strict=False):
        local = torch.tensor(plan.along(axis, group))
        index = torch.where(local == STAYS, index, start + local)
    return index
