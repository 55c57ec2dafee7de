"""Running a model in evaluation mode to compare what it returns, and how far apart rounding may bring two of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from headgate.channels.example import Example
from headgate.layers import without_fast_paths

# Largest allowed difference relative to the largest output; sums are taken in another order after removal.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, every module's own flag restored afterwards."""
    flags = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, flag in flags.items():
            module.training = flag


def evaluated(model: nn.Module, example: Example) -> Any:
    """What the model returns in evaluation mode, on tensors of its own: its code may write into them."""
    given = example.fresh()
    with evaluating(model), without_fast_paths():
        return model(*given.args, **given.kwargs)


def tolerance_of(model: nn.Module, outputs: Any) -> float:
    """What rounding may do, by the widest type of error among the model's and its outputs' dtypes."""
    floating = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return max(TOLERANCES.get(dtype, 1e-4) for dtype in (floating, *_dtypes(outputs)))


def _dtypes(outputs: Any) -> list[torch.dtype]:
    found: list[torch.dtype] = []
    tree_map(lambda leaf: found.append(leaf.dtype) if isinstance(leaf, Tensor) else None, outputs)
    return found
