"""Attention in one operation: queries meet keys place by place, a softmax weighs positions, values are summed up."""

from __future__ import annotations

from headgate.channels.rules.contraction import contract, shared_axes, why_heard
from headgate.channels.rules.step import Step
from headgate.channels.values import Value, varies

_SCALED = "multiplies queries with keys, summed over these channels and scaled by their number, unless scale= is given"


def attention(step: Step) -> Value:
    """Heads, and whatever else all three share, pass; so do the places of the values.

    The places of queries and keys are summed over; they stay if their number is the scale too, as it is unless one is
    given. Positions of keys stay, since the softmax goes over them.
    """
    query, key, value = (step.value(name) for name in ("query", "key", "value"))
    if step.arguments.get("enable_gqa"):
        key, value = (_repeated(one, query.shape[-3]) for one in (key, value))
    for one in (key, value):
        shared_axes(step, query, one, ((dim, dim) for dim in range(-one.ndim, -2)))
    if step.arguments.get("scale") is None:
        for one in (query, key):
            step.stays_on(one, [-1], why_heard(step, query, key) or _SCALED)
    else:
        contract(step, query, query.ndim - 1, key, key.ndim - 1)
    mask = step.optional("attn_mask")
    for one, dim in ((key, -2), (value, -2), *(() if mask is None else ((mask, -1),))):
        step.stays_on(one, [dim], "weighs these positions against each other")
    pieces = [_without(query, {-1}), _without(key, {-1, -2}), _without(value, {-2})]
    if mask is not None:
        pieces.append(_without(mask, {-1}))
    return Value(step.shape, step.meet(pieces, step.shape))


def _repeated(value: Value, heads: int) -> Value:
    """Every head of keys or values as often as queries share it."""
    times = heads // value.shape[-3]
    fields = (f.repeat_interleave(times, -3) if f.shape[-3] > 1 else f for f in value.fields)
    return Value((*value.shape[:-3], heads, *value.shape[-2:]), tuple(fields))


def _without(value: Value, dims: set[int]) -> Value:
    """What passes: size 1 along axes that are summed over."""
    gone = {dim % value.ndim for dim in dims if -dim <= value.ndim}
    shape = tuple(1 if dim in gone else size for dim, size in enumerate(value.shape))
    return Value(shape, tuple(field for field in value.fields if not varies(field) & gone))


def complex_pairs(step: Step) -> Value:
    """Pairs along the last axis as complex numbers: the axis goes."""
    value = step.first
    free = step.stays_on(value, [-1], "makes complex numbers of pairs")
    return Value(step.shape, tuple(field.squeeze(-1) for field in free))


def real_pairs(step: Step) -> Value:
    """Complex numbers as pairs along a new last axis."""
    return Value(step.shape, tuple(field.unsqueeze(-1) for field in step.first.fields))


def _polar(step: Step) -> Value:
    return Value(step.shape, step.meet(step.values(), step.shape))


RULES = {
    "scaled_dot_product_attention": attention,
    "view_as_complex": complex_pairs,
    "view_as_real": real_pairs,
    **dict.fromkeys(("polar", "complex"), _polar),
}
