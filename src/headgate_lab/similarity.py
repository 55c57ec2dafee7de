"""Centred kernel alignment (CKA; Kornblith et al. 2019): how alike two sets of features of the same samples are.

Features become a matrix of likenesses between samples, a Gram matrix; CKA is the cosine between two of them, centred.
It lies between 0 and 1, is 1 for features that differ by rotation, reflection, scale and shift only, and does not
mind different numbers of features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import Tensor

# From features, shape (samples, features), to likenesses, shape (samples, samples).
Kernel: TypeAlias = Callable[[Tensor], Tensor]


def linear(features: Tensor) -> Tensor:
    """Inner products.

    Example:
        >>> linear(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
        tensor([[5., 6.],
                [6., 9.]])
    """
    return features @ features.T


def rbf(features: Tensor) -> Tensor:
    """exp(-d²/2m): d is the distance between two samples, m the median of d² over all pairs of different samples.

    Example:
        >>> rbf(torch.tensor([[0.0], [3.0]]))
        tensor([[1.0000, 0.6065],
                [0.6065, 1.0000]])
    """
    products = linear(features - features.mean(0))
    squares = products.diagonal()
    distances = (squares[:, None] + squares[None, :] - 2 * products).clamp(min=0)
    above = torch.ones_like(distances, dtype=torch.bool).triu(1)
    return torch.exp(-distances / (2 * distances[above].median()))


KERNELS: Mapping[str, Kernel] = MappingProxyType({"linear": linear, "rbf": rbf})


def cka(one: Tensor, other: Tensor, kernel: Kernel = linear) -> Tensor:
    """The likeness, a scalar, of two sets of features of shapes (samples, any number) of the same samples.

    Features that are the same for all samples are like nothing: NaN.

    Example:
        >>> x = torch.tensor([[-1.0], [0.0], [1.0]])
        >>> cka(x, torch.tensor([[-1.0], [1.0], [0.0]]))  # one feature each: the squared correlation
        tensor(0.2500)
    """
    return _direction(one, kernel) @ _direction(other, kernel)


def cka_matrix(features: Tensor, kernel: Kernel = linear) -> Tensor:
    """The likeness of every pair of channels, shape (channels, channels), given (samples, channels, …).

    What follows the channels, such as the pixels of a feature map, are the features of a channel.
    """
    directions = torch.stack([_direction(channel.flatten(1), kernel) for channel in features.unbind(1)])
    return directions @ directions.T


def _direction(features: Tensor, kernel: Kernel) -> Tensor:
    """The centred Gram matrix, flat and of length 1."""
    likeness = kernel(features - features.mean(0))
    likeness = likeness - likeness.mean(0)
    likeness = likeness - likeness.mean(1, keepdim=True)
    direction: Tensor = likeness.flatten() / torch.linalg.vector_norm(likeness)
    return direction
