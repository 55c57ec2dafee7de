"""Weights times masks, as one node of the autograd graph that may be gone through any number of times.

The node saves nothing the ordinary way. Reentrant activation checkpointing goes back through it piece by piece, and the
other kind counts what a recomputation saves: both rule an ordinary graph, shared by a whole forward, out.

Small weights of equal shape are stacked and multiplied together: in deep thin networks the number of operations is
what costs, in wide ones the memory traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from headgate import fused

# The masked axes of a stack of weights, counted in one weight, and the mask vectors along each, shape (stack, axis).
Vectors: TypeAlias = list[tuple[int, Tensor]]

# Above this many elements a weight is multiplied by itself: copying it into a stack would cost more than it saves.
STACKED_BELOW = 1 << 17
# This many elements at a time stay in a core's cache.
CACHED = 1 << 17


def grouped(weights: Sequence[Tensor], axes: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Which weights, by number, are multiplied together: small ones alike in shape, layout and masked axes."""
    groups: dict[Any, list[int]] = {}
    for number, (weight, masked) in enumerate(zip(weights, axes, strict=True)):
        small = weight.numel() < STACKED_BELOW
        kind = (weight.shape, weight.dtype, _is_channels_last(weight), masked)
        groups.setdefault(kind if small else number, []).append(number)
    return list(groups.values())


def product(stack: Tensor, vectors: Vectors, dtype: torch.dtype | None = None) -> Tensor:
    """A stack of weights times a vector along each of some axes, the vectors in its own dtype or a wider one."""
    # The vectors among themselves first: their product is small, and the weights are gone through once.
    factors = [_along(vector.to(dtype or stack.dtype), axis, stack.dim()) for axis, vector in vectors]
    return stack * reduce(torch.mul, factors) if factors else stack


def mask_weights(
    offset: Tensor, vectors: Callable[[Tensor], list[Vectors]], weights: Sequence[Tensor], groups: list[list[int]]
) -> tuple[Tensor, ...]:
    """Every weight times its mask vectors, differentiable in weights and offsets.

    `vectors` computes the mask vectors of each group from the offsets. Under autocast, matrices come out in the dtype
    that autocast would cast them to anyway.
    """
    masked: tuple[Tensor, ...] = _MaskWeights.apply(offset, vectors, groups, *weights)  # type: ignore[no-untyped-call]
    return masked


class _MaskWeights(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, offset: Tensor, vectors: Callable[[Tensor], list[Vectors]], groups: list[list[int]], *weights: Tensor
    ) -> tuple[Tensor, ...]:
        # Hooks of our own keep those of activation checkpointing, which count what is saved, away from the inner graph.
        with torch.enable_grad(), saved_tensors_hooks(_itself, _itself):
            ctx.offset = offset.detach().requires_grad_()
            ctx.vectors = vectors(ctx.offset)
        ctx.groups, ctx.weights = groups, weights
        ctx.again = offset, vectors
        ctx.set_materialize_grads(False)
        masked: list[Tensor] = list(weights)
        with torch.no_grad():
            for group, one in zip(groups, ctx.vectors, strict=True):
                for number, result in zip(group, _masked([weights[number] for number in group], one), strict=True):
                    masked[number] = result
        return tuple(masked)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            return _differentiable_backward(ctx, gradients)
        outputs: list[Tensor] = []
        received: list[Tensor] = []
        passed: list[Tensor | None] = [None] * len(gradients)
        for group, vectors in zip(ctx.groups, ctx.vectors, strict=True):
            given = [gradients[number] for number in group]
            found = _went_back(given, [ctx.weights[number] for number in group], _values(vectors))
            if found is None:
                continue
            for number, result in zip(group, found[0], strict=True):
                wanted = ctx.needs_input_grad[number + 3] and gradients[number] is not None
                passed[number] = result if wanted else None
            outputs += [vector for _, vector in vectors]
            received += found[1]
        if not outputs or not ctx.needs_input_grad[0]:
            return None, None, None, *passed
        (offset,) = torch.autograd.grad(outputs, ctx.offset, received, retain_graph=True)
        return offset, None, None, *passed


def _differentiable_backward(ctx: Any, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """For gradients of gradients (create_graph=True): computed anew, by plain operations that have derivatives too."""
    offset, vectors = ctx.again
    masked: dict[int, Tensor] = {}
    for group, one in zip(ctx.groups, vectors(offset), strict=True):
        stack = product(_stacked([ctx.weights[number] for number in group]), one)
        masked.update(zip(group, stack.unbind(0), strict=True))
    used = [(masked[number], gradient) for number, gradient in enumerate(gradients) if gradient is not None]
    wanted = [each for each in (offset, *ctx.weights) if each.requires_grad]
    outputs = [output for output, _ in used]
    received = [gradient.to(output.dtype) for output, gradient in used]
    found = iter(torch.autograd.grad(outputs, wanted, received, create_graph=True, allow_unused=True))
    slope, *passed = [next(found) if each.requires_grad else None for each in (offset, *ctx.weights)]
    return slope, None, None, *passed


def _masked(weights: list[Tensor], vectors: Vectors) -> Sequence[Tensor]:
    """Weights that are multiplied together, times their vectors; in the dtype of autocast where that is on."""
    first = weights[0]
    dtype, kind = first.dtype, first.device.type
    if dtype == torch.float32 and first.dim() > 1 and torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
    if how := fused.plan(weights, vectors):
        return [fused.multiply(first, _lone(vectors), how, dtype)]
    stack = _stacked(weights)
    if dtype == first.dtype:
        return product(stack, vectors).unbind(0)
    # One pass over memory instead of two.
    *others, (axis, vector) = vectors
    stack = product(stack, others)
    result = torch.empty_like(stack, dtype=dtype)
    return torch.mul(stack, _along(vector.to(stack.dtype), axis, stack.dim()), out=result).unbind(0)


def _went_back(
    gradients: Sequence[Tensor | None], weights: list[Tensor], vectors: Vectors
) -> tuple[Sequence[Tensor], list[Tensor]] | None:
    """The gradients of weights that were multiplied together, and of their vectors; None if no weight was used."""
    stack = _stacked_gradients(gradients, weights[0])
    if stack is None:
        return None
    if how := fused.plan(weights, vectors):
        passed, sums = fused.go_back(stack[0], weights[0], _lone(vectors), how)
        return [passed], [one.unsqueeze(0).to(vector.dtype) for one, (_, vector) in zip(sums, vectors, strict=True)]
    # Under autocast gradients arrive in its dtype, and go on in the weight's.
    through = product(stack, vectors, weights[0].dtype)
    return through.unbind(0), _vector_gradients(stack, weights, vectors)


def _lone(vectors: Vectors) -> list[Tensor]:
    """The vectors of the only weight of a stack."""
    return [vector[0] for _, vector in vectors]


def _values(vectors: Vectors) -> Vectors:
    """Detached from the inner graph."""
    return [(axis, vector.detach()) for axis, vector in vectors]


def _vector_gradients(gradients: Tensor, weights: Sequence[Tensor], vectors: Vectors) -> list[Tensor]:
    """The gradient of each vector: gradient times weight, times the other vectors, summed over all other axes."""
    lone = weights[0]
    plain = lone.device.type == "cpu" and lone.is_contiguous() and lone.dtype == gradients.dtype and lone.dim() > 1
    if plain and len(weights) == 1 and all(axis < 2 for axis, _ in vectors):
        return _in_the_cache(gradients[0], lone, vectors)
    slopes, found = gradients * _stacked(weights), []
    for number, (axis, vector) in enumerate(vectors):
        others = [*vectors[:number], *vectors[number + 1 :]]
        found.append(_sum_but(product(slopes, others), axis + 1).to(vector.dtype))
    return found


def _in_the_cache(gradient: Tensor, weight: Tensor, vectors: Vectors) -> list[Tensor]:
    """As `_vector_gradients` for one large weight in main memory, some rows at a time: what is in between stays small.

    A product of full size would be written to fresh memory, which costs more than the sums. Masked are axes 0 and 1.
    """
    inputs, area = weight.shape[1], weight[0, 0].numel()
    along = {axis: vector[0].to(weight.dtype) for axis, vector in vectors}
    rows, columns = along.get(0, weight.new_ones(len(weight))), along.get(1, weight.new_ones(inputs))
    columns = columns.repeat_interleave(area)
    found = {0: torch.empty_like(rows), 1: torch.zeros_like(columns)}
    step = max(1, CACHED // weight[0].numel())
    for start in range(0, len(weight), step):
        part = slice(start, start + step)
        slopes = (gradient[part] * weight[part]).flatten(1)
        if 0 in along:
            found[0][part] = slopes @ columns
        if 1 in along:
            found[1] += rows[part] @ slopes
    found[1] = found[1].view(inputs, area).sum(1)
    return [found[axis].unsqueeze(0).to(vector.dtype) for axis, vector in vectors]


def _sum_but(stack: Tensor, axis: int) -> Tensor:
    """The sum over all axes but the first and one other, shape (stack, axis)."""
    if len(stack) > 1 or stack.dim() == 2:
        others = [dim for dim in range(1, stack.dim()) if dim != axis]
        return stack.sum(others) if others else stack
    # One large weight: products with ones are much faster than a sum over scattered axes.
    weight, axis = stack[0], axis - 1
    if axis == 1 and weight.is_contiguous():
        matrix = weight.flatten(1)
        return (matrix.new_ones(matrix.shape[0]) @ matrix).view(1, weight.shape[1], -1).sum(2)
    matrix = weight.movedim(axis, -1).reshape(-1, weight.shape[axis])
    return (matrix.new_ones(matrix.shape[0]) @ matrix).unsqueeze(0)


def _stacked(weights: Sequence[Tensor]) -> Tensor:
    """Along a new first axis; the memory layout of one weight is that of each."""
    if len(weights) == 1:
        return weights[0].unsqueeze(0)
    if _is_channels_last(weights[0]):
        return torch.stack([weight.permute(0, 2, 3, 1) for weight in weights]).permute(0, 1, 4, 2, 3)
    return torch.stack(list(weights))


def _stacked_gradients(gradients: Sequence[Tensor | None], like: Tensor) -> Tensor | None:
    """As `_stacked`, zeros for weights that were not used; None if none was."""
    first = next((gradient for gradient in gradients if gradient is not None), None)
    if first is None:
        return None
    layout = torch.channels_last if _is_channels_last(like) else torch.contiguous_format
    filled = [torch.zeros_like(first) if gradient is None else gradient for gradient in gradients]
    return _stacked([gradient.contiguous(memory_format=layout) for gradient in filled])


def _is_channels_last(weight: Tensor) -> bool:
    return weight.dim() == 4 and weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()


def _along(vector: Tensor, axis: int, dims: int) -> Tensor:
    shape = [len(vector)] + [1] * (dims - 1)
    shape[axis + 1] = vector.shape[1]
    return vector.view(shape)


def _itself(tensor: Tensor) -> Tensor:
    return tensor
