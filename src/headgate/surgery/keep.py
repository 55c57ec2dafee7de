"""What is kept of a plan: a decision over its groups, branches and readers, and what it leaves of every tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any

import torch
from torch import Tensor

from headgate.channels.plan import Axis, Branch, Group, Plan
from headgate.channels.readers import Reader
from headgate.errors import ArgumentError

Site = Group | Branch | Reader
NAMED = 5


@dataclass(frozen=True)
class Keep:
    """One bool per unit of the plan's groups, and per narrowed branch or reader one bool per unit of it."""

    units: Tensor
    branches: Mapping[str, Tensor]
    readers: Mapping[str, Tensor] = field(default_factory=dict)


def sites(plan: Plan) -> dict[str, Site]:
    """Everything a gate can act on, by name."""
    found: list[Site] = [*plan.groups, *plan.branches, *plan.readers]
    return {site.name: site for site in found}


def first_names(names: Sequence[str]) -> str:
    """Names of sites for an error or a warning: the first few, quoted, and how many there are besides."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(map(repr, names[:NAMED])) + more


def channels_each(plan: Plan, site: Site) -> int:
    """How many channels one unit of a site is, where it is fewest: 1, or as many as a head or a norm group has.

    A place of every head counts as one, since of several heads one may be left. What is no layer's output, such as a
    table with a number for each head, does not count.
    """
    if not isinstance(site, Group) or plan.is_inner(site):
        return 1
    rows = [(name, axis) for name, axis in site.writers if not axis and name.rpartition(".")[2] in ("weight", "bias")]
    counts = (Counter(plan.along(axis, site)) for axis in (*(rows or site.writers), *site.readers))
    return min(min(count[unit] for unit in range(site.size)) for count in counts)


def multiple_in_units(plan: Plan, site: Site, channels: int) -> int:
    """Of which number the kept units must be a multiple for their channels to be one of `channels`."""
    return channels // gcd(channels, channels_each(plan, site)) if channels > 1 else 1


def chosen(plan: Plan, keep: Mapping[str, Tensor], operation: str = "shrink") -> Keep:
    """A checked decision from bool vectors by site name; sites that are missing are kept whole."""
    units, known = torch.ones(plan.size, dtype=torch.bool), sites(plan)
    branches: dict[str, Tensor] = {}
    readers: dict[str, Tensor] = {}
    for name, given in keep.items():
        if name not in known:
            raise ArgumentError(f"{operation}: the plan has no site {name!r}; print(plan) lists them")
        site, vector = known[name], _vector(name, given, operation)
        if vector.shape != (site.size,) or vector.dtype != torch.bool:
            raise ArgumentError(
                f"{operation}: keep[{name!r}] must be a bool vector of {site.size} entries, got {vector.dtype} of "
                f"shape {tuple(vector.shape)}"
            )
        if not bool(vector.any()) and not isinstance(site, Branch):
            raise ArgumentError(f"{operation}: keep[{name!r}] leaves none of its {site.size} units; keep at least one")
        if isinstance(site, Group):
            units[site.start : site.start + site.size] = vector
        elif not bool(vector.all()):
            (branches if isinstance(site, Branch) else readers)[name] = vector
    decision = Keep(units, branches, readers)
    for reader in plan.readers:
        if not bool(channels_read(plan, reader, decision)[1].any()):
            raise ArgumentError(f"{operation}: {reader.name!r} keeps none of the units that {reader.group!r} keeps")
    return decision


def _vector(name: str, given: Any, operation: str) -> Tensor:
    try:
        return torch.as_tensor(given, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(f"{operation}: keep[{name!r}] must be a bool vector, not {type(given).__name__}") from None


def stream_mask(plan: Plan, keep: Keep, axis: Axis) -> Tensor:
    """Which indices of an axis the groups leave, bool."""
    return plan.left(plan.axes[axis], keep.units)


def branch_mask(branch: Branch, keep: Keep) -> Tensor:
    """Which rows of a branch's last map the branch itself leaves, bool; all unless it was narrowed."""
    units = torch.tensor(branch.units)
    vector = keep.branches.get(branch.name)
    return torch.ones(len(units), dtype=torch.bool) if vector is None else vector[units]


def rows_left(plan: Plan, branch: Branch, keep: Keep) -> tuple[Tensor, Tensor]:
    """Of a branch's rows: which the stream leaves, and which of those the branch writes (at least one)."""
    axis = branch.sliced[0]
    stream = stream_mask(plan, keep, axis) if axis in plan.axes else torch.ones(len(branch.units), dtype=torch.bool)
    written = stream & branch_mask(branch, keep)
    if not bool(written.any()):
        # A layer needs one output; what a silent branch writes into it is zero.
        written[stream.nonzero()[-1]] = True
    return stream, written


def reader_mask(reader: Reader, keep: Keep, axis: Axis) -> Tensor:
    """Which indices of one of its axes a reader itself leaves, bool; all unless it was narrowed."""
    units = torch.tensor(reader.axes[axis])
    vector = keep.readers.get(reader.name)
    return torch.ones(len(units), dtype=torch.bool) if vector is None else vector[units]


def channels_read(plan: Plan, reader: Reader, keep: Keep) -> tuple[Tensor, Tensor]:
    """Of the channels at a branch's entry: which the stream leaves, and which of those the reader picks."""
    own = reader_mask(reader, keep, reader.entry)
    stream = stream_mask(plan, keep, reader.entry) if reader.entry in plan.axes else torch.ones_like(own)
    return stream, stream & own


def kept_masks(plan: Plan, keep: Keep) -> dict[Axis, Tensor]:
    """For every axis that may shrink, which indices stay, bool."""
    masks = {axis: stream_mask(plan, keep, axis) for axis in plan.axes}
    for branch in writing(plan, keep):
        if branch.name in keep.branches:
            _, written = rows_left(plan, branch, keep)
            masks.update(dict.fromkeys(branch.sliced, written))
    for reader in gathering(plan, keep):
        if reader.name in keep.readers:
            for axis in reader.axes:
                own = reader_mask(reader, keep, axis)
                masks[axis] = own & masks[axis] if axis in masks else own
    return masks


def silent_blocks(plan: Plan, keep: Keep) -> list[str]:
    """Blocks that have become their shortcut, since the branch they add writes nothing."""
    silent = [branch for branch in plan.branches if not bool(branch_mask(branch, keep).any())]
    return [branch.block for branch in silent if branch.block is not None]


def emptied_branches(plan: Plan, keep: Keep) -> list[Branch]:
    """Branches that write nothing, whose block stays, and that need not be computed any more."""
    silent = [branch for branch in plan.branches if not bool(branch_mask(branch, keep).any())]
    return [branch for branch in silent if branch.block is None and branch.inner]


def emptied_modules(plan: Plan, keep: Keep) -> set[str]:
    """Layers that only fed silence: the ends of emptied branches, and what led to them, other branches included."""
    return {path for branch in emptied_branches(plan, keep) for path in branch.inner}


def writing(plan: Plan, keep: Keep) -> list[Branch]:
    """Branches whose last layer is left: one within an emptied branch need not write anything, at its full width."""
    emptied = emptied_modules(plan, keep)
    return [branch for branch in plan.branches if branch.path not in emptied]


def gathering(plan: Plan, keep: Keep) -> list[Reader]:
    """Readers that are left: the entry of an emptied branch need not pick anything."""
    emptied = emptied_modules(plan, keep)
    return [reader for reader in plan.readers if reader.path not in emptied]


def random_vectors(among: Iterable[Site], seed: int) -> dict[str, Tensor]:
    """Some of every site's units, by name; a reader after its stream, of which it keeps at least one unit.

    Two sites of one size lose different numbers for the seeds 0 and 1 (unless there are very many): code that combines
    them must not get away with equal ones.
    """
    generator = torch.Generator().manual_seed(seed)
    vectors: dict[str, Tensor] = {}
    for number, site in enumerate(among):
        vector = torch.ones(site.size, dtype=torch.bool)
        most = max(1, site.size - 2)  # one channel that is left may pass by broadcasting
        closed = 1 + (number if seed % 2 == 0 else number // most) % most
        vector[torch.randperm(site.size, generator=generator)[:closed]] = False
        if isinstance(site, Reader) and site.group in vectors:
            vector[vectors[site.group].nonzero()[0]] = True
        vectors[site.name] = vector
    return vectors
