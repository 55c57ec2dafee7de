"""The ledger: components as a naive union-find finds them, and what stays stays with its whole unit."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from headgate.channels.ledger import NO_UNIT, Ledger
from headgate.channels.obstacle import Obstacle

WHY = Obstacle("layer", "operation", "reason")
pairs = st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=60)


def naive(count: int, ties: list[tuple[int, int]]) -> list[int]:
    """The smallest member of every component, one merge at a time."""
    root = list(range(count))
    for left, right in ties:
        low, high = sorted((root[left], root[right]))
        root = [low if value == high else value for value in root]
    return root


@given(pairs)
def test_units_are_connected_components(ties: list[tuple[int, int]]) -> None:
    ledger = Ledger()
    labels = ledger.labels("w", 0, 30)
    for left, right in ties:
        ledger.join(labels[left : left + 1], labels[right : right + 1], WHY)
    units = ledger.solve().axes["w", 0]
    assert (units - units[0]).tolist() == naive(30, ties)


@given(pairs, st.integers(0, 29))
def test_what_stays_stays_with_its_unit(ties: list[tuple[int, int]], fixed: int) -> None:
    ledger = Ledger()
    labels = ledger.labels("w", 0, 30)
    ledger.stay(labels[fixed], WHY)
    for left, right in ties:
        ledger.join(labels[left], labels[right], WHY)
    solution, roots = ledger.solve(), naive(30, ties)
    expected = [root == roots[fixed] for root in roots]
    assert solution.fixed[solution.axes["w", 0]].tolist() == expected
    assert solution.obstacles == {1 + roots[fixed]: [WHY]}


def test_long_chains_are_one_unit() -> None:
    ledger = Ledger()
    labels = ledger.labels("w", 0, 2000)
    shuffled = labels[torch.randperm(2000)]
    ledger.join(shuffled[1:], shuffled[:-1], WHY)
    assert ledger.solve().axes["w", 0].unique().tolist() == [1]


def test_labels_are_the_same_at_every_call_and_differ_between_axes() -> None:
    ledger = Ledger()
    first, second = ledger.labels("w", 0, 3), ledger.labels("w", 1, 2)
    assert first.tolist() == [1, 2, 3] and second.tolist() == [4, 5]
    assert ledger.labels("w", 0, 3).tolist() == [1, 2, 3]


def test_opposite_no_unit_means_stay() -> None:
    ledger = Ledger()
    labels = ledger.labels("w", 0, 3)
    ledger.join(labels, torch.tensor([NO_UNIT, 2, 3]), WHY)
    assert ledger.solve().fixed[1:].tolist() == [True, False, False]


def test_joining_broadcasts() -> None:
    ledger = Ledger()
    labels = ledger.labels("w", 0, 6)
    ledger.join(labels.reshape(2, 3), labels[:3], WHY)
    assert ledger.solve().axes["w", 0].tolist() == [1, 2, 3, 1, 2, 3]


def test_labels_know_their_owner() -> None:
    ledger = Ledger()
    mine, theirs = ledger.labels("w", 0, 3), ledger.labels("v", 0, 3)
    assert ledger.owns("w", mine) and not ledger.owns("w", theirs)
    assert not ledger.owns("w", torch.cat([mine, theirs]))


def test_an_obstacle_names_path_operation_and_reason() -> None:
    assert str(WHY) == "layer: operation: reason"
    assert str(Obstacle("", "add", "why")) == "root: add: why"


def test_readers_and_sums_are_solved_too() -> None:
    ledger = Ledger()
    first, second = ledger.labels("w", 0, 3), ledger.labels("v", 1, 3)
    ledger.join(first, second, WHY)
    ledger.read(second)
    ledger.add(first)
    solution = ledger.solve()
    assert solution.readers == {("v", 1)} and solution.sums == {1, 2, 3}
