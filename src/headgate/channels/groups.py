"""Groups of channels that live and die together, as frozen data that prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from torch import Tensor, nn
from torch.export import ExportedProgram

from headgate.channels.entries import View, view_of
from headgate.channels.feeding import feeding_modules
from headgate.channels.ledger import Ledger, Obstacle, Solution
from headgate.channels.parts import graphs
from headgate.channels.readers import Reader, found_readers
from headgate.channels.rules.step import MADE
from headgate.channels.trace import Example, Walk, aliases
from headgate.channels.values import Origin

# The unit of an index that must stay.
STAYS = -1

Axis = tuple[str, int]
K = TypeVar("K", str, Axis)


@dataclass(frozen=True)
class Group:
    """Units with the same fate structure: written by the same axes, read by the same axes."""

    name: str
    start: int
    size: int
    writers: tuple[Axis, ...]
    readers: tuple[Axis, ...]
    stream: bool

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
    """Channels that must stay: the axes that carry them, how many they are, and what stands in the way."""

    axes: tuple[Axis, ...]
    size: int
    obstacles: tuple[Obstacle, ...]


@dataclass(frozen=True)
class Plan:
    """What can be removed from a model. `axes` gives, for every index of a named tensor's axis, its unit or STAYS."""

    groups: tuple[Group, ...]
    branches: tuple[Branch, ...]
    refusals: tuple[Refusal, ...]
    axes: Mapping[Axis, tuple[int, ...]]
    widths: Mapping[str, tuple[int, ...]]
    readers: tuple[Reader, ...] = ()

    @property
    def size(self) -> int:
        """Units over all groups."""
        return sum(group.size for group in self.groups)

    def written_into(self, branch: Branch) -> tuple[str | None, ...]:
        """The groups, by name, that the rows of a branch belong to; None stands for channels that stay."""
        rows = self.axes.get(branch.sliced[0], (STAYS,))
        found: dict[str | None, None] = {}
        for row in rows:
            found[next((group.name for group in self.groups if row in group.units), None)] = None
        return tuple(found)

    def without(self, reasons: Mapping[str, str]) -> Plan:
        """The plan after these sites, by name, have turned out to stay."""
        if not reasons:
            return self
        groups: list[Group] = []
        numbers: dict[int, int] = {}
        refusals = list(self.refusals)
        for group in self.groups:
            if group.name in reasons:
                path = group.name.partition("#")[0]
                obstacle = Obstacle(path, "trial", reasons[group.name])
                refusals.append(Refusal(group.writers + group.readers, group.size, (obstacle,)))
            else:
                numbers.update(zip(group.units, range(len(numbers), len(numbers) + group.size), strict=True))
                groups.append(replace(group, start=numbers[group.start]))
        axes = {axis: _renumber(list(units), numbers) for axis, units in self.axes.items()}
        widths = {path: _renumber(list(units), numbers) for path, units in self.widths.items()}
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
        return Plan(tuple(groups), branches, tuple(refusals), _with_units(axes), _with_units(widths), readers)

    def __str__(self) -> str:
        rows = [("group", "units", "written by", "read by")]
        for group in self.groups:
            rows.append((group.name, str(group.size), _listed(group.writers), _listed(group.readers)))
        text = _table(rows)
        if self.refusals:
            stays = [("stays", "size", "because")]
            for refusal in self.refusals:
                why = "; ".join(map(str, refusal.obstacles[:2]))
                stays.append((_listed(refusal.axes, sides=True), str(refusal.size), why))
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


def analysed(model: nn.Module, example: Example, readers: bool, operation: str) -> Plan:
    """Which channels of `model` can be removed together by all that its graph tells; nothing has been tried yet.

    With `readers`, the entries of residual branches are looked for too. Errors are told in the name of `operation`.

    Raises:
        ArgumentError: the model does not run on the example.
        ShapeError: a hand-placed gate does not fit the tensor that it meets, by its path.
        TraceError: `torch.export` can trace neither the model nor a part of it.
    """
    names, ledger = aliases(model), Ledger()
    parameters = frozenset(name for name, _ in model.named_parameters())
    widths: dict[str, Tensor] = {}
    views: list[View] = []
    found = list(graphs(model, example, operation))
    for graph in found:
        walk = Walk(ledger, names, parameters, widths, part=graph.part)
        walk.run(graph.program)
        if readers:
            views.append(view_of(graph.program, walk, model))
    return with_inner(plan_of(ledger.solve(), widths, names, views), model, [graph.program for graph in found])


def with_inner(plan: Plan, model: nn.Module, programs: Sequence[ExportedProgram]) -> Plan:
    """The plan with what only feeds the end of each branch, if that is all of what would be cut with an end in it."""
    inner = feeding_modules(model, programs, [branch.path for branch in plan.branches])
    cut = {branch.path: {name.rpartition(".")[0] for name, _ in branch.sliced} for branch in plan.branches}
    whole = {end: paths for end, paths in inner.items() if all(cut.get(path, set()) <= {*paths} for path in paths)}
    return replace(plan, branches=tuple(replace(b, inner=whole.get(b.path, ())) for b in plan.branches))


def plan_of(solution: Solution, widths: dict[str, Tensor], names: dict[str, str], views: Sequence[View] = ()) -> Plan:
    """The plan of a solved ledger.

    `widths` are what norms without parameters normalise, `names` the model's order, `views` where readers are sought.
    """
    where = _axes_of_units(solution)
    prunable: dict[frozenset[Axis], list[int]] = {}
    refused: dict[tuple[frozenset[Axis], tuple[Obstacle, ...]], list[int]] = {}
    for unit, axes in where.items():
        stored = frozenset(axis for axis in axes if not axis[0].startswith(MADE))
        if not solution.fixed[unit] and stored & solution.readers and (stored - solution.readers or stored == axes):
            prunable.setdefault(stored, []).append(unit)
        elif stored and (why := _reasons(unit, axes, solution)):
            refused.setdefault((stored, why), []).append(unit)
    for axes, units in [(axes, units) for axes, units in prunable.items() if len(units) == 1]:
        path = _group_name(axes - solution.readers or axes, list(names), set())
        why = (Obstacle(path, "units", "all its channels live and die together, and one must live"),)
        refused.setdefault((axes, why), []).extend(units)
        del prunable[axes]
    groups, numbers = _numbered(prunable, solution, list(names))
    numbered = {axis: _renumber(units.tolist(), numbers) for axis, units in solution.axes.items()}
    readers, unread = found_readers(views, solution, numbers, groups)
    cannot_gather = (Refusal((axis,), len(solution.axes[axis]), (obstacle,)) for axis, obstacle in unread)
    return Plan(
        groups,
        tuple(_branch(origin, solution, numbers, groups) for origin in solution.branches),
        (*(Refusal(_sorted(axes), len(units), why) for (axes, why), units in refused.items()), *cannot_gather),
        _with_units({axis: units for axis, units in numbered.items() if not axis[0].startswith(MADE)}),
        _with_units({path: _renumber(solution.roots[labels].tolist(), numbers) for path, labels in widths.items()}),
        readers,
    )


def _with_units(units: dict[K, tuple[int, ...]]) -> Mapping[K, tuple[int, ...]]:
    """Only what can lose something."""
    return MappingProxyType({key: numbers for key, numbers in units.items() if any(n != STAYS for n in numbers)})


def _reasons(unit: int, axes: frozenset[Axis], solution: Solution) -> tuple[Obstacle, ...]:
    if not solution.fixed[unit] and any(name.startswith(MADE) for name, _ in axes):
        return (Obstacle("", "code", "reads a tensor that the code makes in a size of its own"),)
    return tuple(solution.obstacles.get(unit, ()))


def _axes_of_units(solution: Solution) -> dict[int, frozenset[Axis]]:
    where: dict[int, set[Axis]] = {}
    for axis, units in solution.axes.items():
        for unit in units.unique().tolist():
            where.setdefault(unit, set()).add(axis)
    return {unit: frozenset(axes) for unit, axes in sorted(where.items())}


def _numbered(
    prunable: dict[frozenset[Axis], list[int]], solution: Solution, order: list[str]
) -> tuple[tuple[Group, ...], dict[int, int]]:
    """Groups in the model's order, and the plan's number of every prunable unit."""
    groups: list[Group] = []
    numbers: dict[int, int] = {}
    taken: set[str] = set()
    for axes, units in prunable.items():
        writers, readers = axes - solution.readers, axes & solution.readers
        name = _group_name(writers or readers, order, taken)
        stream = any(unit in solution.sums for unit in units)
        groups.append(Group(name, len(numbers), len(units), _sorted(writers), _sorted(readers), stream))
        numbers.update(zip(units, range(len(numbers), len(numbers) + len(units)), strict=True))
    return tuple(groups), numbers


def _branch(origin: Origin, solution: Solution, numbers: dict[int, int], groups: tuple[Group, ...]) -> Branch:
    roots = solution.roots[origin.labels].tolist()
    local = {root: number for number, root in enumerate(dict.fromkeys(roots))}
    stream = [numbers.get(root, STAYS) for root in local]
    group = next((group.name for group in groups if stream == list(group.units)), None)
    units = tuple(local[root] for root in roots)
    return Branch(
        f"{origin.path}:write", origin.path, origin.dim, units, group, origin.masked, origin.sliced, origin.block
    )


def _group_name(axes: Iterable[Axis], order: list[str], taken: set[str]) -> str:
    """The path of the first module, in the model's order, whose weight writes the group; numbered where several do."""
    first = min((name for name, _ in axes), key=lambda name: (not name.endswith("weight"), order.index(name)))
    path = first.rpartition(".")[0] or first
    name, count = path, 1
    while name in taken:
        count += 1
        name = f"{path}#{count}"
    taken.add(name)
    return name


def _renumber(units: list[int], numbers: dict[int, int]) -> tuple[int, ...]:
    return tuple(numbers.get(unit, STAYS) for unit in units)


def _sorted(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    return tuple(sorted(axes))


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
