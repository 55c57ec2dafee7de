"""Operations that only move data: views, permutations, repetitions, shuffles."""

from __future__ import annotations

import torch

from headgate.channels.rules.step import Step, refused
from headgate.channels.values import Value, moved, on_axis, permuted, reshaped


def view(step: Step) -> Value:
    """Another shape over the same elements, in the same order: axes are merged and taken apart."""
    value = reshaped(step.value("self"), step.shape)
    fields = step.together(list(value.fields))
    return value.with_fields(tuple(part for field in fields for part in step.apart(field)))


def permute(step: Step) -> Value:
    """Axes in another order."""
    value = step.value("self")
    return permuted(value, [int(dim) % value.ndim for dim in step.arguments["dims"]])


def transpose(step: Step) -> Value:
    """Two axes swapped."""
    value = step.value("self")
    dims = list(range(value.ndim))
    first, second = step.dim("dim0", value.ndim), step.dim("dim1", value.ndim)
    dims[first], dims[second] = dims[second], dims[first]
    return permuted(value, dims)


def matrix_transpose(step: Step) -> Value:
    """All axes reversed."""
    value = step.value("self")
    return permuted(value, list(range(value.ndim))[::-1])


def expand(step: Step) -> Value:
    """Repeats without copying, as often as the code says: along these axes it may be sized after what it meets."""
    value = step.value("self")
    lead = (1,) * (len(step.shape) - value.ndim)
    repeated = [dim for dim, size in enumerate(lead + value.shape) if size == 1]
    passing = tuple(f.reshape(lead + tuple(f.shape)) for f in value.fields)
    return Value(step.shape, passing + step.made(repeated), value.source)


def replayed(step: Step) -> Value:
    """Any other rearrangement by plain numbers: done to the labels as it was done to the data."""
    value = step.value("self")
    if len(step.values()) > 1:
        return refused(step, "moves data to where a tensor says")
    rest = {name: argument for name, argument in step.arguments.items() if name != "self"}
    operation = getattr(torch.ops.aten, step.operation)
    return moved(value, step.shape, lambda labels: operation(labels.contiguous(), **rest))


def roll(step: Step) -> Value:
    """Rolling positions leaves channels alone; rolling channels by a fixed number does not."""
    value = step.value("self")
    dims = step.arguments.get("dims") or range(value.ndim)
    return Value(step.shape, step.stays_on(value, dims, "rolls channels"))


def pixel_shuffle(step: Step) -> Value:
    """Blocks of channels become positions: each block is one unit."""
    value, factor = step.value("self"), int(step.arguments["upscale_factor"]) ** 2
    channel = value.ndim - 3
    step.stays_on(value, (-2, -1), "interleaves positions, and units lie along them")
    labels = step.vector(value, channel)
    if labels is None:
        return Value(step.shape)
    blocks = labels.reshape(-1, factor)
    step.ledger.join(blocks, blocks[:, :1], step.obstacle("interleaves it with a channel that must stay"))
    return Value(step.shape, (on_axis(blocks[:, 0], channel, value.ndim),) if len(blocks) > 1 else ())


def pixel_unshuffle(step: Step) -> Value:
    """Positions become channels: each channel now fills a block."""
    value, factor = step.value("self"), int(step.arguments["downscale_factor"]) ** 2
    channel = value.ndim - 3
    step.stays_on(value, (-2, -1), "takes positions apart, and units lie along them")
    labels = step.vector(value, channel)
    fields = () if labels is None else (on_axis(labels.repeat_interleave(factor), channel, value.ndim),)
    return Value(step.shape, fields)


def channel_shuffle(step: Step) -> Value:
    """A fixed number of groups, interleaved: the same place of every group is one unit."""
    value, groups = step.value("self"), int(step.arguments["groups"])
    value = step.tie_pieces(value, 1, value.shape[1] // groups)
    labels = step.vector(value, 1)
    others = tuple(field for field in value.fields if field.shape[1] == 1)
    if labels is None:
        return Value(step.shape, others)
    return Value(step.shape, (on_axis(labels.reshape(groups, -1).t().reshape(-1), 1, value.ndim), *others))


_VIEWS = ("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_copy")

RULES = {
    **dict.fromkeys(_VIEWS, view),
    "permute": permute,
    "transpose": transpose,
    **dict.fromkeys(("t", "numpy_T"), matrix_transpose),
    "expand": expand,
    "roll": roll,
    "pixel_shuffle": pixel_shuffle,
    "pixel_unshuffle": pixel_unshuffle,
    **dict.fromkeys(("channel_shuffle", "native_channel_shuffle"), channel_shuffle),
    **dict.fromkeys(("repeat", "flip", "movedim", "tile", "repeat_interleave"), replayed),
}
