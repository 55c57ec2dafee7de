"""Linear maps: the operations that read units (sum over them) and write new ones."""

from __future__ import annotations

from torch import Tensor

from headgate.channels.rules.step import Step
from headgate.channels.values import Origin, Value, on_axis, varies


def _contract(step: Step, left: Value, left_dim: int, right: Value, right_dim: int) -> None:
    """Ties the two summed axes and notes the reader: the one that is a parameter, since a mask can be put on it."""
    one, other = step.vector(left, left_dim), step.vector(right, right_dim)
    step.join_vectors(one, other, "reads channels that cannot be removed")
    reader = right if right.source is not None else left
    labels = other if reader is right else one
    if reader.source is None:
        for vector in (one, other):
            if vector is not None:
                step.stay([vector], "sums over channels without a weight that could be masked")
    elif labels is not None:
        step.ledger.read(labels)


def _write(step: Step, weight: Value, dim: int, bias: Value | None) -> Tensor | None:
    """The labels of what the weight's rows produce, tied to the bias."""
    rows = step.vector(weight, dim)
    if bias is not None:
        step.join_vectors(rows, step.vector(bias, bias.ndim - 1), "the bias meets a fixed channel")
    return rows


def linear(step: Step) -> Value:
    """A product with Wᵀ over the last axis, plus a bias."""
    x, weight = step.value("input"), step.value("weight")
    _contract(step, x, x.ndim - 1, weight, 1)
    rows = _write(step, weight, 0, step.optional("bias"))
    last = len(step.shape) - 1
    passing = tuple(f for f in x.fields if last not in varies(f))
    fields = passing if rows is None else (*passing, on_axis(rows, last, last + 1))
    return Value(step.shape, fields, origin=_origin(step, weight, 0, rows, last))


def matmul(step: Step) -> Value:
    """(…, M, K) times (…, K, N)."""
    left, right = _pair(step)
    _contract(step, left, left.ndim - 1, right, right.ndim - 2)
    ndim = len(step.shape)
    free_left = _kept(left, ndim, summed=left.ndim - 1)
    free_right = _kept(right, ndim, summed=right.ndim - 2)
    batch = (
        step.meet([Value(step.shape, free_left), Value(step.shape, free_right)], step.shape)
        if ndim > 2
        else (*free_left, *free_right)
    )
    bias = step.optional("self") if step.operation in ("addmm", "baddbmm") else None
    if bias is None:
        return Value(step.shape, batch)
    return Value(step.shape, step.meet([Value(step.shape, batch), bias], step.shape))


def _pair(step: Step) -> tuple[Value, Value]:
    names = {
        "mm": ("self", "mat2"),
        "bmm": ("self", "mat2"),
        "addmm": ("mat1", "mat2"),
        "baddbmm": ("batch1", "batch2"),
    }
    first, second = names.get(step.operation, ("self", "other"))
    return step.value(first), step.value(second)


def _kept(value: Value, ndim: int, summed: int) -> tuple[Tensor, ...]:
    lead = (1,) * (ndim - value.ndim)
    return tuple(f.reshape(lead + tuple(f.shape)) for f in value.fields if summed not in varies(f))


def convolution(step: Step) -> Value:
    """Convolution and transposed convolution of any rank, grouped or not, with or without a batch axis."""
    x, weight = step.value("input"), step.value("weight")
    transposed = "transpose" in step.operation or bool(step.arguments.get("transposed", False))
    rank, groups = weight.ndim - 2, int(step.arguments.get("groups", 1))
    channel = x.ndim - rank - 1
    x = step.settled(x, channel)
    passing = step.stays_on(x, range(channel + 1, x.ndim), "mixes positions, and units lie along them")
    step.stays_silently(weight, range(2, weight.ndim))
    rows_dim, columns_dim = (1, 0) if transposed else (0, 1)
    if groups == 1:
        _contract(step, x, channel, weight, columns_dim)
        produced = _write(step, weight, rows_dim, step.optional("bias"))
    else:
        produced = _grouped(step, step.vector(x, channel), weight, groups, transposed)
    fields = tuple(f for f in passing if channel not in varies(f))
    if produced is not None:
        fields = (*fields, on_axis(produced, channel, x.ndim))
    origin = _origin(step, weight, rows_dim, produced, channel) if groups == 1 else None
    return Value(step.shape, fields, origin=origin)


def _origin(step: Step, weight: Value, rows_dim: int, rows: Tensor | None, channel: int) -> Origin | None:
    """This map as the possible end of a residual branch, where its weight and bias are parameters as they are."""
    bias = step.optional("bias")
    if rows is None or weight.source is None or (bias is not None and bias.source is None):
        return None
    axes = [(weight.source, rows_dim)] + ([] if bias is None or bias.source is None else [(bias.source, 0)])
    return Origin(step.path, channel, rows, tuple(axes), tuple(axes))


def _grouped(step: Step, inputs: Tensor | None, weight: Value, groups: int, transposed: bool) -> Tensor | None:
    """One unit per convolution group: its inputs and its outputs live and die together; nothing is summed across."""
    step.stays_silently(weight, [1])
    outer = step.vector(weight, 0)
    bias = step.optional("bias")
    bias_labels = None if bias is None else step.vector(bias, 0)
    width = weight.shape[1] if transposed else weight.shape[0] // groups
    if inputs is None or outer is None:
        step.join_vectors(inputs, outer, "groups channels that cannot be removed")
        step.join_vectors(None, bias_labels, "the bias meets a fixed channel")
        return None
    unit = inputs.reshape(groups, -1)[:, :1]
    obstacle = step.obstacle("groups it with a channel that must stay")
    step.ledger.join(inputs.reshape(groups, -1), unit, obstacle)
    step.ledger.join(outer.reshape(groups, -1), unit, obstacle)
    produced = unit.expand(groups, width).reshape(-1)
    if bias_labels is not None:
        step.ledger.join(bias_labels, produced, obstacle)
    return produced if produced.numel() > 1 else None


def embedding(step: Step) -> Value:
    """Rows looked up by number: the width is what carries units."""
    weight = step.value("weight")
    rows = step.vector(weight, 0)
    if rows is not None:
        step.ledger.stay(rows, None)
    columns = step.vector(weight, 1)
    last = len(step.shape) - 1
    return Value(step.shape, () if columns is None else (on_axis(columns, last, last + 1),))


RULES = {
    "linear": linear,
    **dict.fromkeys(
        (
            "mm",
            "bmm",
            "addmm",
            "baddbmm",
            "matmul",
        ),
        matmul,
    ),
    **dict.fromkeys(
        (
            "conv1d",
            "conv2d",
            "conv3d",
            "conv_transpose1d",
            "conv_transpose2d",
            "conv_transpose3d",
            "convolution",
        ),
        convolution,
    ),
    "embedding": embedding,
}
