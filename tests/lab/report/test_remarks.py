"""What follows from a table's words is told in a remark; nothing is told there that is not so of every run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate_lab.report.remarks import LONGEST, following
from headgate_lab.report.rows import Row


def line(place: str | None = None, runs: int = 1, **setting: Any) -> Row:
    return Row("curves", setting, "accuracy", "mean", place, None, None, 90.0 if runs else None, None, runs)


def told(*rows: Row) -> Mapping[str, str]:
    return following(rows, list(dict.fromkeys(name for row in rows for name in row.setting)))


def test_what_most_have_stands_first() -> None:
    lines = [line(method=method, length=20) for method in ("ours", "narrower", "paper")]
    assert told(*lines, line(method="slimming", length=16)) == {"length": "20, but 16 (slimming)"}


def test_where_none_is_usual_all_are_named() -> None:
    assert told(line(method="ours", lr=0.1), line(method="paper", lr=0.05)) == {"lr": "0.1 (ours), 0.05 (paper)"}


def test_of_those_without_it_nothing_is_said() -> None:
    found = told(line(method="ours", reach=0.25), line(method="b", reach=0.25), line(method="dense", reach=None))
    assert found == {"reach": "0.25 (ours, b)"}


def test_a_measured_line_of_the_paper_does_not_have_what_others_have() -> None:
    lines = [line(method="ours", lr=0.1), line(method="narrower", lr=0.1)]
    assert told(*lines, line("table", method="paper")) == {"lr": "0.1 (ours, narrower)"}
    assert told(*lines, line("table", runs=0, method="paper")) == {"lr": "0.1"}


def test_only_the_words_that_are_needed_are_named() -> None:
    lines = [
        line(network=network, method=method, length=length)
        for network in ("a", "b")
        for method, length in (("ours", 5), ("slimming", 3))
    ]
    assert told(*lines) == {"length": "5 (ours), 3 (slimming)"}


def test_what_does_not_follow_stays_a_column() -> None:
    assert told(line(method="ours", params=1), line(method="ours", params=2)) == {}


def test_what_the_paper_tells_stays_a_column() -> None:
    assert told(line("figure", method="paper", strength=0.1), line(method="ours", strength=0.2)) == {}


def test_long_remarks_stay_columns() -> None:
    lines = [line(method=f"method {number}", length=number) for number in range(LONGEST)]
    assert told(*lines) == {}
