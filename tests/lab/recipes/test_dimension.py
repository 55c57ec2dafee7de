"""The gate finds the dimension, however many jobs run beside it and wherever it was interrupted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headgate_lab.data.factors import linear_factors, neural_factors, quadratic_factors
from headgate_lab.engine.job import Job
from headgate_lab.engine.record import read_runs
from headgate_lab.engine.run import batches, run
from headgate_lab.engine.watch import Lines
from headgate_lab.recipes.dimension import Dimension, Dimensions, ours, paper, recipes
from tests.lab.engine.straight_line import here

CPU = torch.device("cpu")


def small(recipe: Dimension, steps: int, **others: Any) -> Dimension:
    return replace(recipe, steps=steps, length=4, samples=200, features=20, bottleneck=10, **others)


def final(jobs: list[Job], out: Path, together: int) -> dict[tuple[str, int], Any]:
    assert run(jobs, here(out), Lines(), together=together) == []
    return {(record["setting"], record["seed"]): record["metrics"] for record in read_runs(out, "dimension")}


def test_names_of_runs() -> None:
    # Records are found by these names: a change here loses every record on disk.
    assert Job(paper("linear", 5), 0).name == "f83db019531e"
    assert Job(paper("neural", 20), 4).name == "802484e07e18"


def test_there_are_two_settings_of_every_problem_and_dimension() -> None:
    jobs = [Job(recipe, seed) for recipe in recipes() for seed in range(5)]
    assert len({job.name for job in jobs}) == 120
    together = batches(jobs, 20)
    assert [len(batch) for batch in together] == [20] * 6


def test_the_gate_finds_the_dimension(tmp_path: Path) -> None:
    """With 10 channels instead of 50, each saves five times as much: hence another strength than the recipe's."""
    wanted = {"linear, r = 2, ours": 2, "linear, r = 4, ours": 4, "linear, r = 7, ours": 7}
    jobs = [Job(small(ours("linear", factors), 1_000, strength=0.05), seed) for factors in (2, 4, 7) for seed in (0, 1)]
    found = final(jobs, tmp_path, 6)
    assert {key: metrics["final"]["dimension"] for key, metrics in found.items()} == {
        (setting, seed): dimension for setting, dimension in wanted.items() for seed in (0, 1)
    }
    for metrics in found.values():
        assert metrics["final"]["error"] < 1e-5
        assert metrics["epochs"]["dimension"][-1] == metrics["final"]["dimension"]
        assert metrics["epochs"]["loss"][-1] == metrics["final"]["loss"]


@pytest.mark.parametrize("problem", ["linear", "quadratic", "neural"])
def test_alone_and_side_by_side_are_the_same(problem: str, tmp_path: Path) -> None:
    jobs = [Job(small(make(problem, 3), 8), seed) for make in (paper, ours) for seed in range(2)]
    together, alone = final(jobs, tmp_path / "together", 4), final(jobs, tmp_path / "alone", 1)
    assert len(together) == 4
    for key, metrics in alone.items():
        assert metrics["final"]["loss"] == pytest.approx(together[key]["final"]["loss"], rel=1e-3)
        assert metrics["epochs"]["loss"][0] > metrics["final"]["loss"]


@pytest.mark.parametrize("make", [paper, ours])
def test_going_on_is_bit_identical(make: Any) -> None:
    jobs = [Job(small(make("quadratic", 3), 40), seed) for seed in range(2)]
    whole, first, second = (Dimension.start(jobs, CPU) for _ in range(3))
    epochs = [whole.epoch() for _ in range(4)]
    assert [first.epoch() for _ in range(2)] == epochs[:2]
    second.load_state_dict(first.state_dict())
    assert [second.epoch() for _ in range(2)] == epochs[2:]
    assert second.finish() == whole.finish()


def test_training_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    training = Dimensions([Job(small(ours("neural", 3), 4), 0)], CPU)
    training.epoch()
    assert torch.equal(torch.get_rng_state(), before)


def test_steps_must_fill_the_epochs() -> None:
    with pytest.raises(ValueError, match="10 steps cannot be divided into 4 epochs"):
        small(paper("linear", 5), 10)


@pytest.mark.parametrize("make", [linear_factors, quadratic_factors, neural_factors])
def test_factors_are_checked_and_drawn_from_their_generator_alone(make: Any) -> None:
    before = torch.get_rng_state()
    first, second, third = (make(60, 12, 4, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert first.shape == (60, 12)
    assert torch.equal(first, second) and not torch.equal(first, third)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ValueError, match="factors=13"):
        make(60, 12, 13, generator=torch.Generator())


def test_linear_factors_give_that_rank() -> None:
    assert int(torch.linalg.matrix_rank(linear_factors(60, 12, 4, generator=torch.Generator().manual_seed(1)))) == 4
