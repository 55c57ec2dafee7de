"""Linear maps: the operations that read units (sum over them) and write new ones."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from headgate.channels.rules.step import Step, module_kind
from headgate.channels.values import Origin, Value, on_axis, varies

_SUMS = "sums over channels without a parameter of its own that could be masked"
_PACKED = ("MultiheadAttention", "FewerHeads")
_PACKS = (
    "torch's MultiheadAttention scales queries and keys by their number, and all its heads have one size; of attention "
    "that is written out, with a scale of its own, places can go"
)


def contract(step: Step, left: Value, left_dim: int, right: Value, right_dim: int) -> None:
    """Ties the two summed axes and notes the reader: the one that is a parameter, since a mask can be put on it.

    Of two activations, as queries and keys are, one is silent where the rows of the map that wrote it are.
    """
    one, other = step.vector(left, left_dim), step.vector(right, right_dim)
    step.join_vectors(one, other, "reads channels that cannot be removed")
    for value, labels in ((right, other), (left, one)):
        if step.maskable(value, labels):
            assert labels is not None
            step.ledger.read(labels)
            return
    why = why_heard(step, left, right)
    if one is not None and other is not None and why is None:
        step.ledger.silence(one, left.silenced_by or right.silenced_by, step.obstacle(_SUMS))
        return
    for vector in (one, other):
        if vector is not None:
            step.stay([vector], why or _SUMS)


def why_heard(step: Step, left: Value, right: Value) -> str | None:
    """Why no mask silences a channel over which two activations are summed; None if one on rows of a weight does."""
    if module_kind(step.node).endswith(_PACKED):
        return _PACKS
    if left.silenced_by or right.silenced_by:
        return None
    after = dict.fromkeys(value.heard_after for value in (left, right) if value.heard_after)
    past = f"; a mask on the rows that write them does not get past {' and '.join(after)} (a rotation, a norm, a shift)"
    return _SUMS + past if after else _SUMS


def shared_axes(step: Step, left: Value, right: Value, dims: Iterable[tuple[int, int]]) -> None:
    """Notes the heads of an attention: axes, of the left and of the right, that two activations share in a product."""
    if left.source is None and right.source is None:
        for value, dim in ((value, dim) for pair in dims for value, dim in zip((left, right), pair, strict=True)):
            for field in value.fields:
                if varies(field) == {dim % value.ndim}:
                    step.ledger.heads(field, step.path)


def _write(step: Step, weight: Value, dim: int, bias: Value | None) -> Tensor | None:
    """The labels of what the weight's rows produce, tied to the bias."""
    rows = step.vector(weight, dim)
    if bias is not None:
        step.join_vectors(rows, step.vector(bias, bias.ndim - 1), "the bias meets a fixed channel")
    return rows


def linear(step: Step) -> Value:
    """A product with Wᵀ over the last axis, plus a bias."""
    x, weight = step.value("input"), step.value("weight")
    contract(step, x, x.ndim - 1, weight, 1)
    rows = _write(step, weight, 0, step.optional("bias"))
    last = len(step.shape) - 1
    passing = tuple(f for f in x.fields if last not in varies(f))
    fields = passing if rows is None else (*passing, on_axis(rows, last, last + 1))
    return Value(step.shape, fields, origin=_origin(step, weight, 0, rows, last))


def bilinear(step: Step) -> Value:
    """xᵀ W y for every row of W: both inputs are read, each along its own axis of W."""
    left, right, weight = step.value("input1"), step.value("input2"), step.value("weight")
    contract(step, left, left.ndim - 1, weight, 1)
    contract(step, right, right.ndim - 1, weight, 2)
    rows = _write(step, weight, 0, step.optional("bias"))
    last = len(step.shape) - 1
    free = [Value((*v.shape[:-1], 1), tuple(f for f in v.fields if last not in varies(f))) for v in (left, right)]
    passing = step.meet(free, step.shape)
    return Value(step.shape, passing if rows is None else (*passing, on_axis(rows, last, last + 1)))


def matmul(step: Step) -> Value:
    """(…, M, K) times (…, K, N), either of them possibly a vector, plus what addmm adds."""
    left, right = _pair(step)
    contract(step, left, left.ndim - 1, right, max(right.ndim - 2, 0))
    shared_axes(step, left, right, ((dim, dim) for dim in range(-min(left.ndim, right.ndim), -2)))
    rows, columns = _free(left, left.ndim - 1, is_left=True), _free(right, max(right.ndim - 2, 0), is_left=False)
    ndim = max(rows.ndim, columns.ndim)
    fields = step.meet([rows, columns], (1,) * ndim)
    # A vector's missing axis was only lent to it.
    lent = [dim for factor, dim in ((left, ndim - 2), (right, ndim - 1)) if factor.ndim == 1]
    fields = tuple(f.reshape([s for d, s in enumerate(f.shape) if d not in lent]) for f in fields)
    bias = step.optional("self") if step.operation in ("addmm", "baddbmm", "addmv") else None
    if bias is not None:
        fields = step.meet([Value(step.shape, fields), bias], step.shape)
    return Value(step.shape, fields, silenced_by=_columns(step, right, bias))


def _columns(step: Step, weight: Value, bias: Value | None) -> tuple[tuple[str, int], ...]:
    """The columns of a weight, and the bias, that silence what they write; none unless they are whole parameters."""
    parts = [(weight, 1), *(() if bias is None else ((bias, 0),))]
    whole = all(part.ndim == axis + 1 and step.is_whole(part) for part, axis in parts)
    return tuple((str(part.source), axis) for part, axis in parts) if whole else ()


def _pair(step: Step) -> tuple[Value, Value]:
    names = {
        "mm": ("self", "mat2"), "bmm": ("self", "mat2"), "addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"),
        "mv": ("self", "vec"), "addmv": ("mat", "vec"), "dot": ("self", "tensor"),
    }  # fmt: skip
    first, second = names.get(step.operation, ("self", "other"))
    return step.value(first), step.value(second)


def _free(value: Value, summed: int, is_left: bool) -> Value:
    """What is left of a factor, with size 1 where the other one has its own axis."""
    fields = tuple(f for f in value.fields if summed not in varies(f))
    if value.ndim == 1:
        return Value((1, 1))
    shape = (*value.shape[:-1], 1) if is_left else (*value.shape[:-2], 1, value.shape[-1])
    return Value(shape, fields)


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
        contract(step, x, channel, weight, columns_dim)
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
    if rows is None or not step.is_whole(weight) or (bias is not None and not step.is_whole(bias)):
        return None
    axes = [(str(weight.source), rows_dim)] + ([] if bias is None else [(str(bias.source), 0)])
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
    return produced


def embedding(step: Step) -> Value | tuple[Value, ...]:
    """Rows looked up by number, one by one or summed in bags: the width is what carries units."""
    weight = step.value("weight")
    rows = step.vector(weight, 0)
    if rows is not None:
        step.ledger.stay(rows, None)
    columns = step.vector(weight, 1)
    last = len(step.shape) - 1
    looked_up = Value(step.shape, () if columns is None else (on_axis(columns, last, last + 1),))
    others = tuple(Value(shape or ()) for shape in step.shapes[1:])
    return (looked_up, *others) if others else looked_up


_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "matmul", "mv", "addmv", "dot")
CONVOLUTIONS = (
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
)  # fmt: skip

RULES = {
    "linear": linear,
    "bilinear": bilinear,
    **dict.fromkeys(_PRODUCTS, matmul),
    **dict.fromkeys(CONVOLUTIONS, convolution),
    **dict.fromkeys(("embedding", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"), embedding),
}
