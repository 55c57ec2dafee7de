"""Tables read well: a line a setting, numbers written as the paper writes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headgate_lab.engine.record import read_runs
from headgate_lab.paper.number import alike, parse
from headgate_lab.report.rows import rows
from headgate_lab.report.table import Sheet, markdown, sheet, title
from tests.lab.report.synthetic import write, write_dimension, write_lenet, write_sensitivity


def laid(out: Path, experiment: str) -> Sheet:
    return sheet(rows(experiment, read_runs(out, experiment)))


@pytest.mark.parametrize(
    ("text", "value"), [("60.0k", 60_000.0), ("1,627k", 1_627_000.0), ("94.11%", 94.11), ("0.00", 0.0), ("83", 83.0)]
)
def test_a_printed_number_is_read(text: str, value: float) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("value", "like", "written"),
    [
        (61_706.0, "60.0k", "61.7k"),
        (263_600.0, "264k", "263.6k"),
        (-1e-14, "0.00", "0.00"),
        (5.2, "5", "5.2"),
        (5.0, "5", "5"),
        (4.9999, "5", "5.0"),
        (94.2, "94.11%", "94.20%"),
        (61_706.0, None, "61706"),
        (0.000123456, None, "0.0001235"),
    ],
)
def test_ours_is_written_like_the_papers(value: float, like: str | None, written: str) -> None:
    assert alike(value, like) == written


def test_a_setting_is_a_line_and_what_all_share_is_a_remark(tmp_path: Path) -> None:
    write_lenet(tmp_path)
    found = laid(tmp_path, "lenet")
    assert found.common == "network lenet5"
    assert found.following == "Besides, where there are runs: width 0.25 (narrower)"
    assert found.head == (
        "activation", "gradient noise", "method", "strength", "params, paper", "params, ours",
        "pruned, paper", "pruned, ours", "accuracy, paper", "accuracy, ours", "runs",
    )  # fmt: skip
    assert found.settings == 4
    assert len(found.lines) == 30 + 3
    assert found.lines[4] == (
        "tanh", "0", "paper", "0.1", "3.9k", "4.0k ± 0.1k", "93.59", "93.52 ± 0.00", "97.49", "98.50 ± 0.71", "2",
    )  # fmt: skip
    assert found.lines[-1] == (
        "tanh", "0", "narrower", "", "–", "4.1k ± 0.0k", "–", "93.40 ± 0.00", "–", "97.00 ± 0.00", "2",
    )  # fmt: skip


def test_where_the_paper_prints_no_number_there_is_no_column_for_it(tmp_path: Path) -> None:
    write_sensitivity(tmp_path)
    found = laid(tmp_path, "sensitivity")
    assert found.head == ("problem", "map", "statistic", "dimension", "loss", "runs")
    assert found.lines[:2] == (
        ("linear", "strength", "least", "5", "0", "1"),
        ("linear", "strength", "median", "5", "0.001", "1"),
    )


def test_the_papers_spread_is_shown() -> None:
    found = sheet(rows("recommender", []))
    assert found.lines[-1][2:4] == ("19.0166 ± 0.0444", "–")


def test_a_spread_that_is_only_ours_has_two_digits() -> None:
    one = rows("recommender", [])[0]
    spreads = {0.4407: "68.1 ± 0.44", 0.0: "68.1 ± 0", 0.00123: "68.1 ± 0.0012", 1234.5: "68.1 ± 1234"}
    for sd, told in spreads.items():
        laid_out = sheet([replace(one, metric="rmse_last", text=None, paper=None, paper_sd=None, ours=68.1, sd=sd)])
        assert laid_out.lines[0][-2] == told


def test_markdown_cannot_break_out_of_a_cell(tmp_path: Path) -> None:
    write_dimension(tmp_path)
    write(tmp_path, "dimension", {"problem": "a|b", "factors": 5, "settings": "odd"}, 0, {"dimension": 5})
    lines = markdown(sheet(rows("dimension", read_runs(tmp_path, "dimension")))).splitlines()
    assert lines[:5] == [
        "Besides, where there are runs: strength 0.01 (ours).",
        "",
        "| problem | factors | settings | dimension, paper | dimension, ours | runs |",
        "| --- | --- | --- | ---: | ---: | ---: |",
        "| linear | 5 | paper | 5 | 5.5 ± 0.7 | 2 |",
    ]
    assert "| a\\|b | 5 | odd | – | 5 | 1 |" in lines


def test_the_title_tells_the_place() -> None:
    assert title("cka", rows("cka", [])) == (
        "How alike the features of a pruned layer are (Appendix E.3, tab:cka); network preresnet164"
    )
