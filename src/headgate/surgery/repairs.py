"""Numbers of a configuration that would give some tensors the sizes they have: one by one, or two that are multiplied.

The class is called with changed copies of the configuration, without memory, and its tensors are looked at. Nothing is
known of what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from headgate.surgery.configuration import Configuration, Number
from headgate.surgery.recipe import Shape

Shapes = Mapping[str, Shape]
Choice = dict[Number, int]

# An axis of a tensor, by its name.
Axis = tuple[str, int]


@dataclass(frozen=True)
class Repair:
    """New values of one number or two, and the axes that they give the right size; they give no other a wrong one."""

    choice: Choice
    mended: frozenset[Axis]


def differing(shapes: Shapes | None, target: Shapes) -> frozenset[Axis]:
    """The axes, by tensor, that have the wrong size, or are not there at all."""
    return frozenset(
        (name, axis)
        for name, wanted in target.items()
        for axis, size in enumerate(wanted)
        if shapes is None or shapes.get(name, ())[axis : axis + 1] != (size,)
    )


def repairs(configuration: Configuration, already: Choice, base: Shapes, target: Shapes) -> list[Repair]:
    """All that can be found, single numbers first; numbers in `already` have these values, though they are not set."""
    wrong, numbers = differing(base, target), configuration.sizes() | already

    def tried(choices: Iterable[Choice]) -> Iterator[Repair]:
        for choice in choices:
            left = differing(configuration.shapes({**already, **choice}), target)
            if left < wrong:
                yield Repair(choice, wrong - left)

    single = list(tried({n: new} for n, value in numbers.items() for new in sorted(_scaled(value, base, target))))
    reach = {n: differing(configuration.shapes({**already, n: 2 * v}), base) & wrong for n, v in numbers.items()}
    pairs = ((one, other) for one, other in combinations(numbers, 2) if reach[one] & reach[other])
    sizes = (
        (one, other, size)
        for one, other in pairs
        for size in sorted(_products(numbers[one] * numbers[other], reach[one] & reach[other], base, target))
    )
    return single + list(
        tried(
            {one: new, other: size // new}
            for one, other, size in sizes
            for new in range(1, numbers[one])
            if size % new == 0 and size // new < numbers[other]
        )
    )


def _scaled(value: int, base: Shapes, target: Shapes) -> set[int]:
    """What a number would be that shrinks as an axis does which it is or divides."""
    pairs = {pair for name, shape in base.items() for pair in zip(shape, target[name], strict=False)}
    return {value * new // old for old, new in pairs if new != old and old % value == 0 and value * new % old == 0}


def _products(product: int, axes: Iterable[Axis], base: Shapes, target: Shapes) -> set[int]:
    """What two numbers would be together that both shrink, given axes whose size their product is or divides."""
    pairs = {(base[name][axis], target[name][axis]) for name, axis in axes}
    return {product * new // old for old, new in pairs if old % product == 0 and product * new % old == 0}
