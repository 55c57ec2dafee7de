"""The relational layers compute what their definition says, and so do their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headgate_lab.data.batch_index import Batch
from headgate_lab.data.subgraph_batch import Batches
from headgate_lab.data.subgraphs import enclosing
from headgate_lab.models.igmc import Igmc
from headgate_lab.models.products import summed_over_rows
from headgate_lab.models.relational import RelationalLayer, Weights, relational, roughness, tanh_
from tests.lab.rated import Plain, dropped_subgraph, plain_layer, plain_subgraph, random_ratings

CPU = torch.device("cpu")
# Few relations: all of them in a table. Many: bases mixed edge by edge.
RELATIONS = [3, 11]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(relations: int, seed: int = 0, **sizes: int) -> Igmc:
    small = {"width": 5, "depth": 4, "hidden": 6, "bases": 4} | sizes
    return Igmc(relations, nn.Identity(), **small, generator=seeded(seed)).double()


def plain_prediction(model: Igmc, plain: Plain) -> Tensor:
    states = torch.eye(4, dtype=torch.float64)[plain.labels]
    behind = []
    for layer in model.layers:
        states = plain_layer(states, plain.edges, layer.mix, layer.bases, layer.root, layer.bias)
        behind.append(states[:2])
    return model.head(torch.cat(behind, 1).flatten().unsqueeze(0))


@pytest.mark.parametrize("relations", RELATIONS)
def test_a_network_computes_its_definition(relations: int) -> None:
    graph, model = random_ratings(9, 8, relations), network(relations)
    # Also pairs that are not rated.
    users, items = torch.cat([graph.users, torch.arange(8)]), torch.cat([graph.items, torch.arange(8)])
    batch = Batches(enclosing(graph, users, items), CPU).batch(torch.arange(len(users)).unsqueeze(0))
    wanted = [
        plain_prediction(model, plain_subgraph(graph, user, item))
        for user, item in zip(users.tolist(), items.tolist(), strict=True)
    ]
    torch.testing.assert_close(model(batch), torch.cat(wanted), rtol=0, atol=1e-12)
    ours = torch.autograd.grad(model(batch).square().sum(), list(model.parameters()))
    theirs = torch.autograd.grad(torch.cat(wanted).square().sum(), list(model.parameters()))
    for name, one, other in zip(dict(model.named_parameters()), ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10, msg=name)


def random_batch(relations: int, copies: int, pairs: int = 5) -> Batch:
    graph = random_ratings(7, 6, relations)
    batches = Batches(enclosing(graph, graph.users, graph.items), CPU)
    chosen = torch.stack([torch.randperm(len(graph.users), generator=seeded(s))[:pairs] for s in range(copies)])
    return batches.batch(chosen, batches.draw(0.3, [seeded(9 + s) for s in range(copies)]))


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("relations", RELATIONS)
def test_gradients_by_hand_are_those_of_the_function(relations: int, copies: int) -> None:
    batch = random_batch(relations, copies)
    shapes = {
        "centre": (copies, 2 * batch.pairs, 3),
        "around": (copies, batch.nodes, 3),
        "mix": (copies, relations, 2 if relations == 3 else 4),
        "bases": (copies, 2 if relations == 3 else 4, 3, 2),
        "root": (copies, 3, 2),
        "bias": (copies, 2),
    }
    inputs = [
        torch.randn(shape, dtype=torch.float64, generator=seeded(number)).requires_grad_()
        for number, shape in enumerate(shapes.values())
    ]

    def layer(centre: Tensor, around: Tensor, *weights: Tensor) -> Any:
        return relational(centre, around, Weights(*weights), batch)

    assert torch.autograd.gradcheck(layer, inputs)


@pytest.mark.parametrize("relations", RELATIONS)
def test_networks_side_by_side_compute_what_each_computes_alone(relations: int) -> None:
    graph = random_ratings(9, 8, relations)
    batches = Batches(enclosing(graph, graph.users, graph.items), CPU)
    models = [network(relations, seed) for seed in range(3)]
    chosen = torch.stack([torch.randperm(len(graph.users), generator=seeded(s))[:4] for s in range(3)])
    kept = batches.draw(0.2, [seeded(s) for s in range(3)])
    stacked = [
        Weights(*(torch.cat(parts) for parts in zip(*(model.layers[k].weights() for model in models), strict=True)))
        for k in range(4)
    ]
    from headgate_lab.models.igmc import targets

    together = targets(stacked, batches.batch(chosen, kept))
    for number, model in enumerate(models):
        alone = batches.batch(chosen[number : number + 1], kept.of(number))
        torch.testing.assert_close(
            targets([layer.weights() for layer in model.layers], alone)[0], together[number], rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("relations", [5, 1])
def test_roughness_is_that_of_the_matrices(relations: int) -> None:
    layers = [RelationalLayer(inputs, 2, relations, generator=seeded(inputs)).double() for inputs in (3, 2)]
    matrices = [torch.einsum("rb,bio->rio", layer.mix, layer.bases) for layer in layers]
    wanted = sum((each.diff(dim=0) ** 2).sum() for each in matrices)
    torch.testing.assert_close(roughness([layer.weights() for layer in layers])[0], wanted)
    several = [
        torch.randn(shape, dtype=torch.float64, generator=seeded()).requires_grad_()
        for shape in ((2, relations, 4), (2, 4, 3, 2), (2, relations, 4), (2, 4, 2, 2))
    ]

    def of_two_layers(mix: Tensor, bases: Tensor, other_mix: Tensor, other_bases: Tensor) -> Tensor:
        return roughness([Weights(mix, bases, mix, mix), Weights(other_mix, other_bases, mix, mix)])

    assert torch.autograd.gradcheck(of_two_layers, several)


@pytest.mark.parametrize("rows", [1, 1023, 1024, 1030, 4384])
def test_sums_over_many_rows_in_parts(rows: int) -> None:
    """Also of rows that are the first ones of each network alone."""
    left, right = (
        torch.randn(3, rows + 5, width, dtype=torch.float64, generator=seeded(width))[:, :rows] for width in (4, 6)
    )
    torch.testing.assert_close(summed_over_rows(left, right), left.mT @ right)


def test_tanh() -> None:
    x = torch.linspace(-30, 30, 1001, dtype=torch.float64)
    torch.testing.assert_close(tanh_(x.clone()), x.tanh(), rtol=0, atol=1e-15)


def test_the_published_size() -> None:
    sizes = {
        relations: sum(p.numel() for p in Igmc(relations, nn.Identity(), generator=seeded()).parameters())
        for relations in (10, 5, 71)
    }
    assert sizes == {10: 49_313, 5: 49_233, 71: 50_289}


@pytest.mark.parametrize("relations", RELATIONS)
def test_edge_dropout_leaves_the_network_of_the_edges_that_stay(relations: int) -> None:
    graph, model = random_ratings(12, 10, relations, share=0.2), network(relations)
    subgraphs = enclosing(graph, graph.users, graph.items)
    assert int(subgraphs.bundle_sizes.max()) > 1 and len(subgraphs.chord_users) > 10
    batches = Batches(subgraphs, CPU)
    kept = batches.draw(0.4, [seeded(3)])
    wanted = [plain_prediction(model, dropped_subgraph(subgraphs, kept, pair)) for pair in range(len(subgraphs))]
    found = model(batches.batch(torch.arange(len(subgraphs)).unsqueeze(0), kept))
    torch.testing.assert_close(found, torch.cat(wanted), rtol=0, atol=1e-12)


def test_as_many_edges_are_left_out_as_asked_for() -> None:
    graph = random_ratings(300, 300, 3, share=0.02)
    subgraphs = enclosing(graph, graph.users, graph.items)
    kept = Batches(subgraphs, CPU).draw(0.2, [seeded(1)])
    members = subgraphs.bundle_sizes.sum()
    for found, wanted in (
        (kept.spokes.float().mean(), 0.8),
        (kept.chords.float().mean(), 0.8),
        (kept.bundles[0, 0].sum() / members, 0.64),
        (kept.bundles[0, 1].sum() / members, 0.16),
    ):
        assert float(found) == pytest.approx(wanted, abs=0.02)
