"""Values: fields move exactly as data does."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headgate.channels.values import Value, compressed, matching_blocks, moved, on_axis, permuted, reshaped, varies

SHAPES = [
    ((2, 8, 4, 4), (2, 128)), ((2, 8, 4, 4), (2, 2, 4, 4, 4)), ((2, 8), (2, 8, 1, 1)), ((6, 4), (2, 3, 4)),
    ((1, 8), (8,)),
    ((2, 3, 4), (6, 4)), ((2, 3, 4), (4, 3, 2)), ((8, 1, 1), (1, 8)), ((2, 1, 3), (2, 3)), ((5,), (5, 1, 1)),
    ((4, 6), (24,)), ((3, 4), (2, 6)),
]  # fmt: skip


def value_of(shape: tuple[int, ...]) -> Value:
    """A value with labels along every axis, all different."""
    starts = [1 + sum(shape[:axis]) for axis in range(len(shape))]
    fields = (
        on_axis(torch.arange(start, start + size), axis, len(shape))
        for axis, (start, size) in enumerate(zip(starts, shape, strict=True))
    )
    return Value(shape, tuple(field for field in fields if varies(field)))


@pytest.mark.parametrize(("old", "new"), SHAPES)
def test_a_reshaped_field_is_the_reshaped_labels(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    value = value_of(old)
    result = reshaped(value, new)
    assert result.shape == new
    for field, before in zip(result.fields, value.fields, strict=True):
        assert torch.equal(field.expand(new), before.expand(old).reshape(new))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.randoms())
def test_matching_blocks_cover_both_shapes_with_equal_sizes(old: list[int], random) -> None:
    factors = [factor for size in old for factor in _primes(size)]
    new: list[int] = []
    while factors:
        taken = random.randint(1, len(factors))
        new, factors = [*new, math.prod(factors[:taken])], factors[taken:]
    blocks = matching_blocks(tuple(old), tuple(new))
    assert [dim for before, _ in blocks for dim in before] == list(range(len(old)))
    assert [dim for _, after in blocks for dim in after] == list(range(len(new)))
    assert all(math.prod(old[d] for d in before) == math.prod(new[d] for d in after) for before, after in blocks)


def _primes(number: int) -> list[int]:
    return next(([prime, *_primes(number // prime)] for prime in (2, 3, 5) if number % prime == 0), [])


def test_blocks_are_as_short_as_possible() -> None:
    blocks = matching_blocks((2, 8, 4, 4), (2, 2, 4, 16))
    assert blocks == [(range(0, 1), range(0, 1)), (range(1, 2), range(1, 3)), (range(2, 4), range(3, 4))]


def test_compressing_drops_axes_that_do_not_matter() -> None:
    field = torch.arange(1, 4).reshape(1, 3, 1)
    assert torch.equal(compressed(field.expand(2, 3, 4)), field)
    assert compressed(torch.full((2, 3), 7)).shape == (1, 1)


def test_permuting_permutes_fields() -> None:
    result = permuted(value_of((2, 3, 4)), [2, 0, 1])
    assert result.shape == (4, 2, 3)
    assert [sorted(varies(field)) for field in result.fields] == [[1], [2], [0]]


def test_moving_is_what_was_done_to_the_data() -> None:
    value = value_of((2, 4))
    result = moved(value, (2, 4), lambda labels: labels.flip(1))
    assert result.fields[1].tolist() == [[6, 5, 4, 3]]
