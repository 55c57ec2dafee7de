"""The README's section of results, made from the records on disk.

`python -m headgate_lab.report.readme` rewrites the section in place. First come networks of the same size, from the
runs of an experiment, whose records are of their own kind: docs/results.md has all of those. Then comes one row for
every other record, a JSON file anywhere under `results/`, see `Record`. Nobody types a result into the README: a test
compares the section with the records.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate_lab.engine import record as of_runs
from headgate_lab.engine.record import RECORD
from headgate_lab.files import write_whole
from headgate_lab.report.by_size import by_size
from headgate_lab.report.runs import ReportError, records_of
from headgate_lab.report.table import markdown, without_empty_columns

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
NOTHING_YET = "Nothing is recorded yet."
# The experiment whose methods meet at sizes, and the words above its table.
SIZES = "cifar"
ABOVE = (
    "Test accuracy in percent of networks of at most so many parameters or multiply-accumulates (MACs): as the paper "
    "prints it, ours by a budget, and the controls, by the same recipe: the widths that ours found with fresh weights, "
    "the same architecture made uniformly narrower to that size, and the dense network; means over seeds ± their "
    "standard deviation, or one seed. Where ours and the narrower network are equal, pruning has gained nothing; where "
    "ours and the found widths are, what it has gained is the widths. The size that the paper's way ends in is told, "
    "and its accuracy is that with gates, which the paper prints and compaction keeps; where a + stands, for one more "
    "channel a gate than is counted. How each was run, and every other number: [docs/results.md](docs/results.md)."
)
BETWEEN = "What single benchmarks and checks say:"
# What JSON may hold under each key of a record.
KINDS: dict[str, tuple[type, ...]] = {
    "recipe": (str,),
    "config": (dict,),
    "seed": (int,),
    "metrics": (dict,),
    "environment": (dict,),
    "duration_s": (int, float),
    "headline": (str,),
}
ENVIRONMENT_KEYS = frozenset({"torch", "device", "commit"})


class RecordError(ValueError):
    """A record or the README is not as it should be; the message names the file."""


@dataclass(frozen=True)
class Record:
    """One run as it was recorded.

    Attributes:
        recipe: name of the experiment.
        config: its complete settings.
        seed: of this run.
        metrics: what was measured, by name.
        environment: at least `torch`, `device` and `commit`.
        duration_s: wall-clock seconds.
        headline: what the run shows, in one plain sentence. Runs that differ only in their seed share it.
    """

    recipe: str
    config: dict[str, Any]
    seed: int
    metrics: dict[str, Any]
    environment: dict[str, str]
    duration_s: float
    headline: str


def load_records(folder: Path) -> tuple[Record, ...]:
    """All records under `folder` but those of experiments' runs, by path; none if the folder does not exist."""
    return tuple(_load(path) for path in sorted(folder.rglob("*.json")) if path.name != RECORD)


def section(folder: Path) -> str:
    """The text between the markers, from what lies under `folder`.

    Raises:
        RecordError, ReportError: a record cannot be used.
    """
    rows = headlines(load_records(folder))
    runs = records_of(folder, SIZES)
    if not runs:
        return rows
    return "\n\n".join((ABOVE, markdown(without_empty_columns(by_size(SIZES, runs))), BETWEEN, rows))


def headlines(records: Sequence[Record]) -> str:
    """One row per recipe, headline and device, with the seeds behind it."""
    if not records:
        return NOTHING_YET
    seeds: dict[tuple[str, str, str], set[int]] = {}
    for record in records:
        row = (record.recipe, record.headline, record.environment["device"])
        seeds.setdefault(row, set()).add(record.seed)
    lines = ["| recipe | headline | seeds | device |", "|---|---|---|---|"]
    for (recipe, headline, device), behind in sorted(seeds.items()):
        cells = (recipe, headline, ", ".join(map(str, sorted(behind))), device)
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(lines)


def with_section(readme: str, text: str) -> str:
    """The README with `text` between its markers."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or readme.index(BEGIN) > readme.index(END):
        raise RecordError(f"the README must hold {BEGIN} and, after it, {END}, each once")
    before, _, rest = readme.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrites the section; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m headgate_lab.report.readme", description=main.__doc__)
    parser.add_argument("--readme", type=Path, default=Path("README.md"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    options = parser.parse_args(arguments)
    try:
        old = options.readme.read_text(encoding="utf-8")
        new = with_section(old, section(options.results))
        if new != old:
            write_whole(options.readme, new.encode("utf-8"))
    except (OSError, RecordError, of_runs.RecordError, ReportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.readme}: {'unchanged' if new == old else 'rewritten'}")
    return 0


def _load(path: Path) -> Record:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecordError(f"{path} is not JSON: {error}") from error
    wanted = set(KINDS)
    given = set(content) if isinstance(content, dict) else set()
    if given != wanted:
        raise RecordError(f"{path}: missing keys {sorted(wanted - given)}, unknown keys {sorted(given - wanted)}")
    for key, kinds in KINDS.items():
        if type(content[key]) not in kinds:
            names = " or ".join(kind.__name__ for kind in kinds)
            raise RecordError(f"{path}: {key} is {content[key]!r}, but must be of type {names}")
    environment = content["environment"]
    if missing := ENVIRONMENT_KEYS - set(environment):
        raise RecordError(f"{path}: environment lacks {sorted(missing)}")
    if not all(isinstance(value, str) for value in environment.values()):
        raise RecordError(f"{path}: environment holds something that is no text: {environment!r}")
    return Record(**content)


def _cell(text: str) -> str:
    """Text that cannot break out of its cell."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
