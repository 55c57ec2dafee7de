"""Which attributes of the user's modules really count units, where several have the same number: trials tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

from torch import nn

from headgate.channels.attributes import Attribute
from headgate.channels.plan import Plan

# Of one class; more are not taken apart.
_MOST = 4

# Given names of groups and a plan, why cutting them fails, or None.
Problem = Callable[[list[str], Plan], str | None]


def with_fitting_counts(model: nn.Module, plan: Plan, problem: Problem) -> Plan:
    """The plan with those attributes that must shrink for its groups to be cut: one choice for every class of modules.

    All that may be are tried first, then ever fewer. Where nothing works they are left as they are.
    """
    for attributes in _by_class(model, plan):
        names = sorted({attribute.name for attribute in attributes})
        touched = {unit for attribute in attributes for n in plan.counts[attribute] for unit in plan.units_at(n)}
        groups = [group.name for group in plan.groups if not touched.isdisjoint(group.units)]
        if len(names) > _MOST or not groups or problem(groups, plan) is None:
            continue
        for chosen in _fewer(names):
            dropped = {attribute for attribute in attributes if attribute.name not in chosen}
            candidate = replace(plan, counts={a: units for a, units in plan.counts.items() if a not in dropped})
            if problem(groups, candidate) is None:
                plan = candidate
                break
    return plan


def _fewer(names: list[str]) -> Iterator[tuple[str, ...]]:
    for count in range(len(names) - 1, -1, -1):
        yield from combinations(names, count)


def _by_class(model: nn.Module, plan: Plan) -> list[list[Attribute]]:
    found: dict[type[nn.Module], list[Attribute]] = {}
    for attribute in plan.counts:
        found.setdefault(type(model.get_submodule(attribute.path)), []).append(attribute)
    return list(found.values())
