"""Which attributes of the user's modules really count units, and of which axis, where several fit: trials tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, islice, product

from headgate.channels.attributes import Attribute, Units
from headgate.channels.plan import STAYS, Group, Plan

# For attributes that touch the same groups; what is not found by then stays as it is.
_MOST_TRIALS = 40

# For each attribute the number of the axis that it is taken to count.
Choice = dict[Attribute, int]

# Given names of groups and a plan, why cutting them fails, or None.
Problem = Callable[[list[str], Plan], str | None]

# An attribute of all modules that play one part in the model: their path with its numbers left out, and its name.
Part = tuple[str, str]


def with_fitting_counts(plan: Plan, problem: Problem) -> Plan:
    """The plan with those attributes that must shrink for its groups to be cut: one choice for all layers of a kind.

    What is likely is tried first, then whatever differs from it in ever more attributes. Where nothing works they are
    left as they are.
    """
    for parts, groups in _entangled(plan):
        plan = _fitted(plan, parts, groups, problem) or plan
    return plan


def fitting_counts_of(plan: Plan, group: Group, problem: Problem) -> Plan | None:
    """The plan with those attributes that must shrink for this group to be cut by itself; None where nothing works."""
    return _fitted(plan, sorted({_part(one) for one in counting(plan, group)}), [group.name], problem)


def counting(plan: Plan, group: Group) -> list[Attribute]:
    """The attributes that may count units of a group, alone or with others."""
    return [one for one, axes in plan.may_count.items() if any(_seen(plan, axis, {*group.units}) for axis in axes)]


def _seen(plan: Plan, axis: Units, units: set[int]) -> Units:
    """An axis as it looks where only these units may go; () if it has none of them."""
    seen = tuple(number if not units.isdisjoint(plan.units_at(number)) else STAYS for number in axis)
    return seen if any(number != STAYS for number in seen) else ()


def _fitted(plan: Plan, parts: list[Part], groups: list[str], problem: Problem) -> Plan | None:
    for choice in islice(_choices(plan, parts, groups), 1 + _MOST_TRIALS):
        candidate = replace(plan, picked={**plan.picked, **choice})
        if problem(groups, candidate) is None:
            return candidate
    return None


def _choices(plan: Plan, parts: list[Part], groups: list[str]) -> Iterator[Choice]:
    """What these parts may count, as they are taken to be at first; only what makes a difference to these groups."""
    units = {unit for group in plan.groups if group.name in groups for unit in group.units}
    others = {part: _others(plan, [one for one in plan.may_count if _part(one) == part], units) for part in parts}
    for count in range(len(parts) + 1):
        for several in combinations(parts, count):
            for choices in product(*(others[part] for part in several)):
                yield {one: number for choice in choices for one, number in choice.items()}


def _others(plan: Plan, alike: list[Attribute], units: set[int]) -> list[Choice]:
    """What attributes that play one part may count, other than what they are taken to count."""

    def seen(choice: Choice) -> tuple[Units, ...]:
        return tuple(_seen(plan, plan.may_count[one][number], units) for one, number in choice.items())

    now = {one: plan.picked.get(one, 0) for one in alike}
    found = {seen(now): now}
    for number in range(max(len(plan.may_count[one]) for one in alike)):
        choice = {one: number if number < len(plan.may_count[one]) else now[one] for one in alike}
        found.setdefault(seen(choice), choice)
    return list(found.values())[1:]


def _part(attribute: Attribute) -> Part:
    return re.sub(r"\d+", "*", attribute.path), attribute.name


def _entangled(plan: Plan) -> list[tuple[list[Part], list[str]]]:
    """Attributes, by the part they play, with the names of the groups whose units they may count.

    Those that may count units of one group are decided together, since each may be what makes the other's trial fail.
    """
    touched: dict[Part, set[str]] = {}
    for attribute, axes in plan.may_count.items():
        counted = {unit for axis in axes for number in axis for unit in plan.units_at(number)}
        here = {group.name for group in plan.groups if not counted.isdisjoint(group.units)}
        touched.setdefault(_part(attribute), set()).update(here)
    sets: list[tuple[set[Part], set[str]]] = []
    for part, names in touched.items():
        near = [one for one in sets if not one[1].isdisjoint(names)]
        sets = [one for one in sets if one[1].isdisjoint(names)]
        sets.append(({part}.union(*(parts for parts, _ in near)), names.union(*(other for _, other in near))))
    return [(sorted(parts), [g.name for g in plan.groups if g.name in names]) for parts, names in sets if names]
