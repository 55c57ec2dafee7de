"""The zoo's page is made from its record, and the record from runs."""

from __future__ import annotations

import json
from pathlib import Path

from headgate_lab.records import write_record
from headgate_lab.report.zoo import RECORDS, page

ROOT = Path(__file__).parents[2]

EXACT = {
    "model": "tiny", "parameters": 1_250_000, "gates": 3, "prunable": 0.5, "left": 0.25, "outcome": "exact",
    "difference": 2e-16, "refused": ["output: the model returns it", "softmax: mixes channels along this axis"],
}  # fmt: skip
PARTLY = EXACT | {"model": "deep", "tried": "4 of 32 layers", "torch": "9.9", "torchvision": "8.8"}
REFUSED = {"model": "odd", "outcome": "refused", "why": "insert_gates_: cannot be traced | at all"}


def record(tmp_path: Path, *rows: dict) -> dict:
    write_record(
        tmp_path / "deep" / "zoo.json",
        recipe="zoo/torchvision",
        config={"torchvision": "1.2.3"},
        metrics={"models": [*rows] or [EXACT, PARTLY, REFUSED]},
        headline="of 2 models 1 compacts",
        duration_s=1.26,
        commit="abc",
    )
    return json.loads((tmp_path / "deep" / "zoo.json").read_text())


def test_a_record_says_what_ran_where(tmp_path: Path):
    written = record(tmp_path)
    assert written["environment"]["commit"] == "abc" and "CPU" in written["environment"]["device"]
    assert written["duration_s"] == 1.3 and written["seed"] == 0


def test_each_model_is_a_row(tmp_path: Path):
    small = record(tmp_path) | {"recipe": "zoo/others", "config": {"others": "3.4", "sizes": "two layers each"}}
    lines = page([record(tmp_path), small]).splitlines()
    assert lines.index("## torchvision") < lines.index("## others") < lines.index("Here: two layers each.")
    assert "| tiny | 1.2 M | 3 | 50.0% | 25.0% | exact (2e-16) | softmax: mixes channels along this axis |" in lines
    assert "| odd |  |  |  |  | refused | insert_gates_: cannot be traced \\| at all |" in lines
    assert any(line.startswith("| deep (4 of 32 layers) | 1.2 M |") for line in lines)
    first, second = (line for line in lines if line.startswith("Result: of 2 models 1 compacts (torch "))
    assert first.endswith("torchvision 1.2.3; torch 9.9, torchvision 8.8).")
    assert second.endswith("others 3.4; torch 9.9, others 3.4).")
    assert "| tiny | 1.2 k |" in page([record(tmp_path, EXACT | {"parameters": 1_234})])


def test_the_page_in_the_docs_is_made_of_the_records():
    records = [json.loads((ROOT / path).read_text()) for path in RECORDS]
    assert (ROOT / "docs" / "zoo.md").read_text() == page(records)
