"""The README's section of results, made from the records on disk.

`python -m headgate_lab.report.readme` rewrites the section in place. A record is one JSON file anywhere under
`results/`, see `Record`; the runs of experiments have records of their own kind, which docs/results.md is made of.
Nobody types a result into the README: a test compares the section with the records.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate_lab.engine.record import RECORD
from headgate_lab.files import write_whole

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
NOTHING_YET = "Nothing is recorded yet."
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


def section(records: Sequence[Record]) -> str:
    """The text between the markers: one row per recipe, headline and device, with the seeds behind it."""
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
        records = load_records(options.results)
        old = options.readme.read_text(encoding="utf-8")
        new = with_section(old, section(records))
        if new != old:
            write_whole(options.readme, new.encode("utf-8"))
    except (OSError, RecordError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.readme}: {len(records)} records, {'unchanged' if new == old else 'rewritten'}")
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
