"""What is known of one tensor in the traced graph: along which of its axes it carries units, and which ones.

A *field* is an integer tensor of labels that broadcasts against the value: size 1 along an axis means that the labels
do not depend on it. An activation of shape (B, C, H, W) with prunable channels has one field of shape (1, C, 1, 1); a
weight matrix has two, (O, 1) and (1, I). Operations that only move data move the fields alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

# The bit of a history that says: depends on what the model is called with.
INPUT = 1


@dataclass(frozen=True)
class Origin:
    """The last linear map behind a value: silencing rows of `masked` makes its channels zero, whatever went in.

    `path` is the module that computes it, `dim` the axis of its channels, `labels` their labels; `sliced` are the axes
    that can then be cut, this map's own and those of a convolution that only it reads. `block` is the module that does
    nothing but add the branch to its input, if there is one.
    """

    path: str
    dim: int
    labels: Tensor
    masked: tuple[tuple[str, int], ...]
    sliced: tuple[tuple[str, int], ...]
    block: str | None = None


@dataclass(frozen=True)
class Value:
    """One tensor: its shape, its fields, and where it comes from.

    `source` is the named tensor it is, where it is one or a mere rearrangement of one. `origin` is the linear map
    behind an activation, as long as all operations since send 0 to 0. `history` has one bit for every layer with
    parameters on the way here, and INPUT. `shared` means that several operations use it. `silenced_by` are the rows,
    weight and bias, of the linear map behind it, as long as a unit whose rows are zero there is zero here;
    `heard_after` says, in words, which operation ended that.
    """

    shape: tuple[int, ...]
    fields: tuple[Tensor, ...] = ()
    source: str | None = None
    origin: Origin | None = None
    history: int = 0
    shared: bool = False
    silenced_by: tuple[tuple[str, int], ...] = ()
    heard_after: str = ""

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    def with_fields(self, fields: tuple[Tensor, ...]) -> Value:
        """The same value with other fields."""
        return replace(self, fields=fields)

    def field_on(self, dim: int) -> Tensor | None:
        """The field that varies along `dim`, if there is one."""
        return next((field for field in self.fields if field.shape[dim] > 1), None)


def varies(field: Tensor) -> set[int]:
    """The axes along which a field's labels differ."""
    return {dim for dim, size in enumerate(field.shape) if size > 1}


def on_axis(labels: Tensor, dim: int, ndim: int) -> Tensor:
    """A vector of labels as a field along `dim` of a value with `ndim` axes."""
    shape = [1] * ndim
    shape[dim] = -1
    return labels.reshape(shape)


def moved(value: Value, shape: tuple[int, ...], move: Callable[[Tensor], Tensor]) -> Value:
    """The value after a data movement, by moving each field, written out in full, in the same way."""
    fields = (compressed(move(field.expand(value.shape))) for field in value.fields)
    return Value(shape, tuple(field for field in fields if varies(field)), value.source)


def compressed(field: Tensor) -> Tensor:
    """The same field with size 1 along every axis on which it does not depend."""
    for dim in range(field.ndim):
        first = field.narrow(dim, 0, min(1, field.shape[dim]))
        if field.shape[dim] > 1 and bool((field == first).all()):
            field = first
    return field


def reshaped(value: Value, shape: tuple[int, ...]) -> Value:
    """The value in another shape; fields are written out only over the axes that the view merges or splits."""
    blocks = matching_blocks(value.shape, shape)
    fields = (compressed(_reshape_field(field, value.shape, shape, blocks)) for field in value.fields)
    return Value(shape, tuple(field for field in fields if varies(field)), value.source)


def _reshape_field(field: Tensor, old: tuple[int, ...], new: tuple[int, ...], blocks: list[tuple[Any, Any]]) -> Tensor:
    full, target = list(field.shape), [1] * len(new)
    for before, after in blocks:
        if any(field.shape[dim] > 1 for dim in before):
            for dim in before:
                full[dim] = old[dim]
            for dim in after:
                target[dim] = new[dim]
    return field.expand(full).reshape(target)


def matching_blocks(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[range, range]]:
    """Shortest runs of axes of both shapes that hold the same number of elements."""
    blocks, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        start = (i, j)
        left = right = 1
        if i < len(old):
            left, i = old[i], i + 1
        if j < len(new):
            right, j = new[j], j + 1
        while left != right:
            if left < right or j == len(new):
                left, i = left * old[i], i + 1
            else:
                right, j = right * new[j], j + 1
        blocks.append((range(start[0], i), range(start[1], j)))
    return blocks


def permuted(value: Value, dims: list[int]) -> Value:
    """Axes in another order."""
    shape = tuple(value.shape[dim] for dim in dims)
    return Value(shape, tuple(field.permute(dims) for field in value.fields), value.source)


def aligned(field: Tensor, ndim: int) -> Tensor:
    """The field with leading axes added, as broadcasting does."""
    return field.reshape((1,) * (ndim - field.ndim) + tuple(field.shape))


def as_vector(field: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The field as a vector along `dim` and, for fields that depend on other axes too, all rows to tie to it."""
    rows = field.movedim(dim, -1).reshape(-1, field.shape[dim])
    return rows[0], rows
