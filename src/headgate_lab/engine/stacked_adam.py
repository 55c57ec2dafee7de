"""One optimizer step of many copies at once. Every tensor has the copies along its first axis.

Rates are vectors, one number a copy, and counts are tensors: nothing is read back to the host, so a step can be
captured in a CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
# The bounded update of offsets, as `headgate.offsets` states it.
BOUNDED_BETA1, BOUNDED_BETA2, BOUNDED_EPSILON = 0.9, 0.99, 1e-6


@torch.no_grad()
def adam_(
    values: Tensor, gradient: Tensor, moments: tuple[Tensor, Tensor], count: Tensor, *, rate: Tensor, decay: Tensor
) -> None:
    """What `torch.optim.Adam` does to each copy.

    Args:
        values: of shape (copies, …); changed, and so are `moments`.
        gradient: of the same shape.
        moments: first and second, of the same shape; zeros before the first step.
        count: how many steps there were, with this one.
        rate: one learning rate a copy.
        decay: one weight decay a copy, added to the gradient.
    """
    first, second = moments
    gradient = gradient + _along(decay, values) * values
    first.lerp_(gradient, 1 - BETA1)
    second.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    root = second.sqrt() / (1 - BETA2**count).sqrt() + EPSILON
    values.sub_(_along(rate, values) / (1 - BETA1**count) * (first / root))


@torch.no_grad()
def bounded_(
    offsets: Tensor,
    gradient: Tensor,
    moments: tuple[Tensor, Tensor],
    count: Tensor,
    *,
    rate: Tensor,
    lowest: Tensor,
    highest: Tensor,
) -> None:
    """What headgate's own update does to each copy's offset: at most `rate`, and never out of its range.

    All are vectors with one number a copy, but for `count`; see `adam_`. Nothing moves where the rate is 0.
    """
    first, second = moments
    first.lerp_(gradient, 1 - BOUNDED_BETA1)
    second.lerp_(gradient.square(), 1 - BOUNDED_BETA2)
    root = (second / (1 - BOUNDED_BETA2**count)).sqrt() + BOUNDED_EPSILON
    ratio = (first / (1 - BOUNDED_BETA1**count) / root).clamp(-1, 1)
    moved = torch.minimum(torch.maximum(offsets - rate * ratio, lowest), highest)
    offsets.copy_(torch.where(rate > 0, moved, offsets))


def _along(vector: Tensor, values: Tensor) -> Tensor:
    """One number a copy, ready to be multiplied with values of shape (copies, …)."""
    return vector.view(-1, *(1,) * (values.ndim - 1))
