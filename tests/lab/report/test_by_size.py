"""Networks of one size stand in one line, whichever method made them small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headgate_lab.engine.record import read_runs
from headgate_lab.report.by_size import by_size
from headgate_lab.report.runs import provenance
from headgate_lab.report.table import Sheet, markdown
from tests.lab.report.synthetic import write

VGG = {"network": "vgg19", "dataset": "cifar10", "strength": None, "params": None, "length": 160}


def laid(out: Path, *runs: tuple[dict[str, Any], int, float, int]) -> Sheet:
    for config, seed, accuracy, params in runs:
        # What is told is the accuracy with gates; an older compaction did not keep it.
        final = {"accuracy": accuracy - 7, "accuracy_before": accuracy, "params": params}
        write(out, "cifar", {**VGG, **config}, seed, final)
    return by_size("cifar", list(read_runs(out, "cifar")))


def test_methods_meet_at_the_size_and_the_dense_network_at_every_one(tmp_path: Path) -> None:
    found = laid(
        tmp_path,
        ({"method": "ours", "params": 264_000}, 0, 91.0, 263_000),
        ({"method": "ours", "params": 264_000}, 1, 92.0, 264_000),
        ({"method": "narrower", "params": 264_000}, 0, 85.0, 260_000),
        ({"method": "narrower", "params": 1_627_000}, 0, 90.0, 1_600_000),
        ({"method": "narrower"}, 0, 94.0, 20_000_000),
        ({"method": "paper", "strength": 0.5}, 0, 90.5, 270_400),
        ({"method": "paper", "strength": 7.0}, 0, 10.0, 1),
        ({"method": "ours", "macs": 0.5, "network": "preresnet20"}, 0, 90.0, 130_000),
    )
    assert found.head[:4] == ("network", "dataset", "at most", "printed")
    assert found.lines == (
        ("preresnet20", "cifar10", "50% of the MACs", "–", "–", "90.00", "–", "–", "–"),
        ("vgg19", "cifar10", "1,627,000 parameters", "93.39", "–", "–", "–", "90.00", "94.00"),
        ("vgg19", "cifar10", "264,000 parameters", "90.92", "90.50 at 270k+", "91.50 ± 0.71", "–", "85.00", "94.00"),
    )
    assert "| vgg19 | cifar10 | 264,000 parameters | 90.92 |" in markdown(found)


def test_recipes_that_differ_otherwise_stand_one_after_the_other(tmp_path: Path) -> None:
    ours = {"method": "ours", "params": 264_000}
    (line,) = laid(tmp_path, (ours, 0, 91.0, 1), ({**ours, "length": 100}, 0, 90.0, 1)).lines
    assert sorted(line[5].split(", ")) == ["90.00", "91.00"]


def test_a_size_that_lacks_what_keeps_the_accuracy_is_marked(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((90.45, 60.0)):
        config = {**VGG, "method": "paper", "strength": 0.5, "length": 160 + seed}
        write(tmp_path, "cifar", config, 0, {"accuracy": accuracy, "accuracy_before": 90.5, "params": 270_400})
    (line,) = by_size("cifar", list(read_runs(tmp_path, "cifar"))).lines
    assert line[4] == "90.50 at 270k, 90.50 at 270k+"


def test_dead_networks_are_told(tmp_path: Path) -> None:
    ours = {**VGG, "method": "ours", "params": 264_000}
    write(tmp_path, "cifar", ours, 0, {"accuracy": 90.0, "accuracy_before": 90.0, "params": 263_000, "dead": 0})
    write(tmp_path, "cifar", ours, 1, {"accuracy": 10.0, "accuracy_before": 10.0, "params": None, "dead": 1})
    records = list(read_runs(tmp_path, "cifar"))
    (line,) = by_size("cifar", records).lines
    assert line[5] == "50.00 ± 56.57 (1 of 2 dead)"
    assert "; 1 ended dead, which have an accuracy and no size; " in provenance(records)


def test_runs_that_have_no_accuracy_say_nothing(tmp_path: Path) -> None:
    write(tmp_path, "cifar", {**VGG, "method": "ours", "params": 264_000}, 0, {"params": 263_000})
    assert by_size("cifar", list(read_runs(tmp_path, "cifar"))).lines[0][5] == "–"
