"""Operations that only move data: views, slices, concatenation, shuffles, in-place writes as functions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headgate.channels.ledger import NO_UNIT
from headgate.channels.rules.step import Step
from headgate.channels.values import Value, compressed, matching_blocks, moved, on_axis, permuted, reshaped, varies


def view(step: Step) -> Value:
    """Another shape over the same elements, in the same order."""
    value = step.value("self")
    blocks = [after for _, after in matching_blocks(value.shape, step.shape)]
    return step.tie_all_but_last(reshaped(value, step.shape), blocks)


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
    """Repeats without copying: the labels of the repeated axes do not depend on them."""
    value = step.value("self")
    lead = len(step.shape) - value.ndim
    return Value(step.shape, tuple(f.reshape((1,) * lead + tuple(f.shape)) for f in value.fields), value.source)


def narrow(step: Step) -> Value:
    """A slice along one axis; labels that do not depend on that axis pass unchanged."""
    value = step.value("self")
    dim = int(step.arguments.get("dim", 0)) % value.ndim
    start, stop, stride = (step.arguments.get(name) for name in ("start", "end", "step"))
    cut = slice(start, stop, stride)
    if step.shape[dim] < value.shape[dim]:
        value = step.tie_pieces(value, dim, step.shape[dim], stride or 1)
    fields = (f[(slice(None),) * dim + (cut,)] if f.shape[dim] > 1 else f for f in value.fields)
    return Value(step.shape, tuple(f for f in fields if varies(f)), value.source)


def select(step: Step) -> Value:
    """One index of an axis, by its number."""
    value = step.value("self")
    dim, index = step.dim("dim", value.ndim), int(step.arguments["index"])
    step.stays_on(value, [dim], "picks a channel by its number")
    fields = (f.select(dim, index if f.shape[dim] > 1 else 0) for f in value.fields)
    return Value(step.shape, tuple(f for f in fields if varies(f)), value.source)


def split(step: Step) -> tuple[Value, ...]:
    """Pieces along one axis, of whatever sizes the trace shows."""
    value = step.value("self")
    dim, at, pieces = int(step.arguments.get("dim", 0)) % value.ndim, 0, []
    lengths = {shape[dim] for shape in step.shapes if shape is not None}
    if len(lengths) > 1:
        step.stays_on(value, [dim], "cuts channels into unequal pieces")
    elif len(step.shapes) > 1:
        value = step.tie_pieces(value, dim, *lengths)
    for shape in step.shapes:
        assert shape is not None
        fields = (f.narrow(dim, at, shape[dim]) if f.shape[dim] > 1 else f for f in value.fields)
        pieces.append(Value(shape, tuple(f for f in fields if varies(f)), value.source))
        at += shape[dim]
    return tuple(pieces)


def unbind(step: Step) -> tuple[Value, ...]:
    """All indices of an axis, one by one."""
    value, dim = step.value("self"), step.dim("dim", step.value("self").ndim)
    step.stays_on(value, [dim], "picks channels by their numbers")
    pieces = []
    for index, shape in enumerate(step.shapes):
        assert shape is not None
        fields = (f.select(dim, index if f.shape[dim] > 1 else 0) for f in value.fields)
        pieces.append(Value(shape, tuple(f for f in fields if varies(f)), value.source))
    return tuple(pieces)


def cat(step: Step) -> Value:
    """One after the other: along the axis units stand side by side, on the other axes they meet."""
    values = [value for value in step.arguments["tensors"] if value.shape != (0,)]
    dim = int(step.arguments.get("dim", 0)) % len(step.shape)
    others = step.meet(values, step.shape, but=dim) if len(values) > 1 else ()
    if len(values) == 1:
        return Value(step.shape, values[0].fields)
    if not any(value.field_on(dim) is not None for value in values):
        return Value(step.shape, others)
    return Value(step.shape, (_side_by_side(values, dim), *others))


def _side_by_side(values: list[Value], dim: int) -> Tensor:
    parts = []
    for value in values:
        field = value.field_on(dim)
        size = [value.shape[dim] if d == dim else 1 for d in range(value.ndim)]
        parts.append(torch.full(size, NO_UNIT) if field is None else field)
    rest = torch.broadcast_shapes(*(tuple(1 if d == dim else s for d, s in enumerate(p.shape)) for p in parts))
    return torch.cat([p.expand([p.shape[dim] if d == dim else s for d, s in enumerate(rest)]) for p in parts], dim)


def stack(step: Step) -> Value:
    """Along a new axis: everything meets."""
    values = step.arguments["tensors"]
    dim = int(step.arguments.get("dim", 0)) % len(step.shape)
    return Value(step.shape, tuple(f.unsqueeze(dim) for f in step.meet(values, values[0].shape)))


def roll(step: Step) -> Value:
    """Rolling positions leaves channels alone; rolling channels by a fixed number does not."""
    value = step.value("self")
    dims = step.arguments.get("dims") or range(value.ndim)
    return Value(step.shape, step.stays_on(value, dims, "rolls channels"))


def pixel_shuffle(step: Step) -> Value:
    """Blocks of channels become positions: each block is one unit."""
    value, factor = step.value("self"), int(step.arguments["upscale_factor"]) ** 2
    channel = value.ndim - 3
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
    labels = step.vector(value, channel)
    fields = () if labels is None else (on_axis(labels.repeat_interleave(factor), channel, value.ndim),)
    return Value(step.shape, fields)


def channel_shuffle(step: Step) -> Value:
    """A fixed number of groups, interleaved: the same place of every group is one unit."""
    value, groups = step.value("self"), int(step.arguments["groups"])
    value = step.tie_pieces(value, 1, value.shape[1] // groups)
    labels = step.vector(value, 1)
    fields = () if labels is None else (on_axis(labels.reshape(groups, -1).t().reshape(-1), 1, value.ndim),)
    return Value(step.shape, fields)


def replayed() -> Callable[[Step], Value]:
    """Any other rearrangement: done to the labels as it was done to the data."""

    def rule(step: Step) -> Value:
        operation = getattr(torch.ops.aten, step.operation)
        rest = {name: argument for name, argument in step.arguments.items() if name != "self"}
        return moved(step.value("self"), step.shape, lambda labels: operation(labels.contiguous(), **rest))

    return rule


def pad(step: Step) -> Value:
    """Zeros (or another number) around: no unit there."""
    value = step.value("self")
    amounts = [int(amount) for amount in step.arguments["pad"]]
    padded = {value.ndim - 1 - i // 2 for i, amount in enumerate(amounts) if amount}
    fields = []
    for field in value.fields:
        if not varies(field) & padded:
            fields.append(field)
            continue
        full = field.expand([value.shape[d] if d in padded else s for d, s in enumerate(field.shape)])
        touched = [a if value.ndim - 1 - i // 2 in padded else 0 for i, a in enumerate(amounts)]
        fields.append(compressed(torch.nn.functional.pad(full, touched, value=NO_UNIT)))
    return Value(step.shape, tuple(fields))


def slice_scatter(step: Step) -> Value:
    """A tensor with a slice of it replaced: where both have units along the axis they are put together."""
    value, source = step.value("self"), step.value("src")
    dim = int(step.arguments.get("dim", 0)) % value.ndim
    if source.shape[dim] < value.shape[dim]:
        stride = int(step.arguments.get("step") or 1)
        value = step.tie_pieces(value, dim, source.shape[dim], stride)
    cut = (slice(None),) * dim + (
        slice(step.arguments.get("start"), step.arguments.get("end"), step.arguments.get("step", 1)),
    )
    window = Value(source.shape, tuple(f[cut] if f.shape[dim] > 1 else f for f in value.fields))
    others = step.meet([window, source], source.shape, but=dim)
    mine, theirs = value.field_on(dim), source.field_on(dim)
    if mine is None and theirs is None:
        return Value(step.shape, others)
    base = torch.full([s if d == dim else 1 for d, s in enumerate(value.shape)], NO_UNIT) if mine is None else mine
    patch = (
        torch.full([s if d == dim else 1 for d, s in enumerate(source.shape)], NO_UNIT) if theirs is None else theirs
    )
    rest = torch.broadcast_shapes(*(tuple(1 if d == dim else s for d, s in enumerate(t.shape)) for t in (base, patch)))
    base = base.expand([base.shape[dim] if d == dim else s for d, s in enumerate(rest)]).clone()
    base[cut] = patch.expand(base[cut].shape)
    return Value(step.shape, (base, *others))


RULES = {
    **dict.fromkeys(
        (
            "view",
            "reshape",
            "_unsafe_view",
            "flatten",
            "unflatten",
            "squeeze",
            "unsqueeze",
            "view_copy",
        ),
        view,
    ),
    "permute": permute,
    "transpose": transpose,
    "t": matrix_transpose,
    "numpy_T": matrix_transpose,
    "expand": expand,
    "slice": narrow,
    "select": select,
    **dict.fromkeys(
        (
            "split",
            "split_with_sizes",
            "chunk",
            "tensor_split",
        ),
        split,
    ),
    "unbind": unbind,
    "cat": cat,
    "stack": stack,
    "constant_pad_nd": pad,
    "slice_scatter": slice_scatter,
    "roll": roll,
    "pixel_shuffle": pixel_shuffle,
    "pixel_unshuffle": pixel_unshuffle,
    **dict.fromkeys(
        (
            "channel_shuffle",
            "native_channel_shuffle",
        ),
        channel_shuffle,
    ),
    **dict.fromkeys(
        (
            "repeat",
            "flip",
            "movedim",
            "tile",
        ),
        replayed(),
    ),
}
