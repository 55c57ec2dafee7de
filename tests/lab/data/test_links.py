"""Divided graphs: what is hidden stays hidden, what is drawn is no edge, the seed decides everything."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from headgate_lab.data.links import NonEdges, split
from headgate_lab.data.planetoid import Graph

NODES = 30


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_graph() -> Graph:
    pairs = torch.triu_indices(NODES, NODES, 1)
    chosen = torch.randperm(pairs.shape[1], generator=generator(1))[:100].sort().values
    return Graph(torch.eye(NODES), pairs[:, chosen])


def as_set(pairs: Tensor) -> set[tuple[int, int]]:
    return {(int(a), int(b)) for a, b in pairs.T}


def both_ways(pairs: Tensor) -> set[tuple[int, int]]:
    return as_set(pairs) | as_set(pairs.flip(0))


def test_every_pair_that_is_no_edge_has_a_rank_of_its_own() -> None:
    edges = torch.tensor([[0, 3, 1, 3, 3], [1, 2, 0, 2, 3]])
    free = NonEdges(edges, 4)
    first, second = free.pairs(torch.arange(free.count))
    wanted = {(a, b) for a in range(4) for b in range(4) if a != b} - as_set(edges)
    assert len(first) == free.count == len(wanted) == 9
    assert as_set(torch.stack([first, second])) == wanted


def test_draws_are_even() -> None:
    free = NonEdges(torch.tensor([[0, 2], [1, 0]]), 3)
    first, second = free.draw(40_000, generator=generator())
    counts = (first * 3 + second).bincount(minlength=9)
    assert counts.nonzero().flatten().tolist() == [2, 3, 5, 7]
    assert (counts[counts > 0] - 10_000).abs().max() < 400  # five standard deviations


@pytest.mark.parametrize("rules", ["2021", "today"])
def test_the_parts_of_a_split(rules: Any) -> None:
    graph = some_graph()
    parts = split(graph, rules, generator=generator())
    pieces = [parts.train, parts.validation.edges, parts.test.edges]
    assert [piece.shape[1] for piece in pieces] == [85, 5, 10]
    assert set().union(*map(as_set, pieces)) == as_set(graph.edges)
    others = torch.cat([parts.validation.others, parts.test.others], dim=1)
    assert others.shape[1] == 15 == len(as_set(others))
    assert (others[0] < others[1]).all() and not as_set(others) & as_set(graph.edges)


def test_rules_of_2021() -> None:
    parts = split(some_graph(), "2021", generator=generator())
    free = parts.non_edges
    found = as_set(free.pairs(torch.arange(free.count)))
    assert not found & both_ways(parts.train) and both_ways(parts.test.edges) <= found
    assert free.count == NODES * NODES - NODES - 2 * 85
    assert parts.draws == 2 * 85 + NODES
    assert torch.equal(parts.seen_in_test, parts.train)


def test_rules_of_today() -> None:
    parts = split(some_graph(), "today", generator=generator())
    free = parts.non_edges
    found = as_set(free.pairs(torch.arange(free.count)))
    assert not found & as_set(parts.train) and as_set(parts.train.flip(0)) <= found
    assert parts.draws == 85
    assert as_set(parts.seen_in_test) == as_set(parts.train) | as_set(parts.validation.edges)


def test_the_seed_decides_the_split_and_nothing_else() -> None:
    torch.manual_seed(1)
    one = split(some_graph(), "2021", generator=generator(3))
    torch.manual_seed(2)
    again, other = (split(some_graph(), "2021", generator=generator(seed)) for seed in (3, 4))
    assert torch.equal(one.test.edges, again.test.edges) and torch.equal(one.test.others, again.test.others)
    assert not torch.equal(one.test.edges, other.test.edges) and not torch.equal(one.test.others, other.test.others)


def test_a_graph_without_enough_free_pairs_is_refused() -> None:
    full = Graph(torch.eye(7), torch.triu_indices(7, 7, 1)[:, 1:])
    with pytest.raises(ValueError, match="7 nodes have 1 pairs without an edge, fewer than 3"):
        split(full, "2021", generator=generator())
