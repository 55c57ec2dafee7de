"""Indices that carry two units, a head and a place of every head: the plan numbers these pairs behind its units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# For each number behind the last unit, the units that must all stay for it to stay.
Products = tuple[tuple[int, ...], ...]


def numbered_products(
    products: Mapping[int, Iterable[int]], units: Mapping[int, int]
) -> tuple[dict[int, int], Products]:
    """Numbers for products of units, given the numbers of those units that can go; and what these numbers stand for.

    A product of which one unit can go has that unit's number; equal products have one number; others have none.
    """
    numbers: dict[int, int] = {}
    found: dict[tuple[int, ...], int] = {}
    first = 1 + max(units.values(), default=-1)
    for product, factors in products.items():
        known = tuple(units[factor] for factor in factors if factor in units)
        if known:
            numbers[product] = known[0] if len(known) == 1 else found.setdefault(known, first + len(found))
    return numbers, tuple(found)
