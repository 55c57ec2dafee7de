"""Normalisation: per channel (transparent), per norm group (whole groups are units), over channels (an end)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headgate.channels.rules.step import Step
from headgate.channels.values import Origin, Value, on_axis

_STATISTICS = ("weight", "bias", "running_mean", "running_var")


def batch_norm(step: Step) -> tuple[Value, ...]:
    """Every channel by itself over the batch; scale, shift and running statistics go with it."""
    x = step.value("input")
    channel = 1 if x.ndim > 1 else 0
    normalised, labels = _per_channel(step, x, channel)
    outputs = [normalised]
    for shape in step.shapes[1:]:
        per_channel = shape is not None and labels is not None and shape == tuple(labels.shape)
        outputs.append(Value(shape or (), (labels,) if per_channel and labels is not None else ()))
    return tuple(outputs) if len(step.shapes) > 1 else (normalised,)


def instance_norm(step: Step) -> Value:
    """Every channel of every example by itself."""
    return _per_channel(step, step.value("input"), 1)[0]


def _per_channel(step: Step, x: Value, channel: int) -> tuple[Value, Tensor | None]:
    x = step.settled(x, channel)
    labels = step.vector(x, channel)
    for name in _STATISTICS:
        if (tensor := step.optional(name)) is not None:
            step.join_vectors(labels, step.vector(tensor, 0), "normalises a channel that must stay")
    others = [dim for dim in range(x.ndim) if dim != channel]
    step.stays_on(x, others, "averages over positions, and units lie along them")
    if labels is None:
        return Value(step.shape), None
    step.width(labels)
    return Value(step.shape, (on_axis(labels, channel, x.ndim),), origin=_origin(step, x, channel)), labels


def _origin(step: Step, x: Value, channel: int) -> Origin | None:
    """Scale and shift as the end of a residual branch, with the convolution that nothing else reads."""
    tensors = [tensor for name in _STATISTICS if (tensor := step.optional(name)) is not None]
    scale, shift, before = step.optional("weight"), step.optional("bias"), x.origin
    if scale is None or shift is None or before is None or x.shared:
        return None
    labels = step.vector(x, channel)
    if labels is None or not torch.equal(labels, before.labels) or not all(map(step.is_whole, tensors)):
        return None
    own = tuple((str(tensor.source), 0) for tensor in tensors)
    return Origin(step.path, channel, before.labels, own[:2], (*before.sliced, *own))


def group_norm(step: Step) -> Value | tuple[Value, ...]:
    """Statistics over each group of channels: exact if whole groups go."""
    x = step.arguments.get("input")
    assert isinstance(x, Value)
    groups = int(step.arguments["num_groups" if "num_groups" in step.arguments else "group"])
    x = step.settled(x, 1)
    labels = step.vector(x, 1)
    passing = step.stays_on(x, range(2, x.ndim), "averages over positions, and units lie along them")
    if labels is not None:
        rows = labels.reshape(groups, -1)
        step.ledger.join(rows, rows[:, :1], step.obstacle("normalises it with a channel that must stay"))
        step.width(labels)
    for name in ("weight", "bias"):
        if (tensor := step.optional(name)) is not None:
            step.join_vectors(labels, step.vector(tensor, 0), "normalises a channel that must stay")
    results = (Value(step.shape, passing), *(Value(shape or ()) for shape in step.shapes[1:]))
    return results if len(results) > 1 else results[0]


def layer_norm(step: Step) -> Value | tuple[Value, ...]:
    """Statistics over the last axes: what lies along them is mixed and must stay."""
    x = step.value("input")
    rank = len(step.arguments["normalized_shape"])
    reason = "normalises over channels, so that each depends on all"
    passing = step.stays_on(x, range(-rank, 0), reason)
    for name in ("weight", "bias"):
        if (tensor := step.optional(name)) is not None:
            step.stay(tensor.fields, reason)
    results = (Value(step.shape, passing), *(Value(shape or ()) for shape in step.shapes[1:]))
    return results if len(results) > 1 else results[0]


_BATCH_NORMS = (
    "_native_batch_norm_legit", "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training",
    "native_batch_norm", "batch_norm", "_batch_norm_with_update_functional", "_batch_norm_no_update",
)  # fmt: skip

_GROUP_NORMS = ("group_norm", "native_group_norm")
# Those that leave units apart.
OF_CHANNELS = frozenset({*_BATCH_NORMS, "instance_norm", *_GROUP_NORMS})

RULES: dict[str, Callable[[Step], Value | tuple[Value, ...]]] = {
    **dict.fromkeys(_BATCH_NORMS, batch_norm),
    "instance_norm": instance_norm,
    **dict.fromkeys(_GROUP_NORMS, group_norm),
    **dict.fromkeys(("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm"), layer_norm),
}
