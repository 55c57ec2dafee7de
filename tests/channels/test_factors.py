"""Axes taken apart and put together: whatever was noted, a label ends up with the one factor that can go, or stays."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headgate.channels.ledger import Ledger, Obstacle, Solution

WHY = Obstacle("layer", "operation", "reason")
HERE = ("layer", "view")
places = st.integers(0, 11)


def settled(solution: Solution, labels: Tensor, factors: tuple[Tensor, ...]) -> bool:
    """The law, for labels of shape (n, m, …) and one vector of factors for each axis."""
    grid = torch.stack(torch.meshgrid(*factors, indexing="ij"), -1).reshape(-1, len(factors))
    for label, parts in zip(labels.reshape(-1).tolist(), grid.tolist(), strict=True):
        own = int(solution.roots[label])
        free = {int(solution.roots[part]) for part in parts if not solution.fixed[solution.roots[part]]}
        if free != (set() if solution.fixed[own] else {own}):
            return False
    return True


@given(
    st.lists(st.tuples(places, places), max_size=6),
    st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), places), max_size=4),
    st.sampled_from([(3, 4), (4, 3), (2, 6), (2, 2, 3)]),
    st.sampled_from([(3, 4), (4, 3), (12,)]),
    st.booleans(),
)
def test_every_label_has_one_factor_that_can_go_or_stays(
    ties: list[tuple[int, int]],
    stays: list[tuple[str, int]],
    first: tuple[int, ...],
    second: tuple[int, ...],
    last_stays: bool,
) -> None:
    ledger = Ledger()
    a, b, c = (ledger.labels(name, 0, 12) for name in "abc")
    factors = ledger.split(a.reshape(first), HERE)
    others = ledger.split(b.reshape(second), HERE) if len(second) > 1 else (b,)
    if last_stays:
        ledger.stay(factors[-1], WHY)
    merged = ledger.product(torch.stack(torch.meshgrid(*factors, indexing="ij"), -1).reshape(12, -1), HERE)
    ledger.join(merged, c, WHY)
    for left, right in ties:
        ledger.join(b[left], c[right], WHY)
    for name, place in stays:
        ledger.stay({"a": a, "b": b, "c": c}[name][place], WHY)
    solution = ledger.solve()
    assert settled(solution, a.reshape(first), factors)
    assert len(second) == 1 or settled(solution, b.reshape(second), others)
    assert settled(solution, merged.reshape(first), factors)
    assert all(solution.obstacles.get(root) for root in solution.roots[a].tolist() if solution.fixed[root])


def test_the_last_axis_shrinks() -> None:
    ledger = Ledger()
    labels = ledger.labels("w", 0, 6)
    ledger.split(labels.reshape(2, 3), HERE)
    units = ledger.solve().axes["w", 0]
    assert units.reshape(2, 3)[0].tolist() == units.reshape(2, 3)[1].tolist()
    assert len(units.unique()) == 3


def test_the_one_before_it_where_the_last_must_stay() -> None:
    ledger = Ledger()
    labels = ledger.labels("w", 0, 6)
    _, last = ledger.split(labels.reshape(2, 3), HERE)
    ledger.stay(last, WHY)
    solution = ledger.solve()
    assert [len(row.unique()) for row in solution.axes["w", 0].reshape(2, 3)] == [1, 1]
    assert len(solution.axes["w", 0].unique()) == 2 and not solution.fixed[solution.axes["w", 0]].any()


def test_heads_of_values_go_with_those_of_queries_and_keys() -> None:
    """Values by themselves would lose places; tied to heads that go, they lose heads."""
    ledger = Ledger()
    queries, values = ledger.labels("q", 0, 6), ledger.labels("v", 0, 6)
    heads, last = ledger.split(queries.reshape(2, 3), HERE)
    ledger.stay(last, WHY)
    of_values, inner = ledger.split(values.reshape(2, 3), HERE)
    ledger.join(heads, of_values, WHY)
    solution = ledger.solve()
    assert torch.equal(solution.axes["q", 0], solution.axes["v", 0])
    assert all(solution.fixed[solution.roots[label]] for label in inner.tolist())
    assert "only one can shrink" in str(solution.obstacles[int(solution.roots[inner[0]])][0])


def test_what_stays_keeps_its_factors() -> None:
    ledger = Ledger()
    labels = ledger.labels("w", 0, 6)
    ledger.split(labels.reshape(2, 3), HERE)
    ledger.stay(labels[4], WHY)
    solution = ledger.solve()
    assert solution.fixed[solution.axes["w", 0]].tolist() == [False, True, False, False, True, False]
    assert solution.obstacles[int(solution.axes["w", 0][1])][0] == WHY


def test_the_same_split_twice_has_the_same_labels() -> None:
    ledger = Ledger()
    labels = ledger.labels("w", 0, 6).reshape(2, 3)
    assert all(map(torch.equal, ledger.split(labels, HERE), ledger.split(labels, HERE)))


def test_equal_slices_have_one_label() -> None:
    """A batch that a view has merged with heads repeats them."""
    ledger = Ledger()
    labels = ledger.labels("w", 0, 6).reshape(2, 3)
    merged, _ = ledger.split(torch.cat([labels, labels]), HERE)
    assert merged[:2].tolist() == merged[2:].tolist() and len(merged.unique()) == 2
