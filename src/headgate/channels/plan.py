"""The plan: what can be removed from a model, as frozen data that prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor

from headgate.channels.attributes import Attribute, Units
from headgate.channels.held import HEADS, PLACES
from headgate.channels.obstacle import Obstacle
from headgate.channels.products import Products, numbered_products
from headgate.channels.readers import Reader

# The unit of an index that must stay.
STAYS = -1

Axis = tuple[str, int]
K = TypeVar("K", str, Axis, Attribute)


@dataclass(frozen=True)
class Group:
    """Units with the same fate structure: written by the same axes, read by the same axes.

    `made` names, in words, the operations by which the code itself makes tensors of this size, at every call. `summed`
    means that two activations are multiplied and summed over the units, as queries and keys are.
    """

    name: str
    start: int
    size: int
    writers: tuple[Axis, ...]
    readers: tuple[Axis, ...]
    stream: bool
    made: tuple[str, ...] = ()
    summed: bool = False

    @property
    def units(self) -> range:
        """The numbers of its units in the plan."""
        return range(self.start, self.start + self.size)


@dataclass(frozen=True)
class Branch:
    """The write side of a residual branch: the linear map at its end, whose rows can be silenced and cut.

    `units` numbers the rows by the stream's units, from 0; `group` names the stream's group where both have the same
    units in the same order, so that both can close in one order. `sliced` axes are cut in the small model, whose map
    then writes its narrow output back into place. A branch that is silent altogether leaves with its `block`, the
    module that only adds it to its input, if there is one. Else the modules in `inner`, the map and what only feeds
    it, need not compute anything any more; there are none where that cannot be shown.
    """

    name: str
    path: str
    dim: int
    units: tuple[int, ...]
    group: str | None
    masked: tuple[Axis, ...]
    sliced: tuple[Axis, ...]
    block: str | None
    inner: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of units."""
        return max(self.units) + 1


@dataclass(frozen=True)
class Refusal:
    """Channels that must stay: the axes that carry them, how many they are, and what stands in the way.

    `what` is told of the heads of an attention, or of places of heads, where the axes may shrink by the other ones.
    """

    axes: tuple[Axis, ...]
    size: int
    obstacles: tuple[Obstacle, ...]
    what: str = ""


@dataclass(frozen=True)
class Plan:
    """What can be removed from a model. `axes` gives, for every index of a named tensor's axis, its unit or STAYS.

    `may_count` are attributes of the user's own modules that may count units, with the axes that they may count, or ()
    for none; `picked` says which of these, by its number, or else the first. In all of these a number behind the last
    unit stands for several units, a head and a place, by `products`: it stays iff they all do.
    """

    groups: tuple[Group, ...]
    branches: tuple[Branch, ...]
    refusals: tuple[Refusal, ...]
    axes: Mapping[Axis, tuple[int, ...]]
    widths: Mapping[str, tuple[int, ...]]
    readers: tuple[Reader, ...] = ()
    may_count: Mapping[Attribute, tuple[Units, ...]] = field(default_factory=dict)
    picked: Mapping[Attribute, int] = field(default_factory=dict)
    products: Products = ()

    @cached_property
    def size(self) -> int:
        """Units over all groups."""
        return sum(group.size for group in self.groups)

    @cached_property
    def counts(self) -> Mapping[Attribute, Units]:
        """Attributes that shrink, with the units that they count."""
        return with_units({one: axes[self.picked.get(one, 0)] for one, axes in self.may_count.items()})

    def units_at(self, number: int) -> tuple[int, ...]:
        """The units that an index of this number carries; none if it stays."""
        if number >= self.size:
            return self.products[number - self.size]
        return () if number == STAYS else (number,)

    def along(self, axis: Axis, group: Group) -> tuple[int, ...]:
        """For every index of an axis its unit of this group, counted within the group; STAYS where it has none."""
        local = {
            number: unit - group.start
            for number in set(self.axes[axis])
            for unit in self.units_at(number)
            if unit in group.units
        }
        return tuple(local.get(number, STAYS) for number in self.axes[axis])

    def left(self, numbers: Sequence[int], kept: Tensor) -> Tensor:
        """Which indices with these numbers stay, bool, given which units do."""
        if max(numbers, default=STAYS) < self.size:
            units = torch.tensor([numbers])
        else:
            most = max(map(len, self.products))
            carried = (self.units_at(number) for number in numbers)
            units = torch.tensor([[*own, *[STAYS] * (most - len(own))] for own in carried]).T
        # The last entry is what stays.
        return torch.cat([kept, kept.new_ones(1)])[units].all(0)

    def is_inner(self, group: Group) -> bool:
        """Whether its units are places of every head, where heads are units too."""
        return group.start in self.places

    def parts_of_heads(self, group: Group) -> str:
        """What its units are, in words, where heads and places of heads both are units."""
        if self.is_inner(group):
            return PLACES
        return HEADS if any(factors[0] == group.start for factors in self.products) else ""

    @cached_property
    def places(self) -> frozenset[int]:
        """The units that are places of every head, where heads are units too."""
        return frozenset(unit for factors in self.products for unit in factors[1:])

    def __deepcopy__(self, memo: dict[int, object]) -> Plan:
        """Itself, since nothing can change it."""
        return self

    def written_into(self, branch: Branch) -> tuple[str | None, ...]:
        """The groups, by name, that the rows of a branch belong to; None stands for channels that stay."""
        rows = self.axes.get(branch.sliced[0], (STAYS,))
        found: dict[str | None, None] = {}
        for carried in (unit for row in rows for unit in self.units_at(row) or (STAYS,)):
            found[next((group.name for group in self.groups if carried in group.units), None)] = None
        return tuple(found)

    def without(self, reasons: Mapping[str, str]) -> Plan:
        """The plan after these sites, by name, have turned out to stay."""
        if not reasons:
            return self
        refusals = list(self.refusals)
        for group in self.groups:
            if group.name in reasons:
                path = group.name.partition("#")[0]
                obstacle = Obstacle(path, "trial", reasons[group.name])
                refusals.append(
                    Refusal(group.writers + group.readers, group.size, (obstacle,), self.parts_of_heads(group))
                )
        for branch in self.branches:
            if branch.name in reasons:
                obstacle = Obstacle(branch.path, "trial", reasons[branch.name])
                refusals.append(Refusal(branch.sliced, branch.size, (obstacle,)))
        for reader in self.readers:
            if reader.name in reasons:
                obstacle = Obstacle(reader.path, "trial", reasons[reader.name])
                refusals.append(Refusal(reader.masked, reader.size, (obstacle,)))
        branches = tuple(branch for branch in self.branches if branch.name not in reasons)
        readers = tuple(reader for reader in self.readers if reader.name not in reasons)
        left = {group.name: group.name for group in self.groups if group.name not in reasons}
        return replace(self._with_groups(left), branches=branches, readers=readers, refusals=tuple(refusals))

    def with_tied(self, tied: Mapping[str, str]) -> Plan:
        """The plan in which each of these groups, by name, goes unit by unit with another one of its size."""
        return self._with_groups({group.name: tied.get(group.name, group.name) for group in self.groups})

    def _with_groups(self, becomes: Mapping[str, str]) -> Plan:
        """Only the groups that are named, each as what it becomes: itself, or one before or behind it."""
        groups: dict[str, Group] = {}
        numbers: dict[int, int] = {}
        for group in sorted((g for g in self.groups if g.name in becomes), key=lambda g: becomes[g.name] != g.name):
            first = groups.get(becomes[group.name])
            start = sum(one.size for one in groups.values()) if first is None else first.start
            numbers.update(zip(group.units, range(start, start + group.size), strict=True))
            if first is None:
                groups[group.name] = replace(group, start=start)
            else:
                writers, readers = {*first.writers, *group.writers}, {*first.readers, *group.readers}
                made = tuple(dict.fromkeys((*first.made, *group.made)))
                both = replace(first, writers=tuple(sorted(writers - readers)), readers=tuple(sorted(readers)))
                groups[first.name] = replace(both, made=made, summed=first.summed or group.summed)
        behind, products = numbered_products(dict(enumerate(self.products, self.size)), numbers)
        numbers |= behind
        axes = {axis: renumbered(list(units), numbers) for axis, units in self.axes.items()}
        widths = {path: renumbered(list(units), numbers) for path, units in self.widths.items()}
        # Each axis keeps its number, by which it is picked.
        may = {one: tuple(renumbered(list(units), numbers) for units in many) for one, many in self.may_count.items()}
        kept = (with_units(axes), with_units(widths), self.readers, may, self.picked, products)
        return Plan(tuple(groups.values()), self.branches, self.refusals, *kept)

    def __str__(self) -> str:
        rows = [("group", "units", "written by", "read by")]
        for group in self.groups:
            rows.append((group.name, str(group.size), _listed(group.writers), _listed(group.readers)))
        text = _table(rows)
        if self.refusals:
            stays = [("stays", "size", "because")]
            for refusal in self.refusals:
                why = "; ".join(map(str, refusal.obstacles[:2]))
                what = f"{refusal.what}: " if refusal.what else ""
                stays.append((what + _listed(refusal.axes, sides=True), str(refusal.size), why))
            text += "\n\n" + _table(stays)
        if self.branches:
            writes = [("branch", "units", "written into")]
            writes += [(branch.name, str(branch.size), _into(self.written_into(branch))) for branch in self.branches]
            text += "\n\n" + _table(writes)
        if self.readers:
            reads = [("reader", "units", "reads from", "through")]
            for reader in self.readers:
                row = (reader.group or "channels that stay", _listed(reader.masked))
                reads.append((reader.name, str(reader.size), *row))
            text += "\n\n" + _table(reads)
        return text


def with_units(units: dict[K, Units]) -> Mapping[K, Units]:
    """Only what can lose something."""
    return MappingProxyType({key: numbers for key, numbers in units.items() if any(n != STAYS for n in numbers)})


def renumbered(units: list[int], numbers: dict[int, int]) -> tuple[int, ...]:
    """The units by their new numbers; those that have none stay."""
    return tuple(numbers.get(unit, STAYS) for unit in units)


def _listed(axes: Iterable[Axis], sides: bool = False) -> str:
    names = [f"{name} ({'in' if axis else 'out'})" if sides else name for name, axis in axes]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _into(groups: Iterable[str | None]) -> str:
    return ", ".join(group or "channels that stay" for group in groups)


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
