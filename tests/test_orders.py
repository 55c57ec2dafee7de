"""Orders by hand: four units, span 5, so that neighbours stand 1.25 apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headgate import ArgumentError
from headgate.orders import order_numbers


def test_index_counts_from_one_as_the_paper_does():
    assert order_numbers("index", 4, 5.0).tolist() == [1.25, 2.5, 3.75, 5.0]


def test_index0_counts_from_zero_as_the_reference_code_does():
    assert order_numbers("index0", 4, 5.0).tolist() == [0.0, 1.25, 2.5, 3.75]


def test_a_permutation_gives_each_unit_its_place():
    assert order_numbers([2, 0, 3, 1], 4, 5.0).tolist() == [3.75, 1.25, 5.0, 2.5]


@pytest.mark.parametrize(
    "places",
    [
        [2, 0, 1],
        (2, 0, 1),
        torch.tensor([2, 0, 1]),
        torch.tensor([2, 0, 1], dtype=torch.int8),
        np.array([2, 0, 1]),
        np.array([2, 0, 1], dtype=np.uint64),
        torch.tensor([2, 0, 1], dtype=torch.uint16),
    ],
    ids=["list", "tuple", "int64", "int8", "numpy", "numpy uint64", "uint16"],
)
def test_a_permutation_may_be_any_sequence_of_whole_numbers(places: Any):
    assert order_numbers(places, 3, 3.0).tolist() == [3.0, 1.0, 2.0]


def test_random_is_a_permutation_fixed_by_its_seed():
    seventh = order_numbers("random:7", 50, 5.0)
    assert torch.equal(seventh.sort().values, order_numbers("index", 50, 5.0))
    assert torch.equal(seventh, order_numbers("random:7", 50, 5.0))
    assert not torch.equal(seventh, order_numbers("random:8", 50, 5.0))
    assert not torch.equal(seventh, order_numbers("index", 50, 5.0))


def test_every_seed_of_torch_is_a_seed():
    assert sorted(order_numbers(f"random:{2**64 - 1}", 4, 4.0).tolist()) == [1.0, 2.0, 3.0, 4.0]


def test_random0_is_random_counted_from_zero():
    from_one, from_zero = order_numbers("random:7", 10, 5.0), order_numbers("random0:7", 10, 5.0)
    torch.testing.assert_close(from_one - from_zero, torch.full((10,), 0.5))
    assert from_zero.min() == 0


def test_random_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    order_numbers("random:7", 50, 5.0)
    assert torch.equal(torch.get_rng_state(), state)


def test_numbers_are_float32_and_the_last_is_the_span():
    for n in (1, 3, 7, 100, 1023):
        numbers = order_numbers("index", n, 5.0)
        assert numbers.dtype == torch.float32 and numbers.shape == (n,)
        assert numbers[-1] == 5.0


def test_numbers_stay_on_the_cpu_whatever_the_default_device():
    """A seeded generator lives on the CPU; on another default device `random:7` would be another order, or none."""
    with torch.device("meta"):
        numbers = order_numbers("random:7", 10, 5.0), order_numbers("index", 10, 5.0), order_numbers([1, 0], 2, 5.0)
    assert [number.device.type for number in numbers] == ["cpu"] * 3
    assert torch.equal(numbers[0], order_numbers("random:7", 10, 5.0))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "random",
        "random:",
        "random:x",
        "random:-1",
        "random:٣",
        "random:7 ",
        "random0:18446744073709551616",
        "index:",
        "index0:",
        "index:3",
        "index00",
        "Index",
        "magnitude",
    ],
)
def test_an_unknown_name_is_refused_and_the_known_ones_named(name: str):
    with pytest.raises(ArgumentError, match=rf"order '{name}' is unknown.*\"index\".*\"random:SEED\".*permutation"):
        order_numbers(name, 4, 5.0)


@pytest.mark.parametrize(
    ("order", "complaint"),
    [
        ([0, 1, 2], r"shape \(3,\), but the gate has 4 units"),
        ([[0, 1, 2, 3]], r"shape \(1, 4\), but the gate has 4 units"),
        (3, r"shape \(\), but the gate has 4 units"),
        ([0, 1, 2, 2], "not a permutation of 0 … 3"),
        ([1, 2, 3, 4], "not a permutation of 0 … 3"),
        ([-1, 0, 1, 2], "not a permutation of 0 … 3"),
        ([0.0, 1.0, 2.0, 3.0], "dtype torch.float32"),
        ([True, False, True, False], "dtype torch.bool"),
        ([0j, 1j, 2j, 3j], "dtype torch.complex64"),
        ([0, 1, 2, 2**80], "order .* is unknown"),
        (np.array([0, 1, 2, 2**64 - 1], dtype=np.uint64), "not a permutation of 0 … 3"),
        (None, "order None"),
        (["a", "b", "c", "d"], r"order \['a', 'b', 'c', 'd'\]"),
    ],
)
def test_what_is_no_permutation_is_refused(order: Any, complaint: str):
    with pytest.raises(ArgumentError, match=complaint):
        order_numbers(order, 4, 5.0)
