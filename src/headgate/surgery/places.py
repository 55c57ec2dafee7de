"""Places of heads, as the model's code lets them go: of queries with keys and of values by themselves, or together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace

from torch import nn

from headgate.channels.plan import Group, Plan
from headgate.surgery.advice import advised
from headgate.surgery.counts import Problem, fitting_counts_of
from headgate.surgery.culprits import alike_in


def with_fitting_places(model: nn.Module, plan: Plan, problem: Problem) -> Plan:
    """The plan in which places of heads go by themselves where they can, together where they must, or else stay.

    As a rule code gives queries, keys and values one size: then place j of all three is one unit. Of all groups that
    are written alike only one is tried.
    """
    stuck: dict[str, str] = {}
    for groups in _alike(model, (group for group in plan.groups if plan.is_inner(group))):
        if (happens := _alone(groups[0], plan, problem)) is not None:
            stuck.update((group.name, happens) for group in groups)
    tied = _partners(plan, stuck)
    together, leaders = plan.with_tied(tied), {*tied.values()}
    for groups in _alike(model, (group for group in together.groups if group.name in leaders)):
        fitting = fitting_counts_of(together, groups[0], problem)
        if fitting is None:
            leaders -= {group.name for group in groups}
        else:
            together = fitting
    tied = {name: leader for name, leader in tied.items() if leader in leaders}
    plan = replace(plan, picked=together.picked)
    stay = {name: why for name, why in advised(plan, stuck).items() if name not in {*tied, *leaders}}
    return plan.with_tied(tied).without(stay)


def _alike(model: nn.Module, groups: Iterable[Group]) -> list[list[Group]]:
    found: dict[Hashable, list[Group]] = {}
    kind = alike_in(model)
    for group in groups:
        found.setdefault(kind(group.name), []).append(group)
    return list(found.values())


def _alone(group: Group, plan: Plan, problem: Problem) -> str | None:
    """What happens when only this group shrinks, whichever of the attributes that may count it do; None if it works."""
    happens = problem([group.name], plan)
    return happens if happens and fitting_counts_of(plan, group, problem) is None else None


def _partners(plan: Plan, names: Iterable[str]) -> dict[str, str]:
    """For groups of places, each with another one of the same heads and the same size that comes first."""
    first: dict[tuple[str, int], str] = {}
    tied: dict[str, str] = {}
    for group in (group for group in plan.groups if group.name in names):
        heads = next(factors[0] for factors in plan.products if group.start in factors[1:])
        of = next(other.name for other in plan.groups if heads in other.units)
        if (leader := first.setdefault((of, group.size), group.name)) != group.name:
            tied[group.name] = leader
    return tied
