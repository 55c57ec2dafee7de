"""Products of matrices that are long on the inside and small on the outside, as gradients of weights are."""

from __future__ import annotations

import torch
from torch import Tensor

# A GPU gives each small piece of a product to one of its many processors, which sums it up alone, however long it is.
PARTS = 16
MANY_ROWS = 1024


def summed_over_rows(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ · right of each network, both (networks, rows, …); many rows in parts, where `PARTS` divides them."""
    networks, rows, width = left.shape
    if rows < MANY_ROWS or rows % PARTS:
        return torch.bmm(left.mT, right)
    left, right = (each.reshape(networks * PARTS, rows // PARTS, -1) for each in (left, right))
    return torch.bmm(left.mT, right).view(networks, PARTS, width, -1).sum(1)
