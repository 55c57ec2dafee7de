"""What states of the gates leave of a network, for many states at once and without touching the network.

A state is one bool per unit of every site, laid end to end: groups, branches, readers. Every index of every axis that
may shrink names some units that must all stay, of groups (one, or a head and a place), of a branch and of a reader, so
that counts are sums of products of a state's entries, and what is left of a parameter is the product of the counts of
its axes. All of it is arithmetic on tensors, on any device, and reads nothing back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from headgate.channels.plan import STAYS, Axis, Branch, Plan
from headgate.surgery.keep import sites
from headgate.surgery.recipe import within

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Term:
    """Something that costs `each` for every element of some parameters, as long as it is used.

    `users` holds, for every way it is used, the branches (by number in the plan) without which that way is gone.
    """

    name: str
    parameters: tuple[str, ...]
    each: int
    users: tuple[frozenset[int], ...]


class Sizes:
    """The cost of states, as a sum of terms.

    Args:
        plan: what can be removed.
        shapes: of the parameters of the network without gates.
        terms: what costs how much.
    """

    def __init__(self, plan: Plan, shapes: Mapping[str, Shape], terms: Sequence[Term]) -> None:
        self.plan, self.terms = plan, tuple(terms)
        self.columns: dict[str, slice] = {}
        end = 0
        for name, site in sites(plan).items():
            self.columns[name] = slice(end, end + site.size)
            end += site.size
        self.units = end  # the column behind the last is always kept
        used = list(dict.fromkeys(name for term in terms for name in term.parameters))
        self._entries, self._segments, self._least, places = self._axes(shapes, used)
        self._factors, self._rest = _products(used, shapes, places)
        number = {name: index for index, name in enumerate(used)}
        pairs = [(index, number[name]) for index, term in enumerate(terms) for name in term.parameters]
        self._term_of, self._parameter_of = _columns(pairs)
        self._each = torch.tensor([term.each for term in terms], dtype=torch.int64)
        ways = [(index, users) for index, term in enumerate(terms) for users in term.users]
        self._term_of_way = torch.tensor([index for index, _ in ways], dtype=torch.int64)
        self._way, self._branch = _columns([(way, b) for way, (_, users) in enumerate(ways) for b in sorted(users)])
        of_branches = [self.columns[branch.name] for branch in plan.branches]
        units = [(column, number) for number, one in enumerate(of_branches) for column in range(one.start, one.stop)]
        self._branch_units, self._branch_of_unit = _columns(units)

    def to(self, device: torch.device) -> Sizes:
        """The same for states on a device."""
        moved = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(moved, name, value.to(device))
        return moved

    def state(self, keep: Mapping[str, Tensor]) -> Tensor:
        """The state of a decision by site; sites that are missing are kept whole. Shape (units + 1,)."""
        state = torch.ones(self.units + 1, dtype=torch.bool)
        for name, vector in keep.items():
            state[self.columns[name]] = vector.cpu()
        return state

    def by_term(self, states: Tensor) -> Tensor:
        """What each term costs in each state: shapes (states, units + 1) to (states, terms), int64."""
        sums = self._zeros(states, len(self.terms))
        sums.index_add_(1, self._term_of, self._elements(states)[:, self._parameter_of])
        return sums * self._each * self._in_use(states)

    def total(self, states: Tensor) -> Tensor:
        """What each state costs: shapes (states, units + 1) to (states,), int64."""
        return self.by_term(states).sum(1)

    def _elements(self, states: Tensor) -> Tensor:
        """How many elements of each parameter are left, (states, parameters)."""
        left = states[:, self._entries].all(2).to(torch.int64)
        counts = self._zeros(states, len(self._least) + 1)
        counts.index_add_(1, self._segments, left)
        counts[:, :-1] = torch.maximum(counts[:, :-1], self._least)
        counts[:, -1] = 1
        return counts[:, self._factors].prod(2) * self._rest

    def _in_use(self, states: Tensor) -> Tensor:
        """Which terms are still used at all, (states, terms)."""
        left = self._zeros(states, len(self.plan.branches))
        left.index_add_(1, self._branch_of_unit, states[:, self._branch_units].to(torch.int64))
        missing = self._zeros(states, len(self._term_of_way))
        missing.index_add_(1, self._way, (left == 0)[:, self._branch].to(torch.int64))
        used = self._zeros(states, len(self.terms))
        return used.index_add_(1, self._term_of_way, (missing == 0).to(torch.int64)) > 0

    def _zeros(self, states: Tensor, columns: int) -> Tensor:
        return torch.zeros(len(states), columns, dtype=torch.int64, device=states.device)

    def _axes(self, shapes: Mapping[str, Shape], used: Sequence[str]) -> tuple[Tensor, Tensor, Tensor, dict[Axis, int]]:
        """For every index of every axis the units it needs; its axis' number; the least count; numbers of axes.

        Axes that need the same units index by index are one.
        """
        wanted = set(used)
        found: dict[tuple[tuple[Shape, ...], int], int] = {}
        places: dict[Axis, int] = {}
        for axis in self._shrinking():
            if axis[0] in wanted:
                key = self._needs(axis, shapes[axis[0]][axis[1]])
                places[axis] = found.setdefault(key, len(found))
        entries = [torch.tensor(needs).T for needs, _ in found]
        lengths = torch.tensor([len(needs[0]) for needs, _ in found], dtype=torch.int64)
        return (
            torch.cat(entries) if entries else torch.zeros(0, 1, dtype=torch.int64),
            torch.repeat_interleave(torch.arange(len(found)), lengths),
            torch.tensor([least for _, least in found], dtype=torch.int64),
            places,
        )

    def _shrinking(self) -> dict[Axis, None]:
        plan = self.plan
        return dict.fromkeys(
            [
                *plan.axes,
                *(axis for branch in plan.branches for axis in branch.sliced),
                *(axis for reader in plan.readers for axis in reader.axes),
            ]
        )

    def _needs(self, axis: Axis, length: int) -> tuple[tuple[Shape, ...], int]:
        """For every index the units of its groups, branch and reader, and how many stay at least.

        A layer whose branch is silent but stays has one output.
        """
        always, plan = self.units, self.plan
        units = [plan.units_at(number) for number in plan.axes.get(axis, (STAYS,) * length)]
        most = max(map(len, plan.products), default=1)
        groups = (tuple(own[place] if place < len(own) else always for own in units) for place in range(most))
        branch = next((one for one in plan.branches if axis in one.sliced), None)
        reader = next((one for one in plan.readers if axis in one.axes), None)
        whole = (always,) * length
        needs = (
            *groups,
            whole if branch is None else tuple(self.columns[branch.name].start + unit for unit in branch.units),
            whole if reader is None else tuple(self.columns[reader.name].start + unit for unit in reader.axes[axis]),
        )
        return needs, 0 if branch is None else 1


def parameter_terms(plan: Plan, shapes: Mapping[str, Shape], aliases: Mapping[str, str]) -> list[Term]:
    """One term for each parameter: its elements, gone when everything that holds it is."""
    names: dict[str, list[str]] = {name: [] for name in shapes}
    for alias, name in aliases.items():
        if name in names:
            names[name].append(alias)
    return [
        Term(
            name,
            (name,),
            1,
            tuple(
                frozenset(number for number, branch in enumerate(plan.branches) if within(alias, leaving(branch)))
                for alias in held
            ),
        )
        for name, held in names.items()
    ]


def leaving(branch: Branch) -> set[str]:
    """The modules that leave with a branch once it is silent."""
    return {branch.block} if branch.block is not None else set(branch.inner)


def _products(used: Sequence[str], shapes: Mapping[str, Shape], places: Mapping[Axis, int]) -> tuple[Tensor, Tensor]:
    """For each parameter its shrinking axes by number, filled up with one that counts 1, and what never shrinks."""
    shrinking = [[places[name, axis] for axis in range(len(shapes[name])) if (name, axis) in places] for name in used]
    rest = [prod(n for axis, n in enumerate(shapes[name]) if (name, axis) not in places) for name in used]
    most = max((len(numbers) for numbers in shrinking), default=0)
    one = len(set(places.values()))
    filled = [numbers + [one] * (most - len(numbers)) for numbers in shrinking]
    return torch.tensor(filled, dtype=torch.int64).view(len(used), most), torch.tensor(rest, dtype=torch.int64)


def _columns(pairs: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    table = torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
    return table[:, 0], table[:, 1]
