"""Where gates act: which weights the mask of each site multiplies.

The library's placement is on what reads a group. The paper's is on the rows of the layer that writes it, before a norm:
there a closed channel leaves the norm as a constant, which its readers still see (`constants`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor, nn

from headgate.bank import Bank
from headgate.channels.constants import Pattern, SilentLayers
from headgate.channels.example import Example
from headgate.channels.plan import STAYS, Axis, Branch, Group, Plan
from headgate.channels.readers import Reader
from headgate.channels.trace import aliases, export
from headgate.errors import TraceError
from headgate.masked import put_mask_on_
from headgate.surgery.constants import Rows, norms_of
from headgate.surgery.keep import Site

Placement = Literal["exact", "before_norm"]


def rows_before_norm(
    model: nn.Module, plan: Plan, groups: Iterable[Group], example: Example
) -> tuple[Rows, frozenset[str]]:
    """Of groups that go through a norm, by name, the rows of the layer that writes them: where the paper has its gates.

    And the names of those whose constants are not the same at every position, nor perhaps at every size of an input.

    Those in which one channel may stand for others: groups that one convolution or linear map writes and that only such
    maps read, by which time a silent channel has become a constant. Gates of other groups stay on the read side, those
    of streams, which have many writers, among them; all do where the model cannot be traced as a whole.
    """
    names, norms = aliases(model), norms_of(plan)
    uses = Counter(names.values())
    normed = (group for group in groups if norms[group.name])
    found = {group.name: (group, axes) for group in normed if (axes := _rows(model, plan, group, uses))}
    if not found:
        return {}, frozenset()
    try:
        graph = SilentLayers(export(model, example, training=False, operation="insert_gates_"), names)
    except TraceError:
        return {}, frozenset()
    left: dict[str, Pattern | None] = {}
    for name, (group, axes) in found.items():
        left[name] = graph.left_by(group, axes, norms[name], _several(plan, group, axes, norms[name]))
    rows = {name: axes for name, (_, axes) in found.items() if left[name] is not None}
    return rows, frozenset(name for name in rows if left[name] == "spread")


def _rows(model: nn.Module, plan: Plan, group: Group, uses: Mapping[str, int]) -> tuple[Axis, ...]:
    """Weight and bias of the only layer that writes a group, if they can be masked and such layers read it."""
    maps = [name.removesuffix(".weight") for name, _ in group.writers if _is_map(model, name)]
    read = all(_is_map(model, name) and uses[name] == 1 for name, _ in group.readers)
    if not read or len(maps) != 1 or group.stream or plan.parts_of_heads(group):
        return ()
    own = {f"{maps[0]}.{leaf}": getattr(model.get_submodule(maps[0]), leaf) for leaf in ("weight", "bias")}
    axes = tuple(axis for axis in group.writers if axis[0] in own)
    return axes if all(isinstance(own[name], nn.Parameter) for name, _ in axes) else ()


def _several(plan: Plan, group: Group, rows: Iterable[Axis], norms: Iterable[str]) -> bool:
    """Whether units have more than one index where they are written, or where they are scaled."""
    axes = [*rows, *((f"{path}.weight", 0) for path in norms)]
    known = (plan.along(axis, group) for axis in axes if axis in plan.axes)
    return any(sum(local != STAYS for local in indices) > group.size for indices in known)


def _is_map(model: nn.Module, name: str) -> bool:
    """Whether this is the weight of one of torch's convolutions or linear maps that sums over all its inputs."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if leaf != "weight" or not type(module).__module__.startswith("torch.nn.modules."):
        return False
    return isinstance(module, nn.Linear) or (isinstance(module, nn.modules.conv._ConvNd) and module.groups == 1)


def put_masks_on_(
    model: nn.Module, bank: Bank, plan: Plan, chosen: list[Site], before_norm: Mapping[str, tuple[Axis, ...]]
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
