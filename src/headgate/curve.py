"""The mask as a function of order and offset: Eq. 2 of the paper, other gate functions, and how masks are scaled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Scale: TypeAlias = Literal["plain", "relative"]

# Each maps z = steepness·(order + offset) to a mask value. All but the sigmoid are exactly 0 for z <= 0 and positive
# beyond, so that Eq. 3 counts the open units whichever of them is used. The hard sigmoid is the usual one (slope 1/6)
# moved to the right until its foot stands at 0.
GATE_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu_tanh": lambda z: z.tanh().relu(),
    "hard_sigmoid": lambda z: (z / 6).clamp(0, 1),
    "linear": lambda z: z.relu(),
    "piecewise_linear": lambda z: z.clamp(0, 1),
    "sigmoid": lambda z: z.sigmoid(),
}
NEVER_ZERO = frozenset({"sigmoid"})


def mask_values(
    order: Tensor,
    offset: Tensor,
    start: Tensor | float,
    steepness: Tensor | float,
    fn: str,
    scale: Scale,
    largest: Callable[[Tensor], Tensor] = Tensor.amax,
) -> Tensor:
    """The mask over units with these order numbers, shape of `order`, differentiable in `offset`.

    "relative" divides by the mask at the initial offset `start` and by its own largest entry, so that it starts as all
    ones and never becomes faint as a whole. `largest` finds that entry, for each unit where several gates lie end to
    end. Nothing is read back to the host.
    """
    function = GATE_FUNCTIONS[fn]
    mask = function(steepness * (order + offset))
    if scale == "relative":
        mask = mask / function(steepness * (order + start))
        mask = mask / largest(mask.detach()).clamp_min(torch.finfo(mask.dtype).tiny)
    return mask
