"""Parts of tensors, and tensors from parts: slices, splits, concatenation, indexing, in-place writes as functions."""

from __future__ import annotations

import torch
from torch import Tensor

from headgate.channels.ledger import NO_UNIT
from headgate.channels.rules.step import Step, refused
from headgate.channels.values import Value, varies

_BY_NUMBER = "picks channels by their numbers"


def narrow(step: Step) -> Value:
    """A slice along one axis; labels that do not depend on that axis pass unchanged."""
    value = step.value("self")
    dim = int(step.arguments.get("dim", 0)) % value.ndim
    if step.shape[dim] < value.shape[dim]:
        value = step.tie_pieces(value, dim, step.shape[dim], int(step.arguments.get("step") or 1))
    cut = _window(step, dim)
    fields = (f[cut] if f.shape[dim] > 1 else f for f in value.fields)
    return Value(step.shape, tuple(f for f in fields if varies(f)), value.source)


def _window(step: Step, dim: int) -> tuple[slice, ...]:
    return (slice(None),) * dim + (slice(*(step.arguments.get(name) for name in ("start", "end", "step"))),)


def select(step: Step) -> Value:
    """One index of an axis, by its number."""
    value = step.value("self")
    dim, index = step.dim("dim", value.ndim), int(step.arguments["index"])
    step.stays_on(value, [dim], "picks a channel by its number")
    return Value(step.shape, _at(value, dim, index), value.source)


def _at(value: Value, dim: int, index: int) -> tuple[Tensor, ...]:
    fields = (f.select(dim, index if f.shape[dim] > 1 else 0) for f in value.fields)
    return tuple(f for f in fields if varies(f))


def split(step: Step) -> tuple[Value, ...]:
    """Pieces along one axis, of whatever sizes the trace shows.

    Pieces of one size shrink alike. Of pieces of several sizes each has its number somewhere; if that cannot follow,
    the trial finds out.
    """
    value = step.value("self")
    dim, at, pieces = int(step.arguments.get("dim", 0)) % value.ndim, 0, []
    lengths = {shape[dim] for shape in step.shapes if shape is not None}
    if len(lengths) > 1 and step.operation != "split_with_sizes":
        step.stays_on(value, [dim], "cuts channels into unequal pieces")
    elif len(lengths) == 1 and len(step.shapes) > 1:
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
    step.stays_on(value, [dim], _BY_NUMBER)
    return tuple(Value(shape or (), _at(value, dim, index), value.source) for index, shape in enumerate(step.shapes))


def cat(step: Step) -> Value:
    """One after the other: along the axis units stand side by side, on the other axes they meet."""
    # torch lets an empty vector stand for nothing at all.
    values = [value for value in step.arguments["tensors"] if value.shape != (0,)]
    dim = int(step.arguments.get("dim", 0)) % len(step.shape)
    if len(values) == 1:
        return Value(step.shape, values[0].fields)
    others = step.meet(values, step.shape, but=dim)
    if not any(value.field_on(dim) is not None for value in values):
        return Value(step.shape, others)
    return Value(step.shape, (_side_by_side([_along(value, dim) for value in values], dim), *others))


def _along(value: Value, dim: int) -> Tensor:
    """The field along an axis, or the field of an axis without units."""
    field = value.field_on(dim)
    return torch.full([s if d == dim else 1 for d, s in enumerate(value.shape)], NO_UNIT) if field is None else field


def _side_by_side(parts: list[Tensor], dim: int) -> Tensor:
    rest = torch.broadcast_shapes(*(tuple(1 if d == dim else s for d, s in enumerate(p.shape)) for p in parts))
    return torch.cat([p.expand([p.shape[dim] if d == dim else s for d, s in enumerate(rest)]) for p in parts], dim)


def stack(step: Step) -> Value:
    """Along a new axis: everything meets."""
    values = step.arguments["tensors"]
    dim = int(step.arguments.get("dim", 0)) % len(step.shape)
    return Value(step.shape, tuple(f.unsqueeze(dim) for f in step.meet(values, values[0].shape)))


def slice_scatter(step: Step) -> Value:
    """A tensor with a slice of it replaced: where both have units along the axis they are put together."""
    value, source = step.value("self"), step.value("src")
    dim = int(step.arguments.get("dim", 0)) % value.ndim
    if source.shape[dim] < value.shape[dim]:
        value = step.tie_pieces(value, dim, source.shape[dim], int(step.arguments.get("step") or 1))
    cut = _window(step, dim)
    window = Value(source.shape, tuple(f[cut] if f.shape[dim] > 1 else f for f in value.fields))
    others = step.meet([window, source], source.shape, but=dim)
    if value.field_on(dim) is None and source.field_on(dim) is None:
        return Value(step.shape, others)
    base, patch = _along(value, dim), _along(source, dim)
    rest = torch.broadcast_shapes(*(tuple(1 if d == dim else s for d, s in enumerate(t.shape)) for t in (base, patch)))
    base = base.expand([base.shape[dim] if d == dim else s for d, s in enumerate(rest)]).clone()
    base[cut] = patch.expand(base[cut].shape)
    return Value(step.shape, (base, *others))


def select_scatter(step: Step) -> Value:
    """A tensor with one index of an axis replaced; on the other axes both meet."""
    value, source, dim = step.value("self"), step.value("src"), step.dim("dim", step.value("self").ndim)
    free = step.stays_on(value, [dim], "replaces a channel by its number")
    patch = Value((*source.shape[:dim], 1, *source.shape[dim:]), tuple(f.unsqueeze(dim) for f in source.fields))
    return Value(step.shape, step.meet([Value(step.shape, free), patch], step.shape))


def index(step: Step) -> Value:
    """Rows of one or several axes taken by tensors of numbers: the other axes pass."""
    value = step.value("self")
    picked = [dim for dim, one in enumerate(step.arguments["indices"]) if one is not None]
    for one in step.arguments["indices"]:
        if one is not None:
            step.stay(one.fields, "says what is picked")
    if _takes_booleans(step, "indices"):
        return refused(step, "picks by a mask, so that the size depends on the data")
    free = step.stays_on(value, picked, _BY_NUMBER)
    taken = len(step.shape) - (value.ndim - len(picked))
    adjacent = picked == list(range(picked[0], picked[-1] + 1))
    # Axes of numbers that stand apart move to the front, as numpy decided.
    place = picked[0] if adjacent else 0
    return Value(step.shape, tuple(_indexed(field, set(picked), place, taken) for field in free))


def _indexed(field: Tensor, picked: set[int], place: int, taken: int) -> Tensor:
    rest = [size for dim, size in enumerate(field.shape) if dim not in picked]
    return field.reshape([*rest[:place], *[1] * taken, *rest[place:]])


def index_select(step: Step) -> Value:
    """Rows of one axis taken by a vector of numbers: the other axes pass."""
    value, dim = step.value("self"), step.dim("dim", step.value("self").ndim)
    step.stay(step.value("index").fields, "says what is picked")
    return Value(step.shape, step.stays_on(value, [dim], _BY_NUMBER), value.source)


def index_put(step: Step) -> Value:
    """One number written into rows, or where a mask of the same shape says so; more than that is refused."""
    value, indices = step.value("self"), step.arguments["indices"]
    if step.value("values").shape not in ((), (1,)):
        return refused(step, "writes a tensor at places given by numbers")
    if _takes_booleans(step, "indices"):
        if len(indices) == 1 and indices[0].shape == value.shape:
            return Value(step.shape, step.meet([value, indices[0]], step.shape))
        return refused(step, "writes where a mask says so")
    for one in indices:
        if one is not None:
            step.stay(one.fields, "says what is written")
    picked = [dim for dim, one in enumerate(indices) if one is not None]
    return Value(step.shape, step.stays_on(value, picked, "writes channels by their numbers"))


def _takes_booleans(step: Step, name: str) -> bool:
    place = [argument.name for argument in step.node.target._schema.arguments].index(name)  # type: ignore[union-attr]
    nodes = step.node.args[place]
    assert isinstance(nodes, (list, tuple))
    return any(isinstance(node, torch.fx.Node) and node.meta["val"].dtype == torch.bool for node in nodes)


RULES = {
    "slice": narrow,
    "select": select,
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "tensor_split"), split),
    "unbind": unbind,
    "cat": cat,
    "stack": stack,
    "slice_scatter": slice_scatter,
    "select_scatter": select_scatter,
    "index": index,
    "index_select": index_select,
    "index_put": index_put,
}
