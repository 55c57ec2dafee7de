"""Large weights on a GPU, multiplied by their masks in one pass over memory; where and how `headgate.kernels` is used.

torch's own kernels need several passes: a broadcast product is not vectorised, and gradient times weight is written out
before it is summed. What they compute, in `headgate.product`, is the definition; here it is only computed faster.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headgate.errors import HeadgateWarning

TILE_ROWS, TILE_COLUMNS = 64, 64
_ORDINARY: tuple[type[Tensor], ...] = (Tensor, nn.Parameter)


@dataclass(frozen=True)
class Layout:
    """A weight as the matrix that it is in memory, and what its masks' entries belong to (see `headgate.kernels`)."""

    rows: int
    columns: int
    size: int
    inner: int
    axes: tuple[int, ...]

    @property
    def sides(self) -> tuple[bool, bool]:
        """Whether there is a mask along the rows, and along the columns."""
        return 0 in self.axes, any(axis > 0 for axis in self.axes)

    @property
    def tiles(self) -> tuple[int, int]:
        """How many tiles cover the rows, and how many the columns."""
        return -(-self.rows // TILE_ROWS), -(-self.columns // TILE_COLUMNS)


def layout(weight: Tensor, axes: tuple[int, ...]) -> Layout | None:
    """How the kernels see this weight, masked along these axes; None if they cannot."""
    others = [axis for axis in axes if axis > 0]
    if weight.dim() < 2 or weight.numel() == 0 or len(others) > 1 or len(axes) - len(others) > 1:
        return None
    rows, columns = weight.shape[0], weight.shape[1:].numel()
    if weight.is_contiguous():
        size, inner = (weight.shape[others[0]], weight.shape[others[0] + 1 :].numel()) if others else (1, 1)
    elif weight.dim() == 4 and weight.is_contiguous(memory_format=torch.channels_last) and others in ([], [1]):
        size, inner = weight.shape[1], 1
    else:
        return None
    return Layout(rows, columns, size, inner, axes)


def plan(weights: Sequence[Tensor], vectors: Sequence[tuple[int, Tensor]]) -> Layout | None:
    """How to multiply these weights by vectors along these axes here, or None: the plain way. A stack is small."""
    if len(weights) > 1 or not is_fast_for(weights[0]):
        return None
    return layout(weights[0], tuple(axis for axis, _ in vectors))


def is_fast_for(weight: Tensor) -> bool:
    """Whether the kernels may be used: an ordinary float32 weight on a GPU, with a Triton that works there."""
    if not weight.is_cuda or weight.dtype != torch.float32 or type(weight) not in _ORDINARY:
        return False
    # Whoever watches or imitates operations (fake tensors, selective checkpointing) must see plain ones.
    return torch._C._len_torch_dispatch_stack() == 0 and _works_on(weight.device)


def multiply(weight: Tensor, vectors: list[Tensor], how: Layout, dtype: torch.dtype) -> Tensor:
    """The weight times its mask vectors, one for each of the layout's axes, in the given dtype."""
    result = torch.empty_like(weight, dtype=dtype)
    by_row, by_column = _sides(weight, vectors, how)
    _launch("multiply", weight, (weight, by_row, by_column, result), how)
    return result


def go_back(gradient: Tensor, weight: Tensor, vectors: list[Tensor], how: Layout) -> tuple[Tensor, list[Tensor]]:
    """The gradients of the weight, in its dtype, and of each vector. The incoming one lies as the weight does."""
    passed = torch.empty_like(weight)
    (row_tiles, column_tiles), (has_row, has_column) = how.tiles, how.sides
    row_sums = weight.new_empty(column_tiles * has_row, how.rows)
    column_sums = weight.new_empty(row_tiles * has_column, how.columns)
    by_row, by_column = _sides(weight, vectors, how)
    _launch("go_back", weight, (gradient, weight, by_row, by_column, passed, row_sums, column_sums), how)
    return passed, [_sum(row_sums if axis == 0 else column_sums, axis, how) for axis in how.axes]


def _sum(parts: Tensor, axis: int, how: Layout) -> Tensor:
    """The second pass: the tiles' sums, added up for each entry of the mask."""
    return parts.sum(0) if axis == 0 else parts.view(len(parts), -1, how.size, how.inner).sum((0, 1, 3))


def _sides(weight: Tensor, vectors: list[Tensor], how: Layout) -> tuple[Tensor, Tensor]:
    """The masks along rows and columns, in the weight's dtype; where there is none, anything."""
    found = {min(axis, 1): vector.to(weight.dtype).contiguous() for axis, vector in zip(how.axes, vectors, strict=True)}
    return found.get(0, weight), found.get(1, weight)


def _launch(name: str, weight: Tensor, tensors: tuple[Tensor, ...], how: Layout) -> None:
    kernel = getattr(_kernels(), name)
    sizes = (how.rows, how.columns, how.size, how.inner)
    with torch.cuda.device(weight.device):
        kernel[how.tiles](*tensors, *sizes, *how.sides, TILE_ROWS, TILE_COLUMNS)


def _kernels() -> Any:
    """Imported when first used: most installations have no GPU, and no Triton."""
    return importlib.import_module("headgate.kernels")


_works: dict[torch.device, bool] = {}


def _works_on(device: torch.device) -> bool:
    """Whether the kernels run there, tried once; not while a CUDA graph is captured, when nothing can be compiled."""
    if device not in _works:
        if torch.cuda.is_current_stream_capturing():
            return False
        _works[device] = importlib.util.find_spec("triton") is not None and _try(device)
    return _works[device]


def _try(device: torch.device) -> bool:
    """Triton needs more than itself to run, a C compiler above all."""
    weight = torch.ones(2, 2, device=device)
    try:
        multiply(weight, [weight[0]], Layout(2, 2, 2, 1, (1,)), torch.float32)
    except Exception as error:
        message = f"Triton does not work on {device}, so large weights are masked in a slower way: {error}"
        warnings.warn(message, HeadgateWarning, stacklevel=2)
        return False
    return True
