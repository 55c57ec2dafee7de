"""Synthetic data whose true dimension is known: hidden factors sent through a random map.

In all of them the factors are standard normal, every random number of the map is uniform in ±1/√(its inputs), as a
fresh layer of torch is, and `generator` is the only source of randomness. They return float32 of shape
(samples, features) on the CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def linear_factors(samples: int, features: int, factors: int, *, generator: torch.Generator) -> Tensor:
    """Data of rank `factors`: one linear map.

    Example:
        >>> data = linear_factors(100, 20, 3, generator=torch.Generator().manual_seed(0))
        >>> data.shape, int(torch.linalg.matrix_rank(data))
        (torch.Size([100, 20]), 3)
    """
    _check(factors, features)
    mixing = _uniform(factors, features, inputs=factors, generator=generator)
    return torch.matmul(_hidden(samples, factors, generator), mixing)


def quadratic_factors(samples: int, features: int, factors: int, *, generator: torch.Generator) -> Tensor:
    """(W₁z)∘(W₂z) + W₁z + b: a map of second degree.

    Example:
        >>> data = quadratic_factors(100, 20, 2, generator=torch.Generator().manual_seed(0))
        >>> int(torch.linalg.matrix_rank(data))  # z₁, z₂, their three products, and the constant
        6
    """
    _check(factors, features)
    first, second = (_uniform(factors, features, inputs=factors, generator=generator) for _ in range(2))
    constant = _uniform(features, inputs=factors, generator=generator)
    hidden = _hidden(samples, factors, generator)
    straight = hidden @ first
    return straight * (hidden @ second) + straight + constant


def neural_factors(
    samples: int, features: int, factors: int, *, generator: torch.Generator, width: int = 128
) -> Tensor:
    """A network of one hidden layer, `width` units with ELU."""
    _check(factors, features)
    layers = [
        (
            _uniform(outputs, inputs, inputs=inputs, generator=generator),
            _uniform(outputs, inputs=inputs, generator=generator),
        )
        for inputs, outputs in ((factors, width), (width, features))
    ]
    hidden = F.elu(F.linear(_hidden(samples, factors, generator), *layers[0]))
    return F.linear(hidden, *layers[1])


def _hidden(samples: int, factors: int, generator: torch.Generator) -> Tensor:
    return torch.randn(samples, factors, generator=generator)


def _uniform(*shape: int, inputs: int, generator: torch.Generator) -> Tensor:
    return (2 * torch.rand(*shape, generator=generator) - 1) * float(inputs**-0.5)


def _check(factors: int, features: int) -> None:
    if not 1 <= factors <= features:
        raise ValueError(f"factors={factors} must lie between 1 and the {features} features")
