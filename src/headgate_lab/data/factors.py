"""Synthetic data whose true dimension is known."""

from __future__ import annotations

import torch
from torch import Tensor


def linear_factors(samples: int, features: int, factors: int, *, generator: torch.Generator) -> Tensor:
    """Data of rank `factors`: that many hidden standard normals, sent through one random linear map.

    The map's entries are uniform in ±1/√factors, so every feature has variance near 1/3 whatever `factors` is, and
    one strength suits all of them.

    Args:
        samples: number of rows.
        features: number of columns, at least `factors`.
        factors: the dimension of the data.
        generator: the only source of randomness; the global one is left alone.

    Returns:
        Float32, shape (samples, features), on the CPU.

    Example:
        >>> data = linear_factors(100, 20, 3, generator=torch.Generator().manual_seed(0))
        >>> data.shape, int(torch.linalg.matrix_rank(data))
        (torch.Size([100, 20]), 3)
    """
    if not 1 <= factors <= features:
        raise ValueError(f"factors={factors} must lie between 1 and the {features} features")
    uniform = torch.rand(factors, features, generator=generator)
    mixing = (2 * uniform - 1) / factors**0.5
    hidden = torch.randn(samples, factors, generator=generator)
    return torch.matmul(hidden, mixing)
