"""The README's results are what the records say."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from headgate_lab.report.readme import (
    ABOVE,
    BEGIN,
    BETWEEN,
    END,
    KINDS,
    NOTHING_YET,
    Record,
    RecordError,
    headlines,
    load_records,
    main,
    section,
    with_section,
)
from tests.lab.report.synthetic import write


def write_record(path: Path, **changes: Any) -> None:
    record = {
        "recipe": "factors",
        "config": {"dimension": 5},
        "seed": 0,
        "metrics": {"found": 5},
        "environment": {"torch": "2.13.0", "device": "two cores", "commit": "abc"},
        "duration_s": 4.0,
        "headline": "Finds 5 of 5.",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record | changes))


def test_without_records_it_says_so(tmp_path: Path) -> None:
    assert section(tmp_path / "none") == NOTHING_YET


def test_runs_that_differ_in_their_seed_share_a_row(tmp_path: Path) -> None:
    for seed in (2, 0, 10):
        write_record(tmp_path / "factors" / f"{seed}.json", seed=seed)
    write_record(tmp_path / "b.json", recipe="a|b", headline="One\nline.")
    assert section(tmp_path).splitlines() == [
        "| recipe | headline | seeds | device |",
        "|---|---|---|---|",
        "| a\\|b | One line. | 0 | two cores |",
        "| factors | Finds 5 of 5. | 0, 2, 10 | two cores |",
    ]


def test_networks_of_the_same_size_come_first(tmp_path: Path) -> None:
    write_record(tmp_path / "a.json")
    both = {"network": "vgg19", "dataset": "cifar10", "strength": None, "length": 160, "params": 264_000}
    for method, accuracy in (("ours", 91.0), ("narrower", 85.0)):
        final = {"accuracy": accuracy, "accuracy_before": accuracy, "params": 260_000}
        write(tmp_path, "cifar", {**both, "method": method}, 0, final)
    above, sizes, between, rows = section(tmp_path).split("\n\n")
    assert (above, between, rows) == (ABOVE, BETWEEN, headlines(load_records(tmp_path)))
    assert sizes.splitlines() == [
        "| network | dataset | at most | printed | ours | narrower |",
        "| --- | --- | --- | ---: | ---: | ---: |",
        "| vgg19 | cifar10 | 264,000 parameters | 90.92 | 91.00 | 85.00 |",
    ]


def test_a_damaged_run_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "README.md").write_text(f"{BEGIN}\n{END}\n")
    (tmp_path / "results" / "cifar" / "0123456789ab").mkdir(parents=True)
    (tmp_path / "results" / "cifar" / "0123456789ab" / "record.json").write_text("{")
    assert main(["--readme", str(tmp_path / "README.md"), "--results", str(tmp_path / "results")]) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_the_runs_of_experiments_are_no_headlines(tmp_path: Path) -> None:
    (tmp_path / "lenet" / "0123456789ab").mkdir(parents=True)
    (tmp_path / "lenet" / "0123456789ab" / "record.json").write_text("{}")
    assert load_records(tmp_path) == ()


@pytest.mark.parametrize(
    ("content", "culprit"),
    [
        ("{", "not JSON"),
        ("[]", "missing keys"),
        ('{"recipe": "r"}', "'headline'"),
    ],
)
def test_a_bad_record_is_named(content: str, culprit: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(RecordError, match=r"bad\.json.*" + culprit):
        load_records(tmp_path)


def test_unknown_keys_and_a_thin_environment_are_refused(tmp_path: Path) -> None:
    write_record(tmp_path / "a.json", notes="")
    with pytest.raises(RecordError, match=r"unknown keys .'notes'"):
        load_records(tmp_path)
    write_record(tmp_path / "a.json", environment={"torch": "2.13.0"})
    with pytest.raises(RecordError, match=r"lacks .'commit', 'device'"):
        load_records(tmp_path)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"recipe": 3}, "recipe is 3, but must be of type str"),
        ({"config": []}, r"config is \[\], but must be of type dict"),
        ({"seed": "0"}, "seed is '0', but must be of type int"),
        ({"seed": True}, "seed is True, but must be of type int"),
        ({"metrics": None}, "metrics is None, but must be of type dict"),
        ({"environment": "laptop"}, "environment is 'laptop', but must be of type dict"),
        ({"environment": {"torch": "2", "device": 7, "commit": "a"}}, "environment holds something that is no text"),
        ({"duration_s": "4"}, "duration_s is '4', but must be of type int or float"),
        ({"headline": ["x"]}, "headline is .'x'., but must be of type str"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(changes: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    write_record(tmp_path / "a.json", **changes)
    with pytest.raises(RecordError, match=rf"a\.json: {complaint}"):
        load_records(tmp_path)


def test_every_key_of_a_record_has_its_type() -> None:
    assert list(KINDS) == [field.name for field in fields(Record)]


@pytest.mark.parametrize("readme", ["", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}"])
def test_a_readme_without_markers_is_refused(readme: str) -> None:
    with pytest.raises(RecordError, match="each once"):
        with_section(readme, "x")


def test_the_command_rewrites_only_the_section(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nstale\n{END}\nafter\n")
    write_record(tmp_path / "results" / "a.json")
    arguments = ["--readme", str(readme), "--results", str(tmp_path / "results")]
    assert main(arguments) == 0
    assert "rewritten" in capsys.readouterr().out
    table = section(tmp_path / "results")
    assert readme.read_text() == f"before\n{BEGIN}\n{table}\n{END}\nafter\n"
    assert main(arguments) == 0
    assert "unchanged" in capsys.readouterr().out


def test_the_command_fails_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--readme", str(tmp_path / "README.md")]) == 1
    assert capsys.readouterr().err.startswith("error: ")
