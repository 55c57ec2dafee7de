"""Pooling, resizing, padding, patches: operations over positions, every channel by itself."""

from __future__ import annotations

from collections.abc import Callable

import torch

from headgate.channels.ledger import NO_UNIT
from headgate.channels.rules.step import Step
from headgate.channels.values import Value, compressed, on_axis, varies

_POSITIONS = "mixes positions, and units lie along them"


def spatial(rank: int) -> Callable[[Step], Value | tuple[Value, ...]]:
    """The rule of operations over the last `rank` axes of the first argument; no other argument may carry units."""

    def rule(step: Step) -> Value | tuple[Value, ...]:
        value, *others = step.values()
        for other in others:
            step.stay(other.fields, "says where positions come from")
        value = step.settled(value, value.ndim - rank - 1)
        return step.results(step.stays_on(value, range(-rank, 0), _POSITIONS))

    return rule


def pad(step: Step) -> Value:
    """Numbers around, where no unit is; or positions repeated, which must not be channels."""
    value = step.value("self")
    amounts = [int(amount) for amount in step.arguments["pad"]]
    padded = {value.ndim - 1 - i // 2 for i, amount in enumerate(amounts) if amount}
    if step.arguments.get("mode", "constant") != "constant":
        return Value(step.shape, step.stays_on(value, padded, "repeats channels by their numbers"))
    fields = []
    for field in value.fields:
        if not varies(field) & padded:
            fields.append(field)
            continue
        full = field.expand([value.shape[d] if d in padded else s for d, s in enumerate(field.shape)])
        fields.append(compressed(torch.nn.functional.pad(full, amounts, value=NO_UNIT)))
    return Value(step.shape, tuple(fields))


def patches(step: Step) -> Value:
    """`nn.Unfold`: every channel becomes as many rows as the kernel has places."""
    value, kernel = step.value("self"), 1
    for size in step.arguments["kernel_size"]:
        kernel *= int(size)
    channel = value.ndim - 3
    value = step.settled(value, channel)
    step.stays_on(value, (-2, -1), _POSITIONS)
    labels = step.vector(value, channel)
    return Value(
        step.shape, () if labels is None else (on_axis(labels.repeat_interleave(kernel), channel, channel + 2),)
    )


def windows(step: Step) -> Value:
    """`Tensor.unfold`: windows along one axis, their insides on a new last axis."""
    value = step.value("self")
    free = step.stays_on(value, [int(step.arguments["dimension"])], "cuts windows out of channels")
    return Value(step.shape, tuple(field.unsqueeze(-1) for field in free))


_RESIZES = {
    1: ("upsample_nearest1d", "upsample_linear1d", "_upsample_nearest_exact1d"),
    2: ("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "_upsample_nearest_exact2d",
        "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "grid_sampler", "grid_sampler_2d", "triu", "tril"),
    3: ("upsample_nearest3d", "upsample_trilinear3d", "_upsample_nearest_exact3d", "grid_sampler_3d"),
}  # fmt: skip
_KINDS = (
    "avg_pool{}d", "max_pool{}d", "adaptive_avg_pool{}d", "adaptive_max_pool{}d", "max_pool{}d_with_indices",
    "_adaptive_avg_pool{}d", "lp_pool{}d", "reflection_pad{}d", "replication_pad{}d",
)  # fmt: skip

RULES: dict[str, Callable[[Step], Value | tuple[Value, ...]]] = {
    **{kind.format(rank): spatial(rank) for rank in (1, 2, 3) for kind in _KINDS},
    **{name: spatial(rank) for rank, names in _RESIZES.items() for name in names},
    "pad": pad,
    "constant_pad_nd": pad,
    "im2col": patches,
    "unfold": windows,
}
