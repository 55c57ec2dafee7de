"""What to do about groups that could not be cut in a trial, by what the plan knows of them."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.channels.plan import Group, Plan
from headgate.surgery.counts import counting
from headgate.surgery.differing import DIFFERS, DOES_NOT_RUN


def advised(plan: Plan, reasons: Mapping[str, str]) -> dict[str, str]:
    """The reasons why sites, by name, must stay; of groups with what would let them go, where that can be told."""
    groups = {group.name: group for group in plan.groups}
    return {name: why + _advice(plan, groups[name], why) if name in groups else why for name, why in reasons.items()}


def _advice(plan: Plan, group: Group, why: str) -> str:
    if why.startswith(DOES_NOT_RUN):
        tried = dict.fromkeys(f"{one.name} of {one.path or 'the model'}" for one in counting(plan, group))
        return f" ({', '.join(tried)} {'was' if len(tried) == 1 else 'were'} tried)" if tried else ""
    if why.startswith(DIFFERS) and group.made:
        made = " and ".join(group.made)
        return f"; the code makes other numbers for another size ({made}): kept in a buffer they would be cut instead"
    if why.startswith(DIFFERS) and group.summed:
        return "; a scale by the size at hand would do that: made once, as self.scale = head_dim ** -0.5, it would not"
    return ""
