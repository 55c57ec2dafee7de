"""Orders: which units of a gate close first.

An order gives every unit j a place in 0 … n-1; low places close first. From the places follow the order numbers of
the paper, μ_j = span·(place+1)/n. The reference code counts from 0 instead, μ_j = span·place/n, which leaves one unit
less at the same offset; the names that end in `0` ask for that count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from headgate.errors import ArgumentError

Order: TypeAlias = str | Sequence[int] | Tensor

KNOWN_ORDERS = (
    '"index", "random:SEED" (a whole number below 2**64), their counts from zero "index0" and "random0:SEED", '
    "or a permutation of 0 … n-1"
)


def order_numbers(order: Order, n: int, span: float) -> Tensor:
    """The order numbers μ, float32, shape (n,), on the CPU.

    Example:
        >>> order_numbers("index", 4, 5.0)
        tensor([1.2500, 2.5000, 3.7500, 5.0000])
        >>> order_numbers([3, 2, 1, 0], 4, 5.0)
        tensor([5.0000, 3.7500, 2.5000, 1.2500])
    """
    places, first = places_of(order, n)
    return ((places.double() + first) * (span / n)).float()


def places_of(order: Order, n: int) -> tuple[Tensor, int]:
    """The place of every unit, a permutation of 0 … n-1 on the CPU, and the number the count starts from."""
    return _named_places(order, n) if isinstance(order, str) else (_checked_permutation(order, n), 1)


def _named_places(name: str, n: int) -> tuple[Tensor, int]:
    """Places for a named order, and the number its count starts from."""
    if name in ("index", "index0"):
        return torch.arange(n, device="cpu"), 0 if name == "index0" else 1
    random = re.fullmatch("random(0?):([0-9]{1,20})", name)
    if random and (seed := int(random[2])) < 2**64:
        generator = torch.Generator("cpu").manual_seed(seed)
        return torch.randperm(n, generator=generator, device="cpu"), 0 if random[1] else 1
    raise ArgumentError(f"order {name!r} is unknown; use {KNOWN_ORDERS}")


def _checked_permutation(order: Sequence[int] | Tensor, n: int) -> Tensor:
    try:
        places = torch.as_tensor(order, device="cpu")
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ArgumentError(f"order {order!r} is unknown; use {KNOWN_ORDERS}") from error
    if places.shape != (n,):
        raise ArgumentError(f"order has shape {tuple(places.shape)}, but the gate has {n} units: give each a place")
    if places.is_floating_point() or places.is_complex() or places.dtype == torch.bool:
        raise ArgumentError(f"order has dtype {places.dtype}; give whole numbers, a permutation of 0 … {n - 1}")
    places = places.long()  # torch cannot sort all unsigned types
    if not torch.equal(places.sort().values, torch.arange(n, device="cpu")):
        raise ArgumentError(f"order is not a permutation of 0 … {n - 1}: every place must occur exactly once")
    return places
