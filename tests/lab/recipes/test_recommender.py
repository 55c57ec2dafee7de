"""Recommenders on a few ratings: every method, resumed or not, alone or side by side, compacted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import headgate as hg
from headgate_lab.data.monti import Split
from headgate_lab.data.ratings import Ratings
from headgate_lab.data.subgraphs import RatingGraph, enclosing
from headgate_lab.engine.job import Job
from headgate_lab.engine.record import read_runs
from headgate_lab.engine.run import batches, run
from headgate_lab.engine.watch import Lines
from headgate_lab.paper import PAPER
from headgate_lab.recipes import recommender
from headgate_lab.recipes.recommender import METHODS, Recommendation, Recommendations, recipe, recipes
from headgate_lab.report.rows import rows
from tests.lab.engine.straight_line import here
from tests.lab.rated import random_ratings

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _few_ratings(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_ratings(20, 15, 4, share=0.4)
    values = 1.0 + graph.relations
    last = 20
    train = RatingGraph(graph.users[:-last], graph.items[:-last], graph.relations[:-last], 20, 15, 4)
    parts = [
        Ratings(graph.users[part], graph.items[part], values[part], 20, 15)
        for part in (slice(-last), slice(-last, None))
    ]
    known = (
        Split(parts[0], parts[1], torch.arange(1.0, 5.0)),
        *(enclosing(train, one.users, one.items) for one in parts),
    )
    monkeypatch.setattr(recommender, "subgraphs_of", lambda dataset: known)


def small(method: str, **others: Any) -> Recommendation:
    sizes = {"width": 4, "hidden": 8, "length": 4, "apart": 1, "members": 2, "batch": 16}
    floor = {"floor": 3} if method == "ours" else {}
    return replace(recipe("flixster", method), **(sizes | floor | others))


def test_names_of_runs() -> None:
    # Records are found by these names: a change here loses every record on disk.
    assert Job(recipe("yahoo-music", "igmc-dam"), 0).name == "924b1c1856f2"
    assert Job(recipe("flixster", "control"), 4).name == "f519edf607d4"


def test_four_methods_on_three_datasets_five_seeds() -> None:
    jobs = [Job(one, seed) for one in recipes() for seed in range(5)]
    assert len({job.name for job in jobs}) == 60
    assert [len(batch) for batch in batches(jobs, 5)] == [5] * 12
    assert {one.setting: (one.strength, one.dropout) for one in recipes()} == {
        "yahoo-music, igmc": (0.0, 0.5),
        "yahoo-music, igmc-dam": (50.0, 0.0),
        "yahoo-music, control": (0.0, 0.0),
        "yahoo-music, ours": (500.0, 0.0),
        "flixster, igmc": (0.0, 0.5),
        "flixster, igmc-dam": (0.1, 0.0),
        "flixster, control": (0.0, 0.0),
        "flixster, ours": (10.0, 0.0),
        "douban, igmc": (0.0, 0.5),
        "douban, igmc-dam": (0.1, 0.0),
        "douban, control": (0.0, 0.0),
        "douban, ours": (10.0, 0.0),
    }
    printed = {
        number.setting["dataset"]: float(number.text or 0)
        for number in PAPER["recommender"].numbers
        if number.metric == "dimension" and number.setting["method"] == "igmc-dam"
    }
    assert {one.dataset: one.floor for one in recipes() if one.floor} == printed


@pytest.mark.parametrize("method", METHODS)
def test_going_on_is_bit_identical(method: str) -> None:
    jobs = [Job(small(method), seed) for seed in range(2)]
    whole, first, second = (Recommendation.start(jobs, CPU) for _ in range(3))
    epochs = [whole.epoch() for _ in range(4)]
    assert [first.epoch() for _ in range(3)] == epochs[:3]
    second.load_state_dict(first.state_dict())
    assert [second.epoch()] == epochs[3:]
    assert second.finish() == whole.finish()


@pytest.mark.parametrize("method", METHODS)
def test_alone_and_side_by_side_are_the_same(method: str) -> None:
    jobs = [Job(small(method), seed) for seed in range(3)]
    together = Recommendations(jobs, CPU)
    alone = [Recommendations([job], CPU) for job in jobs]
    for _ in range(4):
        found, wanted = together.epoch(), [one.epoch()[0] for one in alone]
        assert [each["loss"] for each in found] == pytest.approx([each["loss"] for each in wanted], rel=1e-4)
    for one, each in zip(together.finish(), (training.finish()[0] for training in alone), strict=True):
        assert one["rmse"] == pytest.approx(each["rmse"], rel=1e-3) and one["dimension"] == each["dimension"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("method", METHODS)
def test_the_same_step_on_a_gpu(method: str) -> None:
    """Random numbers differ between devices, so both predict with the weights that one of them learned."""
    jobs = [Job(small(method), seed) for seed in range(2)]
    there, here_ = Recommendations(jobs, torch.device("cuda")), Recommendations(jobs, CPU)
    losses = [[each["loss"] for each in there.epoch()] for _ in range(4)]
    assert losses[-1] < losses[0]
    here_.networks.load_state_dict(there.networks.state_dict())
    torch.testing.assert_close(
        here_.networks.predict(here_.test), there.networks.predict(there.test).cpu(), rtol=1e-4, atol=1e-4
    )
    assert all(final["rmse_last"] > 0 for final in there.finish())


def test_training_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    training = Recommendations([Job(small("igmc"), 0)], CPU)
    training.epoch()
    assert torch.equal(torch.get_rng_state(), before)


def test_the_ensemble_is_the_mean_of_the_last_predictions() -> None:
    training = Recommendations([Job(small("control"), 1)], CPU)
    predicted = []
    for _ in range(4):
        training.epoch()
        predicted.append(training.networks.predict(training.test))
    mean = (predicted[2] + predicted[3]) / 2
    (final,) = training.finish()
    assert final["rmse"] == pytest.approx(float((mean - training.wanted).square().mean().sqrt()), rel=1e-6)
    assert final["rmse_last"] == pytest.approx(float((predicted[3] - training.wanted).square().mean().sqrt()), rel=1e-6)


@pytest.mark.parametrize(("offset", "dimension"), [(-2.0, 4), (-6.0, 0)])
def test_closed_units_are_removed_and_nothing_else_changes(offset: float, dimension: int) -> None:
    training = Recommendations([Job(small("igmc-dam"), seed) for seed in range(2)], CPU)
    training.epoch()
    with torch.no_grad():
        training.networks.parameters["head.gate.offset"].fill_(offset)
    for final in training.finish():
        assert final["dimension"] == dimension
        assert final["rmse_compact"] == pytest.approx(final["rmse_last"], rel=1e-6)
        assert final["params"] == 4 * (4 * 4 * 4 + 4 * 4 + 4 * 4 + 4) + (32 + 2) * max(1, dimension) + 1


def test_a_compacted_network_that_differs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Recommendations([Job(small("igmc-dam"), 0)], CPU)
    monkeypatch.setattr(recommender, "compacted", lambda network: training.recipe.network(4, seed=5))
    with pytest.raises(hg.CompactionError, match="flixster, igmc-dam: RMSE"):
        training.finish()


def test_the_gate_closes_and_its_strength_decides() -> None:
    found = {}
    for strength in (0.0, 5.0):
        training = Recommendations([Job(small("igmc-dam", strength=strength, lr=0.05, length=30, apart=10), 0)], CPU)
        for _ in range(30):
            (metrics,) = training.epoch()
        found[strength] = metrics["dimension"]
    assert found[5.0] < found[0.0]


def test_ours_ends_at_the_dimension_it_is_told_and_no_lower() -> None:
    jobs = [Job(small("ours", floor=floor, strength=1e3, length=10), 0) for floor in (3, 5)]
    for job, dimension in zip(jobs, (3, 5), strict=True):
        training = Recommendations([job], CPU)
        open_units = [training.epoch()[0]["dimension"] for _ in range(10)]
        assert open_units[0] > dimension == open_units[4]
        (final,) = training.finish()
        assert final["dimension"] == dimension
        assert final["rmse_compact"] == pytest.approx(final["rmse_last"], rel=1e-5)


def test_records_become_the_table(tmp_path: Path) -> None:
    jobs = [Job(small(method), seed) for method in METHODS for seed in range(2)]
    assert run(jobs, here(tmp_path), Lines(), together=2) == []
    found = rows("recommender", read_runs(tmp_path, "recommender"))
    told = {(row.setting["dataset"], row.setting["method"], row.metric): row for row in found}
    assert told["flixster", "igmc-dam", "rmse"].paper == 0.8706 and told["flixster", "igmc-dam", "rmse"].n == 2
    assert told["flixster", "control", "rmse"].paper is None and told["flixster", "control", "rmse"].n == 2
    for method in METHODS:
        assert told["flixster", method, "rmse_last"].place is None and told["flixster", method, "rmse_last"].n == 2
    assert told["douban", "igmc-dam", "rmse"].ours is None and told["douban", "igmc-dam", "rmse"].paper == 0.7183
    json.dumps([row.as_json() for row in found], allow_nan=False)
