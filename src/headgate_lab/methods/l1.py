"""L1: a free mask whose size is penalised, what the paper compares DAM with on an autoencoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RectifiedMask(nn.Module):
    """Multiplies the `n` channels of the last axis by relu(m), m learned and free, all 1 at the start.

    Example:
        >>> gate = RectifiedMask(3)
        >>> with torch.no_grad():
        ...     _ = gate.values.copy_(torch.tensor([0.5, -1.0, 1.0]))
        >>> gate.mask().tolist(), gate.penalty().item()
        ([0.5, 0.0, 1.0], 0.5)
    """

    def __init__(self, n: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.ones(n))

    def forward(self, x: Tensor) -> Tensor:
        """`x` times the mask."""
        return x * self.mask()

    def mask(self) -> Tensor:
        """The mask, shape (n,); a channel whose entry is 0 is closed."""
        return self.values.relu()

    def penalty(self) -> Tensor:
        """The mean of the mask's absolute values: one differentiable scalar."""
        return self.mask().abs().mean()
