"""Readers of streams: the entries of residual branches in terms of the plan's units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from headgate.channels.entries import Axis, Entry, View, agreed
from headgate.channels.ledger import Solution
from headgate.channels.obstacle import Obstacle

if TYPE_CHECKING:
    from headgate.channels.plan import Group


@dataclass(frozen=True)
class Reader:
    """The read side of one residual branch: the layer at its entry, which can pick some of its stream's channels.

    `axes` gives, for every index of every axis that is cut with them, the unit of the stream it carries, counted from
    0; along `entry` they are the channels that the layer at `path` picks. The `masked` axes sum over them. `group`
    names the stream's group; None if the stream itself must stay.
    """

    name: str
    path: str
    group: str | None
    entry: Axis
    masked: tuple[Axis, ...]
    axes: Mapping[Axis, tuple[int, ...]]

    @property
    def size(self) -> int:
        """Number of units."""
        return max(self.axes[self.entry]) + 1


def found_readers(
    views: Sequence[View], solution: Solution, numbers: dict[int, int], groups: tuple[Group, ...]
) -> tuple[tuple[Reader, ...], list[tuple[Axis, Obstacle]]]:
    """The entries that can gather, and for those that cannot the axis that stays and what stands in the way."""
    entries, refused = agreed(views)
    readers = []
    for entry in entries:
        reader = _reader(entry, solution, numbers, groups)
        if reader is None:
            why = "does not read all channels of exactly one stream"
            refused.append((entry.axis, Obstacle(entry.path, "gather", why)))
        else:
            readers.append(reader)
    return tuple(readers), refused


def _reader(entry: Entry, solution: Solution, numbers: dict[int, int], groups: tuple[Group, ...]) -> Reader | None:
    """The entry by the units of its stream, which is one whole group or stays whole."""
    roots = solution.axes[entry.axis].unique(sorted=True).tolist()
    units = sorted(numbers[root] for root in roots if root in numbers)
    group = next((group for group in groups if units == list(group.units)), None)
    whole = not units if group is None else len(units) == len(roots)
    if len(roots) < 2 or not whole:
        return None
    local = {root: place if group is None else numbers[root] - group.start for place, root in enumerate(roots)}
    found = {axis: solution.axes[axis].tolist() for axis in entry.sliced}
    if any(root not in local for indices in found.values() for root in indices):
        return None
    axes = MappingProxyType({axis: tuple(local[root] for root in indices) for axis, indices in found.items()})
    name = None if group is None else group.name
    return Reader(f"{entry.path}:read", entry.path, name, entry.axis, entry.masked, axes)
