"""How channels pass through operations: one small function per family, looked up by the operation's ATen name.

An operation without a rule makes everything that touches it stay, by name. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate.channels.rules import (
    attention,
    contraction,
    einsum,
    movement,
    norms,
    pieces,
    pointwise,
    recurrent,
    reduction,
    spatial,
)
from headgate.channels.rules.step import Step
from headgate.channels.values import Value

Rule = Callable[[Step], Value | tuple[Value, ...]]

RULES: dict[str, Rule] = {}
for _family in (pointwise, reduction, spatial, movement, pieces, contraction, einsum, attention, norms, recurrent):
    RULES.update(_family.RULES)


def rule_for(target: Any, name: str) -> Rule:
    """The rule of an operation: its own, the one of all pointwise operations, or refusal."""
    if name in RULES:
        return RULES[name]
    return pointwise.pointwise if pointwise.is_pointwise(target) else unknown


def unknown(step: Step) -> tuple[Value, ...]:
    """Everything that goes in stays; nothing is known of what comes out."""
    for value in step.values():
        step.stay(value.fields, "headgate has no rule for this operation")
    return tuple(Value(shape or ()) for shape in step.shapes)
