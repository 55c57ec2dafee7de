"""Element-by-element operations, and tensors made after others: what treats every channel alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from headgate.channels.rules.step import Step
from headgate.channels.values import INPUT, Value, varies

# A parameter that went through these is still silent wherever a mask has silenced it.
_KEEPS_ZEROS = ("mul", "div", "neg", "abs", "relu", "tanh")


def pointwise(step: Step) -> Value:
    """Tensors of one shape, up to broadcasting: what meets belongs together."""
    values = step.values()
    fields = step.meet(values, step.shape)
    addends = [value for value in values if value.source is None and value.ndim]
    if step.operation in ("add", "sub") and len(addends) == 2:
        _note_residual(step, addends, fields)
    return Value(step.shape, fields, _scaled_source(step, values))


def _scaled_source(step: Step, values: list[Value]) -> str | None:
    """The parameter this is a multiple of, where that is the only tensor with units in it."""
    if step.operation not in _KEEPS_ZEROS or not values or values[0].shape != step.shape:
        return None
    return None if any(other.fields for other in values[1:]) else values[0].source


def _note_residual(step: Step, addends: list[Value], fields: tuple[Tensor, ...]) -> None:
    """A sum of two activations: the one with more layers since they parted is the branch, the other its shortcut."""
    if not all(value.history & INPUT for value in addends):
        return
    if all(value.fields for value in addends):
        for field in fields:
            step.ledger.add(field)
    first, second = addends
    longer = (first.history & ~second.history).bit_count() - (second.history & ~first.history).bit_count()
    branch, shortcut = (0, 1) if longer > 0 else (1, 0)
    if longer:
        step.residual(addends[branch].history & ~addends[shortcut].history)
    origin = addends[branch].origin
    if longer and origin is not None and addends[branch].shape == step.shape:
        step.ledger.branch(replace(origin, block=step.block_around(shortcut)))


def copy(step: Step) -> Value:
    """The same values again; a rearranged parameter remains that parameter."""
    value = step.first
    return Value(step.shape, value.fields, value.source)


def overwrite(step: Step) -> Value:
    """A tensor filled with another one, of its own shape up to broadcasting: both have the same units."""
    return Value(step.shape, step.meet([step.value("self"), step.value("src")], step.shape))


def like(step: Step) -> Value:
    """A new tensor sized after another: it shrinks with it."""
    return Value(step.shape, step.first.fields if step.first.shape == step.shape else ())


def created(step: Step) -> Value:
    """A tensor made from numbers alone: it may shrink with what it meets, if the code sizes it after that."""
    return Value(step.shape, step.made(range(len(step.shape))))


def nothing(step: Step) -> Value:
    """An assertion: it computes nothing."""
    return Value(())


def dropout(step: Step) -> tuple[Value, Value]:
    """Values and the mask that was drawn for them."""
    value = step.value("input")
    return Value(step.shape, value.fields), Value(step.shape, value.fields)


def glu(step: Step) -> Value:
    """The first half times the gate of the second: unit j of both belongs together."""
    value, dim = step.first, step.dim("dim", step.first.ndim)
    half = value.shape[dim] // 2
    parts = [
        Value(step.shape, tuple(f.narrow(dim, at, half) if f.shape[dim] > 1 else f for f in value.fields))
        for at in (0, half)
    ]
    return Value(step.shape, step.meet(parts, step.shape))


def prelu(step: Step) -> Value:
    """One slope per channel, along axis 1, or one for all."""
    value, weight = step.value("self"), step.value("weight")
    if weight.shape != (1,) and weight.ndim == 1:
        channel = 1 if value.ndim > 1 else 0
        step.join_vectors(step.vector(value, channel), step.vector(weight, 0), "the slope meets a fixed channel")
    return Value(step.shape, tuple(f for f in value.fields if varies(f)))


_COPIES = (
    "clone", "alias", "detach", "contiguous", "_to_copy", "to", "type_as", "lift_fresh_copy", "dropout",
    "feature_dropout", "alpha_dropout", "feature_alpha_dropout",
)  # fmt: skip
_LIKE = (
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "bernoulli", "fill", "zero",
    "uniform", "normal_functional", "exponential", "random",
)  # fmt: skip
_CREATED = (
    "full", "zeros", "ones", "empty", "arange", "scalar_tensor", "rand", "randn", "randint", "eye", "linspace",
    "new_zeros", "new_ones", "new_empty", "new_full", "empty_permuted", "empty_strided", "new_empty_strided",
)  # fmt: skip
_POINTWISE = (
    "hardswish", "where", "rrelu", "rrelu_with_noise", "rrelu_with_noise_functional", "_rrelu_with_noise", "leaky_relu",
    "elu", "celu", "selu", "hardtanh", "relu6", "mish", "softplus", "log_sigmoid", "softshrink", "hardshrink",
    "threshold", "_prelu_kernel", "maximum", "minimum",
)  # fmt: skip

RULES: dict[str, Callable[[Step], Value | tuple[Value, ...]]] = {
    **dict.fromkeys(_COPIES, copy),
    **dict.fromkeys(_LIKE, like),
    **dict.fromkeys(_CREATED, created),
    **dict.fromkeys(_POINTWISE, pointwise),
    "copy": overwrite,
    **dict.fromkeys(("_assert_tensor_metadata", "_assert_scalar", "_assert_async"), nothing),
    "native_dropout": dropout,
    "glu": glu,
    "prelu": prelu,
}


def is_pointwise(target: object) -> bool:
    """Whether torch itself says so."""
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags
