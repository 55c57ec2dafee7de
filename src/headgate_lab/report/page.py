"""The page of results, docs/results.md, made from the records of experiments.

`python -m headgate_lab.report.page` rewrites the page and its figures; a test compares the page with the records.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from headgate_lab.engine.record import RecordError
from headgate_lab.files import write_whole
from headgate_lab.paper import PAPER
from headgate_lab.report.by_size import BY_SIZE, by_size
from headgate_lab.report.figures import FIGURES, picture
from headgate_lab.report.rows import Row, rows
from headgate_lab.report.runs import Record, ReportError, provenance, records_of
from headgate_lab.report.table import Sheet, markdown, sheet

HEAD = """# Results

Made by `make results` from the records under `results/`; do not edit. Each table sets what the paper prints (DAM,
NeurIPS 2021) beside our runs: the mean over seeds ± the sample's standard deviation, – where nothing was measured or
nothing is printed. Below the paper's lines stand our own variants and controls. curves, stability, permutation, cka
and architecture share their runs. `headgate table ID --json` gives the same numbers to programs.
"""

# Tables with more lines are folded.
MOST_LINES = 24

Records = Mapping[str, Sequence[Record]]


def read_all(results: Path) -> dict[str, list[Record]]:
    """The records of every experiment the paper has, by id; those that experiments share, under each of them."""
    return {experiment: records_of(results, experiment) for experiment in PAPER}


def page(records: Records) -> str:
    """The whole page as Markdown. Figures are named where the page expects them: `figures/ID.png`."""
    tables = {experiment: rows(experiment, records[experiment]) for experiment in PAPER}
    lines = [
        HEAD,
        "| experiment | in the paper | numbers or settings of the paper measured | runs |",
        "|---|---|---:|---:|",
    ]
    for experiment, part in PAPER.items():
        there = records[experiment]
        name = f"[{experiment}](#{experiment})" if there else experiment
        lines.append(f"| {name} | {part.place} | {_measured(tables[experiment])} | {len(there)} |")
    for experiment in PAPER:
        if records[experiment]:
            lines += _section(experiment, records[experiment], tables[experiment])
    if missing := [experiment for experiment in PAPER if not records[experiment]]:
        lines += ["", "## Not measured yet", "", f"There is no record of {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def _section(experiment: str, records: Sequence[Record], table: Sequence[Row]) -> list[str]:
    part = PAPER[experiment]
    lines = ["", f"## {experiment}", "", f"{part.title} ({part.place}). {provenance(records)}.", ""]
    if lacking := sum(row.n == 0 for row in table):
        whose = f"{part.printed_by}'" if part.printed_by.endswith("s") else f"{part.printed_by}'s"
        lines += [f"Missing: {lacking} of the {whose} {len(_of_the_paper(table))} rows have no run yet.", ""]
    if experiment in BY_SIZE:
        lines += [
            "Test accuracy (%) of networks of the same size (+: kept by one more channel a gate than is counted):",
            "",
        ]
        lines += [markdown(by_size(experiment, records)), ""]
    if experiment in FIGURES:
        lines += [f"![{part.title}](figures/{experiment}.png)", ""]
    return lines + _folded(sheet(table))


def _folded(laid: Sheet) -> list[str]:
    """The table; one that fills the screen is shown when it is asked for."""
    if len(laid.lines) <= MOST_LINES:
        return [markdown(laid)]
    return [f"<details><summary>All {len(laid.lines)} lines</summary>", "", markdown(laid), "", "</details>"]


def _measured(table: Sequence[Row]) -> str:
    there = _of_the_paper(table)
    return f"{sum(row.n > 0 for row in there)} of {len(there)}" if there else "none printed"


def _of_the_paper(table: Sequence[Row]) -> list[Row]:
    return [row for row in table if row.place is not None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrites docs/results.md and the figures beside it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m headgate_lab.report.page", description=main.__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--page", type=Path, default=Path("docs/results.md"))
    options = parser.parse_args(arguments)
    try:
        records = read_all(options.results)
        text = page(records)
        pictures = {name: picture(name, found) for name, found in records.items() if found and name in FIGURES}
        for name, image in pictures.items():
            folder = options.page.parent / "figures"
            folder.mkdir(exist_ok=True)
            write_whole(folder / f"{name}.png", image)
        write_whole(options.page, text.encode())
    except (OSError, RecordError, ReportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.page}: {sum(map(bool, records.values()))} tables, {len(pictures)} figures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
