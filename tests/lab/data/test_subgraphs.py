"""Enclosing subgraphs are those of the definition."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from headgate_lab.data import subgraphs as module
from headgate_lab.data.batch_index import Kept
from headgate_lab.data.places import DataError
from headgate_lab.data.subgraph_batch import Batches
from headgate_lab.data.subgraphs import RatingGraph, Subgraphs, enclosing
from tests.lab.rated import Plain, dropped_subgraph, plain_subgraph, random_ratings


def expanded(subgraphs: Subgraphs, pair: int) -> Plain:
    """With all edges, every neighbour a node."""
    sizes = subgraphs.bundle_sizes
    everything = Kept(
        torch.ones(1, 2, len(subgraphs.spokes), dtype=torch.bool),
        torch.ones(1, 2, len(subgraphs.chord_users), dtype=torch.bool),
        torch.stack([sizes, torch.zeros_like(sizes)]).unsqueeze(0),
    )
    return dropped_subgraph(subgraphs, everything, pair)


def fingerprint(plain: Plain) -> Counter[object]:
    """Nodes by their label and by what leads to them: the same for the same graph, whatever its numbers."""
    colours: list[object] = list(plain.labels)
    for _ in range(3):
        heard: list[list[object]] = [[] for _ in colours]
        for source, sink, relation in plain.edges:
            heard[sink].append((relation, colours[source]))
        colours = [hash((own, tuple(sorted(map(hash, others))))) for own, others in zip(colours, heard, strict=True)]
    return Counter(colours)


@pytest.mark.parametrize("at_once", [1, 50, 1 << 20])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.9])
def test_subgraphs_are_those_of_the_definition(share: float, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    graph = random_ratings(11, 9, 4, share)
    users, items = torch.cat([graph.users, torch.arange(9)]), torch.cat([graph.items, torch.arange(9)])
    found = enclosing(graph, users, items)
    assert len(found) == len(users)
    for pair, (user, item) in enumerate(zip(users.tolist(), items.tolist(), strict=True)):
        ours, wanted = expanded(found, pair), plain_subgraph(graph, user, item)
        assert len(ours.edges) == len(wanted.edges)
        assert fingerprint(ours) == fingerprint(wanted)


def test_by_hand() -> None:
    """Users 0, 1, 2 and items 0, 1; the pair (0, 0) has the neighbours 1 and 2, and item 1, which 1 rated too."""
    graph = RatingGraph(
        torch.tensor([0, 0, 1, 1, 2]), torch.tensor([0, 1, 0, 1, 0]), torch.tensor([2, 0, 1, 2, 1]), 3, 2, 3
    )
    found = enclosing(graph, torch.tensor([0]), torch.tensor([0]))
    assert (found.crossing.tolist(), found.bundles.tolist(), found.chords.tolist()) == ([2], [1], [1])
    # User 1 by relation 1, item 1 by relation 0.
    assert found.spokes.tolist() == [2 * 1 + 1, 0]
    assert (found.bundle_spokes.tolist(), found.bundle_sizes.tolist()) == ([2 * 1 + 1], [1])
    assert (found.chord_users.tolist(), found.chord_items.tolist(), found.chord_relations.tolist()) == ([0], [1], [2])


def test_newcomers_have_no_neighbours() -> None:
    graph = random_ratings(6, 5, 3, 0.5)
    found = enclosing(graph, torch.tensor([6, 6, 0]), torch.tensor([5, 0, 5]))
    assert found.crossing.tolist() == [0, 0, 0] and found.chords.tolist() == [0, 0, 0]
    assert int(found.bundles[0]) == 0 and int(found.bundles[1]) > 0 and int(found.bundles[2]) > 0
    batch = Batches(found, torch.device("cpu")).batch(torch.tensor([[0]]))
    assert len(batch.inward_nodes) == 0 and len(batch.sources) == 0


def test_no_more_neighbours_than_asked_for() -> None:
    graph = random_ratings(40, 30, 3, 0.6)
    some, again, other = (enclosing(graph, graph.users, graph.items, most=4, seed=seed) for seed in (1, 1, 2))
    for pair in range(len(some)):
        labels = Counter(expanded(some, pair).labels)
        assert labels[2] == labels[3] == 4
    assert torch.equal(some.spokes, again.spokes) and torch.equal(some.chord_users, again.chord_users)
    assert not torch.equal(some.chord_users, other.chord_users)


def test_too_many_pairs_are_refused() -> None:
    one = torch.tensor([0])
    with pytest.raises(DataError, match="100,000 users times 100,000 items are 10,000,000,000 pairs"):
        enclosing(RatingGraph(one, one, one, 100_000, 100_000, 1), one, one)
