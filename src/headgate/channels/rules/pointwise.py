"""Element-by-element operations, reductions, softmax: what treats every channel alike, or mixes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from headgate.channels.rules.step import Step
from headgate.channels.values import Value, varies


def pointwise(step: Step) -> Value:
    """Tensors of one shape, up to broadcasting: what meets belongs together."""
    values = step.values()
    fields = step.meet(values, step.shape)
    addends = [value for value in values if value.source is None and value.ndim]
    if step.operation in ("add", "sub") and len(addends) == 2:
        _note_residual(step, addends, fields)
    return Value(step.shape, fields)


def _note_residual(step: Step, addends: list[Value], fields: tuple[Tensor, ...]) -> None:
    """A sum of two activations: the one with more layers since they parted is the branch, the other its shortcut."""
    if all(value.fields for value in addends):
        for field in fields:
            step.ledger.add(field)
    first, second = addends
    longer = (first.history & ~second.history).bit_count() - (second.history & ~first.history).bit_count()
    branch, shortcut = (0, 1) if longer > 0 else (1, 0)
    origin = addends[branch].origin
    if longer and origin is not None and addends[branch].shape == step.shape:
        step.ledger.branch(replace(origin, block=step.block_around(shortcut)))


def copy(step: Step) -> Value:
    """The same values again; a rearranged parameter remains that parameter."""
    value = next(iter(step.values()))
    return Value(step.shape, value.fields, value.source)


def like(step: Step) -> Value:
    """A new tensor sized after another: it shrinks with it."""
    value = next(iter(step.values()))
    return Value(step.shape, value.fields if value.shape == step.shape else ())


def created(step: Step) -> Value:
    """A tensor made from numbers alone carries no units."""
    return Value(step.shape)


def dropout(step: Step) -> tuple[Value, Value]:
    """Values and the mask that was drawn for them."""
    value = step.value("input")
    return Value(step.shape, value.fields), Value(step.shape, value.fields)


def reduction(step: Step) -> Value | tuple[Value, ...]:
    """A sum, mean, maximum … over axes. Over channels it mixes them, over anything else it leaves them apart."""
    value = next(iter(step.values()))
    dims = step.arguments.get("dim", step.arguments.get("dims"))
    if dims is None or dims == []:
        dims = list(range(value.ndim))
    dims = (
        {int(dim) % value.ndim for dim in (dims if isinstance(dims, (list, tuple)) else [dims])}
        if value.ndim
        else set()
    )
    free = step.stays_on(value, dims, "reduces over channels")
    kept = bool(step.arguments.get("keepdim", False))
    fields = free if kept else tuple(_without(field, dims) for field in free)
    results = tuple(Value(shape, fields) for shape in step.shapes if shape is not None)
    return results if len(step.shapes) > 1 else results[0]


def _without(field: Tensor, dims: set[int]) -> Tensor:
    return field.reshape([size for dim, size in enumerate(field.shape) if dim not in dims])


def along(step: Step) -> Value | tuple[Value, ...]:
    """Softmax, cumulative sums, sorting: the shape stays, but channels along the axis are mixed."""
    value = next(iter(step.values()))
    fields = step.stays_on(value, [int(step.arguments["dim"])], "mixes channels along this axis")
    results = tuple(Value(shape, fields) for shape in step.shapes if shape is not None)
    return results if len(step.shapes) > 1 else results[0]


def glu(step: Step) -> Value:
    """The first half times the gate of the second: unit j of both belongs together."""
    value, dim = next(iter(step.values())), step.dim("dim", next(iter(step.values())).ndim)
    half = value.shape[dim] // 2
    parts = [
        Value(step.shape, tuple(f.narrow(dim, at, half) if f.shape[dim] > 1 else f for f in value.fields))
        for at in (0, half)
    ]
    return Value(step.shape, step.meet(parts, step.shape))


def spatial(rank: int) -> Callable[[Step], Value | tuple[Value, ...]]:
    """Pooling, resizing, padding over the last `rank` axes of each channel by itself."""

    def rule(step: Step) -> Value | tuple[Value, ...]:
        value = next(iter(step.values()))
        value = step.settled(value, value.ndim - rank - 1)
        fields = step.stays_on(value, range(-rank, 0), "mixes positions, and units lie along them")
        results = tuple(Value(shape, fields) for shape in step.shapes if shape is not None)
        return results if len(step.shapes) > 1 else results[0]

    return rule


def prelu(step: Step) -> Value:
    """One slope per channel, along axis 1, or one for all."""
    value, weight = step.value("self"), step.value("weight")
    if weight.shape != (1,) and weight.ndim == 1:
        channel = 1 if value.ndim > 1 else 0
        step.join_vectors(step.vector(value, channel), step.vector(weight, 0), "the slope meets a fixed channel")
    return Value(step.shape, tuple(f for f in value.fields if varies(f)))


_POOLS = {
    f"{kind}_pool{rank}d": spatial(rank)
    for rank in (1, 2, 3)
    for kind in ("avg", "max", "adaptive_avg", "adaptive_max")
}
_POOLS |= {f"max_pool{rank}d_with_indices": spatial(rank) for rank in (1, 2, 3)}
_POOLS |= {f"_adaptive_avg_pool{rank}d": spatial(rank) for rank in (2, 3)}
_POOLS |= {f"{kind}_pad{rank}d": spatial(rank) for rank in (1, 2, 3) for kind in ("reflection", "replication")}
_POOLS |= {f"lp_pool{rank}d": spatial(rank) for rank in (1, 2)}
_RESIZES = {
    name: spatial(rank)
    for rank, names in {
        1: ("upsample_nearest1d", "upsample_linear1d", "_upsample_nearest_exact1d"),
        2: ("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "_upsample_nearest_exact2d",
            "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
        3: ("upsample_nearest3d", "upsample_trilinear3d", "_upsample_nearest_exact3d"),
    }.items()
    for name in names
}  # fmt: skip

RULES = {
    **dict.fromkeys(
        (
            "clone",
            "alias",
            "detach",
            "contiguous",
            "_to_copy",
            "to",
            "lift_fresh_copy",
            "dropout",
            "feature_dropout",
            "alpha_dropout",
        ),
        copy,
    ),
    **dict.fromkeys(
        (
            "zeros_like",
            "ones_like",
            "full_like",
            "empty_like",
            "rand_like",
            "randn_like",
            "bernoulli",
        ),
        like,
    ),
    **dict.fromkeys(
        (
            "full",
            "zeros",
            "ones",
            "empty",
            "arange",
            "scalar_tensor",
            "rand",
            "randn",
            "eye",
            "linspace",
            "new_zeros",
            "new_ones",
            "new_empty",
            "new_full",
        ),
        created,
    ),
    **dict.fromkeys(
        (
            "mean",
            "sum",
            "amax",
            "amin",
            "var",
            "std",
            "var_mean",
            "norm",
            "linalg_vector_norm",
            "prod",
            "max",
            "min",
            "argmax",
            "argmin",
            "any",
            "all",
            "logsumexp",
            "median",
        ),
        reduction,
    ),
    **dict.fromkeys(
        (
            "softmax",
            "_softmax",
            "log_softmax",
            "_log_softmax",
            "cumsum",
            "cumprod",
            "sort",
            "topk",
            "logcumsumexp",
        ),
        along,
    ),
    **_POOLS,
    **_RESIZES,
    "native_dropout": dropout,
    "glu": glu,
    "prelu": prelu,
    "_prelu_kernel": pointwise,
    **dict.fromkeys(
        (
            "hardswish",
            "where",
            "rrelu",
            "rrelu_with_noise",
            "rrelu_with_noise_functional",
            "_rrelu_with_noise",
            "leaky_relu",
            "elu",
            "celu",
            "selu",
            "hardtanh",
            "relu6",
            "mish",
            "softplus",
            "log_sigmoid",
            "softshrink",
            "hardshrink",
            "threshold",
        ),
        pointwise,
    ),
}


def is_pointwise(target: object) -> bool:
    """Whether torch itself says so."""
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags
