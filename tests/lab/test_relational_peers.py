"""Our layers beside torch_geometric's RGCNConv, on the explicit edges of the same subgraphs."""

from __future__ import annotations

import pytest
import torch

from headgate_lab.data.batch_index import Kept
from headgate_lab.data.subgraph_batch import Batches
from headgate_lab.data.subgraphs import enclosing
from headgate_lab.models.relational import RelationalLayer, relational_centre
from tests.lab.rated import Plain, dropped_subgraph, random_ratings

geometric = pytest.importorskip("torch_geometric.nn")
CPU = torch.device("cpu")


def peer(layer: RelationalLayer, plain: Plain, aggregation: str) -> torch.Tensor:
    """The states of the two targets behind one layer, by RGCNConv with our weights."""
    (inputs, outputs), (relations, bases) = layer.root.shape, layer.mix.shape
    conv = geometric.RGCNConv(inputs, outputs, relations, num_bases=bases, aggr=aggregation).double()
    with torch.no_grad():
        for theirs, ours in (
            (conv.weight, layer.bases),
            (conv.comp, layer.mix),
            (conv.root, layer.root),
            (conv.bias, layer.bias),
        ):
            theirs.copy_(ours)
    edges = torch.tensor(plain.edges, dtype=torch.long).reshape(-1, 3).T
    found: torch.Tensor = conv(torch.eye(4, dtype=torch.float64)[plain.labels], edges[:2], edges[2])
    return found.tanh()[:2]


@pytest.mark.parametrize("relations", [3, 11])
def test_sums(relations: int) -> None:
    graph = random_ratings(9, 8, relations)
    compare(relations, enclosing(graph, graph.users, graph.items), "add")


def test_means_where_no_node_hears_a_relation_twice() -> None:
    """There, and only there, the mean within a relation, which RGCNConv takes today, is the sum."""
    graph = random_ratings(30, 30, 40, share=0.1)
    subgraphs = enclosing(graph, graph.users, graph.items)
    apart = [pair for pair in range(len(subgraphs)) if unequivocal(plain_of(subgraphs, pair))]
    assert len(apart) > 20
    compare(40, subgraphs, "mean", apart)


def compare(relations: int, subgraphs, aggregation: str, pairs: list[int] | None = None) -> None:
    layer = RelationalLayer(4, 5, relations, generator=torch.Generator().manual_seed(0)).double()
    batches = Batches(subgraphs, CPU)
    for pair in pairs or range(len(subgraphs)):
        batch = batches.batch(torch.tensor([[pair]]))
        labels = torch.eye(4, dtype=torch.float64)
        ours = relational_centre(labels[:2].unsqueeze(0), labels[batch.labels], layer.weights(), batch)[0]
        torch.testing.assert_close(ours, peer(layer, plain_of(subgraphs, pair), aggregation), rtol=0, atol=1e-12)


def plain_of(subgraphs, pair: int) -> Plain:
    sizes = subgraphs.bundle_sizes
    everything = Kept(
        torch.ones(1, 2, len(subgraphs.spokes), dtype=torch.bool),
        torch.ones(1, 2, len(subgraphs.chord_users), dtype=torch.bool),
        torch.stack([sizes, torch.zeros_like(sizes)]).unsqueeze(0),
    )
    return dropped_subgraph(subgraphs, everything, pair)


def unequivocal(plain: Plain) -> bool:
    heard = [(sink, relation) for _, sink, relation in plain.edges if sink < 2]
    return len(set(heard)) == len(heard) > 1
