"""docs/results.md is what the records say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headgate_lab.paper import PAPER
from headgate_lab.report.page import MOST_LINES, main, page, read_all
from tests.lab.report.synthetic import write, write_dimension, write_lenet

ROOT = Path(__file__).parents[3]


def test_the_page_in_the_docs_is_the_records() -> None:
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert text == page(read_all(ROOT / "results")), "run `make results`"
    for name in re.findall(r"\]\((figures/\w+\.png)\)", text):
        assert (ROOT / "docs" / name).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    text = page(read_all(tmp_path))
    assert f"There is no record of {', '.join(PAPER)}." in text
    assert "| lenet | Appendix E.1, tab:mnist_dam_lenet | 0 of 90 | 0 |" in text
    assert "![" not in text


def test_tables_figures_and_where_they_come_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lenet(tmp_path / "results")
    order = {"network": "preresnet164", "dataset": "cifar10", "method": "paper", "strength": 0.4, "order": "random"}
    write(tmp_path / "results", "preresnets", order, 0, {"accuracy": 94.0})
    arguments = ["--results", str(tmp_path / "results"), "--page", str(tmp_path / "results.md")]
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'results.md'}: 2 tables, 1 figures\n"
    text = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert text == page(read_all(tmp_path / "results"))
    assert "| [lenet](#lenet) | Appendix E.1, tab:mnist_dam_lenet | 6 of 90 | 10 |" in text
    assert "10 runs of 2 seeds; device two cores; torch 2.13.0; commit 0123456789." in text
    assert "Missing: 84 of the paper's 90 rows have no run yet." in text
    assert "Missing: 16 of the paper's 18 rows have no run yet." in text
    assert re.findall(r"!\[.*\]\((.*)\)", text) == ["figures/lenet.png"]
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["lenet.png"]
    assert "\n## permutation\n" in text and "lenet" not in text.partition("## Not measured yet")[2]


@pytest.mark.parametrize(("count", "is_folded"), [(MOST_LINES, False), (MOST_LINES + 1, True)])
def test_long_tables_are_folded_and_whole(count: int, is_folded: bool, tmp_path: Path) -> None:
    for number in range(count):
        write(tmp_path, "budget", {"network": f"net{number}"}, 0, {"accuracy": float(number)})
    text = page(read_all(tmp_path))
    assert (f"<summary>All {count} lines</summary>\n\n| network |" in text) == is_folded
    assert all(f"| net{number} | {number} | 1 |" in text for number in range(count))


def test_numbers_of_others_are_called_so(tmp_path: Path) -> None:
    config = {"network": "vgg19", "dataset": "cifar100", "method": "ours", "against": "DepGraph", "macs": 0.112}
    write(tmp_path, "beyond", config, 0, {"accuracy": 71.0, "pruned": 95.0, "macs": 44e6})
    text = page(read_all(tmp_path))
    assert "Missing: 8 of the others' 10 rows have no run yet." in text
    assert "accuracy, others | accuracy, ours" in text and "| 70.39 | 71.00 |" in text


def test_an_error_is_one_line_and_leaves_the_page_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_dimension(tmp_path / "results")
    again = {"problem": "linear", "factors": 5, "settings": "paper", "strength": 9}
    write(tmp_path / "results", "dimension", again, 0, {"dimension": 5})
    (tmp_path / "results.md").write_text("as it was")
    arguments = ["--results", str(tmp_path / "results"), "--page", str(tmp_path / "results.md")]
    assert main(arguments) == 1
    complaint = capsys.readouterr().err
    assert complaint.startswith("error: dimension: the paper's row") and complaint.count("\n") == 1
    assert (tmp_path / "results.md").read_text() == "as it was"
    assert not (tmp_path / "figures").exists()
