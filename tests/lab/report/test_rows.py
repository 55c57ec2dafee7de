"""Each number of the paper finds its runs, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headgate_lab.engine.job import Job
from headgate_lab.engine.record import read_runs, write_run
from headgate_lab.paper import PAPER
from headgate_lab.report.minutes import minutes
from headgate_lab.report.rows import Row, rows
from headgate_lab.report.runs import ReportError, by_recipe, provenance, same
from headgate_lab.report.table import as_json
from tests.lab.engine.straight_line import StraightLine
from tests.lab.report.synthetic import (
    ENVIRONMENT,
    LINEAR_5,
    write,
    write_autoencoder,
    write_dimension,
    write_lenet,
    write_sensitivity,
)


def found(out: Path, experiment: str) -> list[Row]:
    return rows(experiment, read_runs(out, experiment))


def pick(table: list[Row], metric: str, statistic: str = "mean", **setting: Any) -> Row:
    (row,) = (
        row
        for row in table
        if (row.metric, row.statistic) == (metric, statistic) and setting.items() <= dict(row.setting).items()
    )
    return row


@pytest.mark.parametrize("experiment", PAPER)
def test_without_records_ours_is_nothing(experiment: str, tmp_path: Path) -> None:
    table = found(tmp_path, experiment)
    assert len(table) == len(PAPER[experiment].numbers)
    assert all((row.ours, row.sd, row.n) == (None, None, 0) for row in table)
    for row, number in zip(json.loads(as_json(table)), PAPER[experiment].numbers, strict=True):
        assert row == {
            "id": experiment, "setting": number.setting, "metric": number.metric, "statistic": number.statistic,
            "place": number.place, "paper": number.value, "paper_sd": number.sd, "ours": None, "sd": None, "n": 0,
        }  # fmt: skip


def test_mean_and_sample_spread_over_seeds(tmp_path: Path) -> None:
    for seed, dimension in enumerate((5, 6, 10)):
        write(tmp_path, "dimension", LINEAR_5, seed, {"dimension": dimension})
    write(tmp_path, "dimension", LINEAR_5 | {"factors": 10}, 0, {"dimension": 11})
    table = found(tmp_path, "dimension")
    row = pick(table, "dimension", problem="linear", factors=5)
    assert (row.paper, row.ours, row.n) == (5.0, 7.0, 3)
    assert row.sd == pytest.approx(7**0.5)  # deviations -2, -1, 3: 14 / 2
    alone = pick(table, "dimension", problem="linear", factors=10)
    assert (alone.ours, alone.sd, alone.n) == (11.0, None, 1)
    assert pick(table, "dimension", problem="linear", factors=15).n == 0


def test_a_run_without_the_metric_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, "dimension", LINEAR_5, 0, {"dimension": None})
    write(tmp_path, "dimension", LINEAR_5, 1, {"loss": 1.0})
    write(tmp_path, "dimension", LINEAR_5, 2, {"dimension": 5})
    row = pick(found(tmp_path, "dimension"), "dimension", problem="linear", factors=5)
    assert (row.ours, row.n) == (5.0, 1)


def test_a_row_that_fits_two_recipes_is_refused_and_they_are_named(tmp_path: Path) -> None:
    write(tmp_path, "dimension", LINEAR_5, 0, {"dimension": 5})
    write(tmp_path, "dimension", LINEAR_5 | {"lr": 0.1}, 1, {"dimension": 5})
    with pytest.raises(ReportError, match=r"problem=linear, factors=5.*2 recipes: lr=0\.01; lr=0\.1\. Let the row"):
        found(tmp_path, "dimension")


def test_a_field_that_only_some_records_have_sets_them_apart(tmp_path: Path) -> None:
    write(tmp_path, "dimension", LINEAR_5, 0, {"dimension": 5})
    write(tmp_path, "dimension", LINEAR_5 | {"span": 5.0}, 1, {"dimension": 5})
    with pytest.raises(ReportError, match=r"2 recipes: no span; span=5\.0\. Let the row"):
        found(tmp_path, "dimension")


def test_recipes_of_two_classes_are_two(tmp_path: Path) -> None:
    write(tmp_path, "dimension", LINEAR_5, 0, {"dimension": 5})
    write(tmp_path, "dimension", LINEAR_5, 1, {"dimension": 5}, recipe="Another")
    with pytest.raises(ReportError, match="2 recipes: Another; ByHand"):
        found(tmp_path, "dimension")


def test_a_run_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "dimension", LINEAR_5, 3, {"dimension": 5})
    copy = path.parent.with_name("copy")
    copy.mkdir()
    (copy / path.name).write_text(path.read_text())
    with pytest.raises(ReportError, match=r"more than one record of seed 3"):
        found(tmp_path, "dimension")


def test_what_the_paper_lacks_comes_after_it(tmp_path: Path) -> None:
    write_lenet(tmp_path)
    table = found(tmp_path, "lenet")
    assert [row.place is None for row in table] == [False] * 90 + [True] * 9
    assert pick(table, "accuracy", method="paper", activation="tanh", gradient_noise=0.0, strength=0.1).ours == 98.5
    ours = pick(table, "params", method="ours", strength=0.1)
    assert (ours.paper, ours.ours, ours.n) == (None, 4050.0, 2)
    narrower = pick(table, "accuracy", method="narrower")
    # All fields that tell recipes apart, and none that does not exist for this one.
    assert narrower.setting == {
        "network": "lenet5", "activation": "tanh", "gradient_noise": 0.0, "method": "narrower", "strength": None,
        "width": 0.25,
    }  # fmt: skip


def test_an_experiment_that_the_paper_lacks_has_all_its_numbers(tmp_path: Path) -> None:
    for seed in range(2):
        final = {"accuracy": 98.0 + seed, "pruned": 50, "widths": [6, 16], "note": None}
        write(tmp_path, "ablation", {"strength": 0.1, "order": "index0"}, seed, final)
        write(tmp_path, "ablation", {"strength": 0.1, "order": "index"}, seed, final)
    table = found(tmp_path, "ablation")
    assert [(row.setting, row.metric, row.ours, row.n) for row in table] == [
        ({"order": order}, metric, ours, 2)
        for order in ("index", "index0")
        for metric, ours in (("accuracy", 98.5), ("pruned", 50.0))
    ]


def test_fields_that_all_recipes_share_are_not_told(tmp_path: Path) -> None:
    write_dimension(tmp_path)
    table = found(tmp_path, "dimension")
    assert pick(table, "dimension", settings="ours", problem="neural", factors=10).setting == {
        "problem": "neural", "factors": 10, "settings": "ours",
    }  # fmt: skip
    assert len(table) == 12 + 6


def test_a_figure_is_told_by_setting(tmp_path: Path) -> None:
    write_autoencoder(tmp_path)
    table = [row for row in found(tmp_path, "autoencoder") if row.metric == "dimension"]
    order = [(row.setting["method"], row.setting["strength"]) for row in table]
    assert order == [("dam", 0.01), ("dam", 1.0), ("dam", 10.0), ("l1", 0.01), ("l1", 1.0), ("l1", 10.0), ("l1", 25.0)]
    assert [row.n for row in table] == [3, 3, 3, 3, 3, 3, 0]
    assert pick(found(tmp_path, "autoencoder"), "macro_f1", method="dam", strength=10.0).n == 2


def test_a_map_is_told_by_its_least_median_and_most(tmp_path: Path) -> None:
    write_sensitivity(tmp_path)
    table = found(tmp_path, "sensitivity")
    for statistic, dimension, loss in (("least", 5, 0.0), ("median", 5, 1e-3), ("most", 50, 1.0)):
        assert pick(table, "dimension", statistic, problem="linear", map="strength").ours == dimension
        assert pick(table, "loss", statistic, problem="linear", map="offset").ours == loss


def test_a_map_without_any_number_is_not_measured(tmp_path: Path) -> None:
    write(tmp_path, "sensitivity", {"problem": "linear", "map": "offset"}, 0, {"dimension": [[None]], "loss": [[1.0]]})
    table = found(tmp_path, "sensitivity")
    assert pick(table, "dimension", "most", problem="linear", map="offset").n == 0
    assert pick(table, "loss", "most", problem="linear", map="offset").n == 1


@pytest.mark.parametrize(("experiment", "value"), [("dimension", [5]), ("dimension", "5"), ("sensitivity", 5)])
def test_a_metric_of_the_wrong_kind_is_named(experiment: str, value: Any, tmp_path: Path) -> None:
    write(tmp_path, experiment, LINEAR_5 | {"map": "offset"}, 0, {"dimension": value})
    with pytest.raises(ReportError, match="the final dimension of linear 5 paper"):
        found(tmp_path, experiment)


def test_the_paper_runs_of_permutation_are_our_seeds(tmp_path: Path) -> None:
    config = {"network": "preresnet164", "dataset": "cifar10", "method": "paper", "strength": 0.4}
    for seed, accuracy in enumerate((90.0, 92.0, 94.0)):
        write(tmp_path, "permutation", config | {"order": "random"}, seed, {"accuracy": accuracy})
        write(tmp_path, "permutation", config | {"order": "index"}, seed, {"accuracy": 50.0})
    table = found(tmp_path, "permutation")
    printed = [row for row in table if row.place and (row.metric, row.statistic) == ("accuracy", "mean")]
    assert [row.ours for row in printed] == [90, 92, 94, None, None]
    spread = pick(table, "accuracy", "relative sd", order="random")
    assert (spread.paper, spread.sd, spread.n) == (0.0024, None, 3)
    assert pick(table, "accuracy", "relative sd", order="index").ours == 0
    assert spread.ours == pytest.approx(2 / 92)


def test_the_engine_writes_what_tables_read(tmp_path: Path) -> None:
    for seed in range(2):
        job = Job(StraightLine(3.0), seed)
        final, loss = {"slope": 3.0 + seed}, [{"loss": 1.0}, {"loss": 0.5}]
        write_run(tmp_path, job, epochs=loss, final=final, environment=ENVIRONMENT, seconds={}, together=1)
    (runs,) = by_recipe(read_runs(tmp_path, "line"))
    assert runs.fits({"slope": 3, "length": 5}) and not runs.fits({"slope": 4}) and not runs.fits({"width": None})
    assert (runs.final("slope"), runs.final("slope", 1), runs.curves("loss")) == ([3.0, 4.0], [4.0], [[1.0, 0.5]] * 2)
    assert runs.curves("accuracy") == [] and runs.final("accuracy") == []


def test_true_is_not_one() -> None:
    assert same(1, 1.0) and same(True, True) and same("a", "a")
    assert not same(1, True) and not same(0.0, False) and not same(None, 0)


def test_where_records_come_from(tmp_path: Path) -> None:
    write(tmp_path, "dimension", LINEAR_5, 0, {})
    (alone,) = read_runs(tmp_path, "dimension")
    assert provenance([alone]) == "1 run of 1 seed; device two cores; torch 2.13.0; commit 0123456789"
    other = alone | {"seed": 1, "environment": {"device": "H200", "torch": "2.13.0", "commit": "a" * 40}}
    assert provenance([alone, other]) == (
        "2 runs of 2 seeds; device H200, two cores; torch 2.13.0; commits 0123456789, aaaaaaaaaa"
    )
    asked = alone | {"environment": alone["environment"] | {"precision": "bfloat16"}}
    assert provenance([alone, asked]).endswith("; commit 0123456789; precision bfloat16 (of 1 run)")
    assert provenance([asked, asked]).endswith("; precision bfloat16")
    # Of a metric that only one of its stages has, a record holds fewer numbers.
    longer = other | {"metrics": alone["metrics"] | {"epochs": {"loss": [2.0, 1.0, 0.5], "mask": [0.1]}}}
    shorter = other | {"seed": 2, "metrics": alone["metrics"] | {"epochs": {"loss": [2.0]}}}
    assert provenance([longer, alone, shorter]).startswith("3 runs of 3 seeds for 1 or 3 epochs; device H200, two")
    # Steps in pieces of many are no epochs.
    assert provenance([longer | {"config": {"steps": 300, "length": 3}}]).startswith("1 run of 1 seed; device")


def test_minutes_are_those_of_one_network(tmp_path: Path) -> None:
    config = {"network": "preresnet164", "dataset": "cifar10", "method": "chipnet", "order": "index", "ratio": 0.4}
    staged = {"seconds": {"train": 600.0, "prune": 240.0, "finish": 9.0}, "networks": {"train": 1, "prune": 2}}
    write(tmp_path, "curves", config, 0, {"accuracy": 90.0}, **staged, together=2)
    table = found(tmp_path, "curves")
    assert pick(table, "minutes_training", method="chipnet").ours == 10
    assert pick(table, "minutes_pruning", method="chipnet").ours == 2
    assert pick(table, "minutes_finetuning", method="chipnet").ours == 0
    assert pick(table, "minutes_training", method="slimming").ours is None
    searched = {"seconds": {"search": 60.0, "to train": 12.0, "train": 600.0}, "networks": {}, "together": 2}
    assert minutes(searched) == {"minutes_training": 5, "minutes_pruning": 0.6, "minutes_finetuning": 0}
