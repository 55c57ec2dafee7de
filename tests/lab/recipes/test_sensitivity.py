"""A map is one run; cells that diverge are None and leave the others alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headgate_lab.engine.job import Job
from headgate_lab.engine.record import read_runs
from headgate_lab.engine.run import run
from headgate_lab.engine.watch import Lines
from headgate_lab.recipes.sensitivity import Sensitivity, recipe, recipes
from headgate_lab.report.figures import picture
from tests.lab.engine.straight_line import here

CPU = torch.device("cpu")


def small(problem: str, over: str, **others: Any) -> Sensitivity:
    sizes = {"samples": 40, "features": 20, "bottleneck": 10, "factors": 3, "steps": 8, "length": 4}
    return replace(recipe(problem, over), **{**sizes, "rates": (1e-3, 1e-2), **others})


def test_names_of_runs() -> None:
    assert Job(recipe("linear", "strength"), 0).name == "7158ce504252"
    assert Job(recipe("neural", "offset"), 0).name == "b1577caad7bc"
    assert len({Job(one, 0).name for one in recipes()}) == 6


def test_cells_go_row_by_row() -> None:
    one = small("linear", "offset", values=(1.0, 2.0))
    assert one.cells() == [
        {"strength": 0.01, "offset": 1.0, "lr": 1e-3},
        {"strength": 0.01, "offset": 2.0, "lr": 1e-3},
        {"strength": 0.01, "offset": 1.0, "lr": 1e-2},
        {"strength": 0.01, "offset": 2.0, "lr": 1e-2},
    ]


@pytest.mark.parametrize("over", ["strength", "offset"])
@pytest.mark.parametrize("problem", ["linear", "quadratic", "neural"])
def test_a_map_is_recorded_as_matrices(problem: str, over: str, tmp_path: Path) -> None:
    one = small(problem, over)
    assert run([Job(one, 0)], here(tmp_path), Lines()) == []
    (record,) = read_runs(tmp_path, "sensitivity")
    final = record["metrics"]["final"]
    for name in ("dimension", "loss"):
        assert [len(row) for row in final[name]] == [len(one.values)] * 2
    assert record["metrics"]["epochs"]["alive"] == [2 * len(one.values)] * 4
    assert picture("sensitivity", [record])


def test_a_cell_sees_its_own_rate_and_value() -> None:
    """Ten channels, each half a unit of offset: after 40 steps of 0.1, an offset of 0.5 closes some, one of 5 none."""
    one = small("linear", "offset", rates=(1e-4, 0.1), values=(0.5, 5.0), strength=10.0, steps=40)
    training = Sensitivity.start([Job(one, 0)], CPU)
    for _ in range(4):
        training.epoch()
    dimension = training.finish()[0]["dimension"]
    assert dimension == [[10, 10], [pytest.approx(3, abs=2), 10]]


def test_cells_that_diverge_are_none_and_the_run_goes_on(tmp_path: Path) -> None:
    one = small("quadratic", "strength", rates=(1e-3, 1e30), values=(0.01, 0.1))
    assert run([Job(one, 0)], here(tmp_path), Lines()) == []
    (record,) = read_runs(tmp_path, "sensitivity")
    loss, dimension = (record["metrics"]["final"][name] for name in ("loss", "dimension"))
    assert all(value is not None for value in (*loss[0], *dimension[0]))
    assert loss[1] == dimension[1] == [None, None]
    assert record["metrics"]["epochs"]["alive"][-1] == 2


def test_seeds_side_by_side_are_as_each_alone() -> None:
    jobs = [Job(small("linear", "strength"), seed) for seed in range(2)]
    together = Sensitivity.start(jobs, CPU)
    together.epoch()
    for job, result in zip(jobs, together.finish(), strict=True):
        alone = Sensitivity.start([job], CPU)
        alone.epoch()
        (own,) = alone.finish()
        assert own["dimension"] == result["dimension"]
        torch.testing.assert_close(torch.tensor(own["loss"]), torch.tensor(result["loss"]), rtol=1e-4, atol=1e-6)


def test_going_on_is_bit_identical() -> None:
    jobs = [Job(small("neural", "strength"), 3)]
    whole, first, second = (Sensitivity.start(jobs, CPU) for _ in range(3))
    epochs = [whole.epoch() for _ in range(4)]
    assert [first.epoch() for _ in range(3)] == epochs[:3]
    second.load_state_dict(first.state_dict())
    assert second.epoch() == epochs[3]
    assert second.finish() == whole.finish()


def test_wrong_recipes_are_refused() -> None:
    with pytest.raises(ValueError, match="strength or offset, not decay"):
        small("linear", "strength", map="decay")
    with pytest.raises(ValueError, match="cannot be divided"):
        small("linear", "strength", steps=9)
