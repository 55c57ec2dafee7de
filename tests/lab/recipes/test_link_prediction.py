"""Link prediction on a toy graph: the training is the plain one, stacks and interruptions leave no trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor, nn

import headgate as hg
from headgate_lab.data.links import Hidden, split
from headgate_lab.data.planetoid import Graph
from headgate_lab.engine.job import Job
from headgate_lab.engine.record import read_runs
from headgate_lab.engine.run import batches, run
from headgate_lab.engine.watch import Lines
from headgate_lab.models.graph_autoencoder import GraphEncoder
from headgate_lab.recipes import link_prediction
from headgate_lab.recipes.link_prediction import LinkPrediction, budgeted, encoder_of, gated, plain, recipes
from headgate_lab.recipes.link_stack import DRAWS, SPLIT, compacted, dimensions, generator_of, quality
from tests.lab.engine.straight_line import here

CPU = torch.device("cpu")
NODES, FEATURES = 40, 12


def ring_of_cliques() -> Graph:
    """Eight cliques of five nodes, each joined to the next by an edge; features tell cliques and noise."""
    generator = torch.Generator().manual_seed(0)
    first, second = torch.triu_indices(NODES, NODES, 1)
    alike = first // 5 == second // 5
    joined = (first % 5 == 4) & (second == first + 1)
    features = torch.rand(NODES, FEATURES, generator=generator)
    features[torch.arange(NODES), torch.arange(NODES) // 5] += 3
    return Graph(features * (features > 0.5), torch.stack([first, second])[:, alike | joined])


@pytest.fixture(autouse=True)
def graph(monkeypatch: pytest.MonkeyPatch) -> Iterator[Graph]:
    toy = ring_of_cliques()
    monkeypatch.setattr(link_prediction, "planetoid", lambda name: toy)
    yield toy


def short(recipe: LinkPrediction, **others: Any) -> LinkPrediction:
    return replace(recipe, **{"steps": 12, "length": 3, **others})


def test_names_of_runs() -> None:
    assert Job(plain("cora", 16), 0).name == "a73ab7f987a2"
    assert Job(gated("citeseer", 64, 0.01), 4).name == "973bc4484ccd"
    assert Job(budgeted("cora", 8), 0).name == "b2f90e64e891"


def test_a_setting_says_whose_rules_divide_the_edges_if_not_those_of_2021() -> None:
    recipe = gated("cora", 16, 0.1)
    assert recipe.setting == "cora, gae-dam from 16, strength 0.1"
    assert replace(recipe, split="today").setting == "cora, gae-dam from 16, strength 0.1, split of today"


def test_what_runs_side_by_side() -> None:
    found = [recipe for recipe in recipes() if recipe.dataset == "cora"]
    for batch in batches([Job(recipe, seed) for seed in range(2) for recipe in found], 12):
        alike = [job.recipe for job in batch if isinstance(job.recipe, LinkPrediction)]
        assert len({(recipe.method, recipe.stacked_widths) for recipe in alike}) == 1
    strengths = [Job(recipe, seed) for seed in range(2) for recipe in found if recipe.is_gated]
    assert [{job.seed for job in batch} for batch in batches(strengths, 6)] == [{0}, {1}] * 4


@pytest.mark.parametrize(
    ("recipe", "widths"),
    [
        (gated("cora", 12, 0.1), (12, 24)),
        (plain("cora", 1), (16, 32)),
        (plain("cora", 16), (16, 32)),
        (plain("cora", 24), (32, 64)),
        (plain("cora", 8, 128), (16, 128)),
        (plain("cora", 100), (100, 200)),
    ],
)
def test_widths_in_a_stack(recipe: LinkPrediction, widths: tuple[int, int]) -> None:
    assert recipe.stacked_widths == widths


def by_hand(recipe: LinkPrediction, graph: Graph, seed: int) -> tuple[list[float], nn.Module, Tensor]:
    """The same training with dense matrices, one encoder, and torch's own Adam: losses, encoder, embedding."""
    parts = split(graph, recipe.split, generator=generator_of(seed, SPLIT))
    adjacency = torch.eye(graph.nodes)
    adjacency[parts.train[0], parts.train[1]] = adjacency[parts.train[1], parts.train[0]] = 1
    adjacency *= adjacency.sum(0).rsqrt().outer(adjacency.sum(0).rsqrt())
    features = graph.features / graph.features.sum(1, keepdim=True).clamp(min=1)
    encoder = encoder_of(recipe, graph, seed)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=recipe.lr)
    steps, losses = recipe.steps // recipe.length, []
    for piece in range(recipe.length):
        drawn = parts.non_edges.draw(steps, parts.draws, generator=generator_of(seed, DRAWS + piece))
        for step in range(steps):
            z = encoder(features, adjacency)
            edges, others = parts.train, drawn[:, step]
            real, false = ((z[one] * z[other]).sum(1).sigmoid() for one, other in (edges, others))
            loss = -(real + 1e-15).log().mean() - (1 - false + 1e-15).log().mean()
            losses.append(loss.item())
            if isinstance(encoder.gate, hg.Gate):
                loss = loss + recipe.strength * encoder.gate.offset
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return losses, encoder, encoder(features, adjacency).detach()


@pytest.mark.parametrize("recipe", [plain("cora", 3), gated("cora", 6, 1.0), plain("cora", 3, 20)])
def test_the_training_is_the_plain_one(recipe: LinkPrediction, graph: Graph) -> None:
    recipe = short(recipe, lr=0.05)
    training = LinkPrediction.start([Job(recipe, 1)], CPU)
    metrics = [training.epoch()[0] for _ in range(recipe.length)]
    losses, _, embedding = by_hand(recipe, graph, 1)
    steps = recipe.steps // recipe.length
    means = [sum(losses[i : i + steps]) / steps for i in range(0, len(losses), steps)]
    assert [epoch["loss"] for epoch in metrics] == pytest.approx(means, rel=1e-5)
    (ours,) = training.stacks[1].embeddings(in_test=True)
    torch.testing.assert_close(ours[:, : recipe.width], embedding, rtol=1e-4, atol=1e-5)
    assert not ours[:, recipe.width :].any()


def test_narrow_encoders_in_a_wide_stack_stay_narrow() -> None:
    jobs = [Job(short(plain("cora", width)), 0) for width in (1, 5, 16)]
    training = LinkPrediction.start(jobs, CPU)
    for _ in range(3):
        metrics = training.epoch()
    assert [epoch["dimension"] for epoch in metrics] == [1, 5, 16]
    first = training.stacks[0].encoder(1).first
    assert not first.weight[:, 10:].any() and first.weight[:, :10].all()
    alone = LinkPrediction.start(jobs[1:2], CPU)
    for _ in range(3):
        (own,) = alone.epoch()
    assert own["loss"] == pytest.approx(metrics[1]["loss"], rel=1e-5)


@pytest.mark.parametrize("rules", ["2021", "today"])
def test_a_record_has_both_hidden_sets_and_what_is_left_after_removal(rules: Any, tmp_path: Path) -> None:
    found = [plain("cora", 4), *(gated("cora", 8, strength) for strength in (0.1, 2.0))]
    jobs = [Job(short(recipe, split=rules, lr=0.1, steps=30), seed) for seed in range(2) for recipe in found]
    assert run(jobs, here(tmp_path), Lines(), together=8) == []
    records = read_runs(tmp_path, "link_prediction")
    assert len(records) == 6
    for record in records:
        final, epochs = record["metrics"]["final"], record["metrics"]["epochs"]
        assert set(epochs) == {"loss", "dimension", "validation_auc"} and len(epochs["loss"]) == 3
        assert epochs["loss"][0] > epochs["loss"][-1]
        assert final["validation_auc"] == epochs["validation_auc"][-1]
        assert final["dimension"] == epochs["dimension"][-1]
        if record["config"]["method"] == "gae":
            assert final["compact_auc"] is None and final["dimension"] == 4
        else:
            assert final["compact_auc"] == pytest.approx(final["auc"]) and final["dimension"] < 8
            assert final["compact_ap"] == pytest.approx(final["ap"])
        hidden, width = record["config"]["hidden"], final["dimension"]
        assert final["params"] == FEATURES * hidden + hidden + hidden * width + width


def test_a_larger_strength_closes_more() -> None:
    jobs = [Job(short(gated("cora", 16, strength), lr=0.1, steps=60), 0) for strength in (0.01, 5.0)]
    training = LinkPrediction.start(jobs, CPU)
    metrics = [training.epoch() for _ in range(3)][-1]
    weak, strong = (epoch["dimension"] for epoch in metrics)
    assert weak > strong


def test_ours_ends_at_the_dimension_it_is_told() -> None:
    jobs = [Job(short(budgeted("cora", floor), steps=60, offset_lr=0.4), 0) for floor in (2, 12)]
    assert jobs[0].recipe.cohort == jobs[1].recipe.cohort
    training = LinkPrediction.start(jobs, CPU)
    assert [[epoch["dimension"] for epoch in training.epoch()] for _ in range(3)][1:] == [[2, 12]] * 2
    assert [final["dimension"] for final in training.finish()] == [2, 12]


def test_going_on_is_bit_identical() -> None:
    jobs = [Job(short(gated("cora", 6, strength)), seed) for seed in (2, 0) for strength in (0.1, 1.0)]
    whole, first, second = (LinkPrediction.start(jobs, CPU) for _ in range(3))
    epochs = [whole.epoch() for _ in range(3)]
    assert first.epoch() == epochs[0]
    second.load_state_dict(first.state_dict())
    assert [second.epoch() for _ in range(2)] == epochs[1:]
    assert second.finish() == whole.finish()


def test_jobs_of_several_seeds_keep_their_order() -> None:
    jobs = [Job(short(gated("cora", 6, strength)), seed) for strength, seed in ((0.01, 2), (1.0, 0), (1.0, 2))]
    training = LinkPrediction.start(jobs, CPU)
    together = [training.epoch() for _ in range(3)][-1]
    for job, beside in zip(jobs, together, strict=True):
        alone = LinkPrediction.start([job], CPU)
        (own,) = [alone.epoch() for _ in range(3)][-1]
        assert own["loss"] == pytest.approx(beside["loss"], rel=1e-5)
    assert len({epoch["loss"] for epoch in together}) == 3


def test_the_compact_encoder_computes_the_same(graph: Graph) -> None:
    encoder = encoder_of(gated("cora", 16, 1.0), graph, 0)
    with torch.no_grad():
        encoder.gate.offset.fill_(-2.0)
    small = compacted(encoder)
    assert isinstance(small, GraphEncoder) and small.second.weight.shape == (32, 10)
    adjacency = torch.rand(NODES, NODES, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(small(graph.features, adjacency), encoder(graph.features, adjacency)[:, 6:])
    closed = encoder_of(gated("cora", 16, 1.0), graph, 0)
    with torch.no_grad():
        closed.gate.offset.fill_(-6.0)
    assert not compacted(closed)(graph.features, adjacency).any()


def test_dimensions_are_the_channels_in_use() -> None:
    embeddings = torch.zeros(2, 5, 4)
    embeddings[0, 3, 1] = embeddings[1, 0, 2] = embeddings[1, 4, 3] = 0.1
    assert dimensions(embeddings) == [1, 2]


def test_quality_is_scikit_learns() -> None:
    embedding = torch.randn(NODES, 3, generator=torch.Generator().manual_seed(0))
    edges, others = torch.arange(20).view(2, 10), torch.arange(20, 40).view(2, 10)
    scores = torch.cat([(embedding[a] * embedding[b]).sum(1) for a, b in (edges, others)])
    truth = [1] * 10 + [0] * 10
    wanted = roc_auc_score(truth, scores), average_precision_score(truth, scores)
    assert quality(embedding, Hidden(edges, others)) == pytest.approx(wanted)
    assert quality(torch.zeros(NODES, 3), Hidden(edges, others)) == (0.5, 0.5)
