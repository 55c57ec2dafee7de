"""Axes taken apart and put together: a label ends up with what can go of its factors, one or a head and a place."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headgate.channels.ledger import Ledger, Solution
from headgate.channels.obstacle import Obstacle

WHY = Obstacle("layer", "operation", "reason")
HERE = ("layer", "view")
places = st.integers(0, 11)


def settled(solution: Solution, labels: Tensor, factors: tuple[Tensor, ...]) -> bool:
    """The law, for labels of shape (n, m, …) and one vector of factors for each axis."""
    grid = torch.stack(torch.meshgrid(*factors, indexing="ij"), -1).reshape(-1, len(factors))
    for label, parts in zip(labels.reshape(-1).tolist(), grid.tolist(), strict=True):
        own, *roots = solution.roots[[label, *parts]].tolist()
        free = {unit for root in roots if not solution.fixed[root] for unit in solution.products.get(root, (root,))}
        if free != (set() if solution.fixed[own] else {*solution.products.get(own, (own,))}):
            return False
    return True


@given(
    st.lists(st.tuples(places, places), max_size=6),
    st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), places), max_size=4),
    st.sampled_from([(3, 4), (4, 3), (2, 6), (2, 2, 3)]),
    st.sampled_from([(3, 4), (4, 3), (12,)]),
    st.booleans(),
    st.booleans(),
)
def test_every_label_goes_with_its_factors_or_stays(
    ties: list[tuple[int, int]],
    stays: list[tuple[str, int]],
    first: tuple[int, ...],
    second: tuple[int, ...],
    last_stays: bool,
    as_heads: bool,
) -> None:
    ledger = Ledger()
    a, b, c = (ledger.labels(name, 0, 12) for name in "abc")
    factors = ledger.split(a.reshape(first), HERE)
    others = ledger.split(b.reshape(second), HERE) if len(second) > 1 else (b,)
    if last_stays:
        ledger.stay(factors[-1], WHY)
    if as_heads:
        # Others, whose places stay, have the same heads.
        heads, last = ledger.split(ledger.labels("q", 0, 2 * len(factors[0])).reshape(-1, 2), HERE)
        ledger.stay(last, WHY)
        ledger.join(heads, factors[0], WHY)
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


def queries_and_values() -> tuple[Ledger, Tensor, Tensor]:
    """Two heads with three places each; those of the queries stay, those of the values need not."""
    ledger = Ledger()
    queries, values = ledger.labels("q", 0, 6), ledger.labels("v", 0, 6)
    heads, last = ledger.split(queries.reshape(2, 3), HERE)
    ledger.stay(last, WHY)
    of_values, inner = ledger.split(values.reshape(2, 3), HERE)
    ledger.join(heads, of_values, WHY)
    return ledger, heads, inner


def test_heads_of_values_go_with_those_of_queries_and_places_by_themselves() -> None:
    ledger, heads, inner = queries_and_values()
    solution = ledger.solve()
    assert torch.equal(solution.axes["q", 0], solution.roots[heads].repeat_interleave(3))
    factors = [solution.products[number] for number in solution.axes["v", 0].tolist()]
    assert factors == [(h, j) for h in solution.roots[heads].tolist() for j in solution.roots[inner].tolist()]
    assert not solution.fixed[solution.roots[inner]].any()


def test_places_stay_where_a_channel_of_values_is_a_channel_of_queries() -> None:
    """One projection for both, cut into equal pieces: a place of the queries stays, so that of the values does."""
    ledger, heads, inner = queries_and_values()
    ledger.join(ledger.labels("q", 0, 6), ledger.labels("v", 0, 6), WHY)
    solution = ledger.solve()
    assert not solution.products and solution.fixed[solution.roots[inner]].all()
    assert torch.equal(solution.axes["v", 0], solution.roots[heads].repeat_interleave(3))


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
