"""The tables of the zoos, docs/zoo.md, made from the records that benchmarks/zoo.py writes.

`python -m headgate_lab.report.zoo` rewrites the page; a test compares it with the records.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headgate_lab.files import write_whole

HEAD = """# The zoos

Made by `make zoo` from `results/zoo*.json`; do not edit. Every model was gated by `insert_gates_` in a random order,
its gates were set to random offsets, and the compacted model was compared with the gated one in float64. *Prunable* is
the share of parameters that belong to at least one channel that may go, *left* what the random offsets left of all
parameters, *difference* the largest deviation relative to the largest output.
"""

RECORDS = tuple(Path("results") / name for name in ("zoo.json", "zoo-transformers.json", "zoo-timm.json"))


def page(records: Sequence[dict[str, Any]]) -> str:
    """The whole page as Markdown: one table for each record."""
    return "\n".join([HEAD, *("\n".join(_section(record)) for record in records)])


def _section(record: dict[str, Any]) -> list[str]:
    rows, library = record["metrics"]["models"], record["recipe"].rpartition("/")[2]
    whole = {"torch": record["environment"]["torch"], library: record["config"][library]}
    made = dict.fromkeys(f"torch {one['torch']}, {library} {one[library]}" for one in (whole | row for row in rows))
    sizes = record["config"].get("sizes")
    return [
        f"## {library}",
        "",
        *([f"Here: {sizes}.", ""] if sizes else []),
        f"Result: {record['headline']} ({'; '.join(made)}).",
        "",
        "| model | parameters | gates | prunable | left | outcome | what stays, and why |",
        "|---|---|---|---|---|---|---|",
        *(_row(row) for row in rows),
        "",
    ]


def _row(row: dict[str, Any]) -> str:
    exact = row["outcome"] == "exact"
    outcome = f"exact ({row['difference']:.0e})" if exact else row["outcome"]
    why = row.get("why") or "; ".join(_surprising(row.get("refused", [])))
    cells = (
        f"{row['model']} ({row['tried']})" if "tried" in row else row["model"],
        _count(row["parameters"]) if "parameters" in row else "",
        str(row.get("gates", "")),
        f"{row['prunable']:.1%}" if "prunable" in row else "",
        f"{row['left']:.1%}" if "left" in row else "",
        outcome,
        why.replace("|", "\\|"),
    )
    return "| " + " | ".join(cells) + " |"


def _count(parameters: int) -> str:
    return f"{parameters / 1e6:.1f} M" if parameters >= 1e5 else f"{parameters / 1e3:.1f} k"


def _surprising(reasons: list[str]) -> list[str]:
    """All but the two that every network has: its inputs and its outputs stay."""
    usual = ("output: the model returns it", "conv2d: reads channels that cannot be removed")
    return [reason for reason in reasons if reason not in usual]


def main() -> None:
    """Rewrites docs/zoo.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, nargs="*", default=RECORDS)
    parser.add_argument("--page", type=Path, default=Path("docs/zoo.md"))
    args = parser.parse_args()
    write_whole(args.page, page([json.loads(path.read_text()) for path in args.records]).encode())


if __name__ == "__main__":
    main()
