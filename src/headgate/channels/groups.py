"""Which channels live and die together: from a model's graphs to its plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from torch import Tensor, nn
from torch.export import ExportedProgram

from headgate.channels.attributes import Length, Lengths, counted
from headgate.channels.entries import View, view_of
from headgate.channels.example import Example
from headgate.channels.feeding import feeding_modules
from headgate.channels.ledger import NO_UNIT, Ledger, Solution
from headgate.channels.obstacle import Obstacle
from headgate.channels.parts import graphs
from headgate.channels.plan import STAYS, Axis, Branch, Group, Plan, Refusal, renumbered, with_units
from headgate.channels.products import numbered_products
from headgate.channels.readers import found_readers
from headgate.channels.rules.step import MADE
from headgate.channels.trace import aliases
from headgate.channels.values import Origin
from headgate.channels.walk import Walk

# What units of one group have in common: their axes, those along which a mask silences them, whether they are places.
_Alike = tuple[frozenset[Axis], frozenset[Axis], bool]


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
    lengths: list[Length] = []
    found = list(graphs(model, example, operation))
    for graph in found:
        walk = Walk(ledger, names, parameters, widths, part=graph.part)
        walk.run(graph.program)
        lengths += walk.lengths
        if readers:
            views.append(view_of(graph.program, walk, model))
    solution = ledger.solve()
    plan, numbers = plan_of(solution, widths, names, views)
    plan = with_inner(plan, model, [graph.program for graph in found])
    may_count = counted(model, example, in_units(lengths, solution, numbers), plan.places)
    return replace(plan, may_count=MappingProxyType(may_count))


def in_units(lengths: Sequence[Length], solution: Solution, numbers: dict[int, int]) -> Lengths:
    """Axes whose sizes the code gives, by the plan's units, each once."""
    found = ((paths, solution.roots[labels[labels != NO_UNIT]].tolist()) for paths, labels in lengths)
    return dict.fromkeys((paths, renumbered(roots, numbers)) for paths, roots in found)


def with_inner(plan: Plan, model: nn.Module, programs: Sequence[ExportedProgram]) -> Plan:
    """The plan with what only feeds the end of each branch, if that is all of what would be cut with an end in it."""
    inner = feeding_modules(model, programs, [branch.path for branch in plan.branches])
    cut = {branch.path: {name.rpartition(".")[0] for name, _ in branch.sliced} for branch in plan.branches}
    whole = {end: paths for end, paths in inner.items() if all(cut.get(path, set()) <= {*paths} for path in paths)}
    return replace(plan, branches=tuple(replace(b, inner=whole.get(b.path, ())) for b in plan.branches))


def plan_of(
    solution: Solution, widths: dict[str, Tensor], names: dict[str, str], views: Sequence[View] = ()
) -> tuple[Plan, dict[int, int]]:
    """The plan of a solved ledger, and the plan's number of every unit of it that can be removed.

    `widths` are what norms without parameters normalise, `names` the model's order, `views` where readers are sought.
    """
    where = _axes_of_units(solution)
    prunable: dict[_Alike, list[int]] = {}
    inner = {unit for factors in solution.products.values() for unit in factors[1:]}
    refused: dict[tuple[frozenset[Axis], tuple[Obstacle, ...]], list[int]] = {}
    for unit, axes in where.items():
        stored = _stored(axes)
        masked = solution.masked(unit, stored)
        if not solution.fixed[unit] and masked and (stored - masked or stored == axes):
            prunable.setdefault((stored, masked, unit in inner), []).append(unit)
        elif stored and (why := _reasons(unit, axes, solution)):
            refused.setdefault((stored, why), []).append(unit)
    for key, units in [(key, units) for key, units in prunable.items() if len(units) == 1]:
        axes, masked, _ = key
        path = _group_name(axes - masked or axes, list(names), set())
        why = (Obstacle(path, "units", "all its channels live and die together, and one must live"),)
        refused.setdefault((axes, why), []).extend(units)
        del prunable[key]
    groups, numbers = _numbered(prunable, where, solution, list(names))
    behind, products = numbered_products(solution.products, numbers)
    numbers |= behind
    numbered = {axis: renumbered(units.tolist(), numbers) for axis, units in solution.axes.items()}
    readers, unread = found_readers(views, solution, numbers, groups)
    cannot_gather = (Refusal((axis,), len(solution.axes[axis]), (obstacle,)) for axis, obstacle in unread)
    plan = Plan(
        groups,
        tuple(_branch(origin, solution, numbers, groups) for origin in solution.branches),
        (
            *(Refusal(_sorted(axes), len(units), why) for (axes, why), units in refused.items()),
            *(Refusal(_sorted(_stored(one.axes)), one.size, one.obstacles, one.what) for one in solution.held),
            *cannot_gather,
        ),
        with_units({axis: units for axis, units in numbered.items() if not axis[0].startswith(MADE)}),
        with_units({path: renumbered(solution.roots[labels].tolist(), numbers) for path, labels in widths.items()}),
        readers,
        products=products,
    )
    return plan, numbers


def _reasons(unit: int, axes: frozenset[Axis], solution: Solution) -> tuple[Obstacle, ...]:
    if not solution.fixed[unit] and any(name.startswith(MADE) for name, _ in axes):
        return (Obstacle("", "code", "reads a tensor that the code makes in a size of its own"),)
    return tuple(solution.obstacles.get(unit, ()))


def _stored(axes: Iterable[Axis]) -> frozenset[Axis]:
    """Without those of tensors that the code makes."""
    return frozenset(axis for axis in axes if not axis[0].startswith(MADE))


def _axes_of_units(solution: Solution) -> dict[int, frozenset[Axis]]:
    where: dict[int, set[Axis]] = {}
    for axis, units in solution.axes.items():
        for number in units.unique().tolist():
            for unit in solution.products.get(number, (number,)):
                where.setdefault(unit, set()).add(axis)
    return {unit: frozenset(axes) for unit, axes in sorted(where.items())}


def _numbered(
    prunable: dict[_Alike, list[int]], where: Mapping[int, frozenset[Axis]], solution: Solution, order: list[str]
) -> tuple[tuple[Group, ...], dict[int, int]]:
    """Groups in the model's order, and the plan's number of every prunable unit."""
    groups: list[Group] = []
    numbers: dict[int, int] = {}
    taken: set[str] = set()
    for (axes, readers, _), units in prunable.items():
        writers = axes - readers
        name = _group_name(writers or readers, order, taken)
        stream = any(unit in solution.sums for unit in units)
        made = tuple(name.removeprefix(MADE) for name, _ in _sorted(where[units[0]] - _stored(where[units[0]])))
        facts = (_sorted(writers), _sorted(readers), stream, made, units[0] in solution.silenced)
        groups.append(Group(name, len(numbers), len(units), *facts))
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
    first = min((name for name, _ in axes), key=lambda name: (not _is_weight(name), order.index(name)))
    path = first.rpartition(".")[0] or first
    name, count = path, 1
    while name in taken:
        count += 1
        name = f"{path}#{count}"
    taken.add(name)
    return name


def _is_weight(name: str) -> bool:
    """By its name: `weight`, `in_proj_weight`, `weight_ih_l0`."""
    leaf = name.rpartition(".")[2]
    return leaf.endswith("weight") or leaf.startswith("weight_")


def _sorted(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    return tuple(sorted(axes))
