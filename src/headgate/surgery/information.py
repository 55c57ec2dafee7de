"""Mutual information between many numbers and a target, from examples."""

from __future__ import annotations

from math import isqrt

import torch
from torch import Tensor

MOST_BINS = 16
# A table of bins and classes should hold so many examples in each place, on average; the smallest is two by two.
IN_EACH = 5
FEWEST = 2 * 2 * IN_EACH


def mutual_information(values: Tensor, targets: Tensor) -> Tensor:
    """Of every column of `values` with the target, in nats: shapes (N, n) and (N,) or (N, D) to (n,).

    Real numbers are put into bins that hold about equally many examples (equal numbers always into one), whole
    numbers are classes; then the frequencies are taken for probabilities. Several targets add up. The estimate is too
    large by about bins × classes / 2N, which is the same for all columns.

    Example:
        >>> flips = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
        >>> mutual_information(flips, torch.tensor([3, 3, 5, 5]))  # log 2 and nothing
        tensor([0.6931, 0.0000], dtype=torch.float64)
    """
    columns = targets[:, None] if targets.dim() == 1 else targets
    known = _binned(values)
    total = torch.zeros(values.shape[1], dtype=torch.float64)
    for column in columns.unbind(1):
        classes = _binned(column[:, None])[:, 0] if column.is_floating_point() else column
        total += _shared(known, classes.unique(return_inverse=True)[1])
    return total


def _binned(values: Tensor) -> Tensor:
    """The bin of every entry within its column, by its rank; equal entries share their middle rank."""
    examples = len(values)
    bins = max(2, min(MOST_BINS, isqrt(examples // IN_EACH)))
    rows = values.T.contiguous()
    ranked = rows.sort(1).values
    twice = torch.searchsorted(ranked, rows) + torch.searchsorted(ranked, rows, right=True)
    return (twice * bins // (2 * examples)).clamp_max(bins - 1).T


def _shared(bins: Tensor, classes: Tensor) -> Tensor:
    """The information that each column of bins and the classes share."""
    kinds, most, columns = int(classes.max()) + 1, int(bins.max()) + 1, bins.shape[1]
    places = (torch.arange(columns) * most + bins) * kinds + classes[:, None]
    counts = torch.bincount(places.reshape(-1), minlength=columns * most * kinds)
    joint = counts.view(columns, most, kinds).double() / len(bins)

    def order(probabilities: Tensor) -> Tensor:
        return torch.xlogy(probabilities, probabilities).flatten(1).sum(1)

    return (order(joint) - order(joint.sum(1)) - order(joint.sum(2))).clamp_min(0)
