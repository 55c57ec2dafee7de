"""Which attributes of the user's modules really count units, where several have the same number: trials tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, islice

from headgate.channels.attributes import Attribute
from headgate.channels.plan import Group, Plan

# For attributes that touch the same groups; what is not found by then stays as it is.
_MOST_TRIALS = 40

# Given names of groups and a plan, why cutting them fails, or None.
Problem = Callable[[list[str], Plan], str | None]

# An attribute of all modules that play one part in the model: their path with its numbers left out, and its name.
Part = tuple[str, str]


def with_fitting_counts(plan: Plan, problem: Problem) -> Plan:
    """The plan with those attributes that must shrink for its groups to be cut: one choice for all layers of a kind.

    All that may be are tried first, then ever fewer. Where nothing works they are left as they are.
    """
    for parts, groups in _entangled(plan):
        plan = _fitted(plan, parts, groups, problem) or plan
    return plan


def fitting_counts_of(plan: Plan, group: Group, problem: Problem) -> Plan | None:
    """The plan with those attributes that must shrink for this group to be cut by itself; None where nothing works."""
    return _fitted(plan, sorted({_part(one) for one in counting(plan, group)}), [group.name], problem)


def counting(plan: Plan, group: Group) -> list[Attribute]:
    """The attributes that may count units of a group, alone or with others."""
    units = set(group.units)
    return [
        attribute
        for attribute, numbers in plan.counts.items()
        if not units.isdisjoint(unit for number in numbers for unit in plan.units_at(number))
    ]


def _fitted(plan: Plan, parts: list[Part], groups: list[str], problem: Problem) -> Plan | None:
    for dropped in islice(_more(parts), 1 + _MOST_TRIALS):
        counts = {one: units for one, units in plan.counts.items() if _part(one) not in dropped}
        candidate = replace(plan, counts=counts)
        if problem(groups, candidate) is None:
            return candidate
    return None


def _more(parts: list[Part]) -> Iterator[tuple[Part, ...]]:
    for count in range(len(parts) + 1):
        yield from combinations(parts, count)


def _part(attribute: Attribute) -> Part:
    return re.sub(r"\d+", "*", attribute.path), attribute.name


def _entangled(plan: Plan) -> list[tuple[list[Part], list[str]]]:
    """Attributes, by the part they play, with the names of the groups whose units they count.

    Those that count units of one group are decided together, since each may be what makes the other's trial fail.
    """
    touched: dict[Part, set[str]] = {}
    for attribute, units in plan.counts.items():
        counted = {unit for number in units for unit in plan.units_at(number)}
        here = {group.name for group in plan.groups if not counted.isdisjoint(group.units)}
        touched.setdefault(_part(attribute), set()).update(here)
    sets: list[tuple[set[Part], set[str]]] = []
    for part, names in touched.items():
        near = [one for one in sets if not one[1].isdisjoint(names)]
        sets = [one for one in sets if one[1].isdisjoint(names)]
        sets.append(({part}.union(*(parts for parts, _ in near)), names.union(*(other for _, other in near))))
    return [(sorted(parts), [g.name for g in plan.groups if g.name in names]) for parts, names in sets if names]
