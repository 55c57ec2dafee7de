"""Many ranges at once, without a loop."""

from __future__ import annotations

import torch
from torch import Tensor


def ragged(lengths: Tensor, total: int | None = None) -> tuple[Tensor, Tensor]:
    """For ranges of these lengths, laid end to end: of every place, the number of its range and how far in it is.

    Args:
        lengths: whole numbers, shape (ranges,).
        total: their sum, where it is known; on a GPU that spares reading it back.

    Example:
        >>> ragged(torch.tensor([2, 0, 3]))
        (tensor([0, 0, 2, 2, 2]), tensor([0, 1, 0, 1, 2]))
    """
    owner = torch.repeat_interleave(lengths, output_size=total)
    begins = lengths.cumsum(0) - lengths
    return owner, torch.arange(len(owner), device=lengths.device) - begins[owner]
