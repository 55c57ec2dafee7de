"""Records of one experiment: found, and brought together by recipe: runs that differ in their seed only."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate_lab.engine.record import read_runs
from headgate_lab.paper.preresnets import FOLDER, SHOWN
from headgate_lab.report.minutes import minutes

Record = Mapping[str, Any]


class ReportError(Exception):
    """Records that no table or figure can be made of; the message is one line and names them."""


@dataclass(frozen=True)
class Runs:
    """The runs of one recipe, in the order of their seeds."""

    recipe: str
    setting: str
    config: Mapping[str, Any]
    records: tuple[Record, ...]

    def fits(self, wanted: Mapping[str, Any]) -> bool:
        """Whether the recipe is one that `wanted` speaks of. A seed in it picks runs, not recipes."""
        return fits(self.config, {name: value for name, value in wanted.items() if name != "seed"})

    def final(self, metric: str, seed: int | None = None) -> list[Any]:
        """What the runs, or the one of a seed, ended with, without those that have nothing to say.

        The minutes of a kind of stage are known of every run.
        """
        runs = (record for record in self.records if seed in (None, record["seed"]))
        values = ((minutes(record) | record["metrics"]["final"]).get(metric) for record in runs)
        return [value for value in values if value is not None]

    def finals(self, one: str, other: str) -> tuple[list[Any], list[Any]]:
        """What the runs ended with in two metrics, for the runs that have both."""
        ends = [record["metrics"]["final"] for record in self.records]
        both = [end for end in ends if end.get(one) is not None and end.get(other) is not None]
        return [end[one] for end in both], [end[other] for end in both]

    def curves(self, metric: str) -> list[list[Any]]:
        """A metric of every epoch, by run, for the runs that have it.

        Raises:
            ReportError: runs of this recipe have unequally many epochs.
        """
        columns = (record["metrics"]["epochs"].get(metric) for record in self.records)
        found = [column for column in columns if column]
        if len({len(column) for column in found}) > 1:
            raise ReportError(f"{self.setting}: its records tell {metric} of unequally many epochs")
        return found


def same(one: object, other: object) -> bool:
    """Equality, except that true is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def fits(config: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a config has these fields."""
    return all(name in config and same(config[name], value) for name, value in wanted.items())


def records_of(out: Path, experiment: str) -> list[Record]:
    """The records below `out` that an experiment's tables and figures are made of; some experiments share theirs.

    Raises:
        RecordError: a record is damaged.
    """
    if experiment not in SHOWN:
        return list(read_runs(out, experiment))
    return [
        record for record in read_runs(out, FOLDER) if any(fits(record["config"], one) for one in SHOWN[experiment])
    ]


def by_recipe(records: Sequence[Record]) -> list[Runs]:
    """Runs of equal recipes together, in the order of their first fields.

    Raises:
        ReportError: a run is there twice.
    """
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        key = (record["recipe"], json.dumps(record["config"], sort_keys=True))
        found.setdefault(key, []).append(record)
    runs = []
    for (recipe, _), alike in found.items():
        first = alike[0]
        if twice := [seed for seed, count in Counter(record["seed"] for record in alike).items() if count > 1]:
            raise ReportError(f"{first['experiment']} ({first['setting']}) has more than one record of seed {twice[0]}")
        ordered = tuple(sorted(alike, key=lambda record: int(record["seed"])))
        runs.append(Runs(recipe, first["setting"], first["config"], ordered))
    return sorted(runs, key=lambda group: ([_rank(value) for value in group.config.values()], group.recipe))


def as_shown(experiment: str, groups: Sequence[Runs]) -> list[Runs]:
    """In the order in which the paper shows its networks, ours behind them, where that is known."""
    order = SHOWN.get(experiment, ())
    return sorted(
        groups, key=lambda group: next((place for place, one in enumerate(order) if group.fits(one)), len(order))
    )


def differing(groups: Sequence[Runs]) -> list[str]:
    """The fields of the configs in which recipes differ, in the configs' order."""
    names = dict.fromkeys(name for group in groups for name in group.config)
    first = groups[0].config if groups else {}
    nothing = object()  # unlike any value, also None
    return [
        name for name in names if any(group.config.get(name, nothing) != first.get(name, nothing) for group in groups)
    ]


def provenance(records: Sequence[Record]) -> str:
    """Where records come from, in one line: how many runs, seeds and epochs, devices, versions of torch, commits.

    And the precision, where a run was asked for one, and how many ended in dead networks.
    """
    seeds = len({record["seed"] for record in records})
    parts = [f"{len(records)} run{'s' * (len(records) != 1)} of {seeds} seed{'s' * (seeds != 1)}"]
    if epochs := {_epochs(record) for record in records} - {0}:
        parts[0] += f" for {' or '.join(map(str, sorted(epochs)))} epochs"
    if dead := sum(died(record) for record in records):
        parts.append(f"{dead} ended dead, which have an accuracy and no size")
    for name, short in (("device", None), ("torch", None), ("commit", 10)):
        known = dict.fromkeys(str(record["environment"].get(name, "unknown"))[:short] for record in records)
        what = f"{name}s" if name == "commit" and len(known) > 1 else name
        parts.append(f"{what} {', '.join(sorted(known))}")
    asked = Counter(record["environment"].get("precision") for record in records)
    for name in sorted(asked.keys() - {None}):
        times = "" if asked[name] == len(records) else f" (of {asked[name]} run{'s' * (asked[name] != 1)})"
        parts.append(f"precision {name}{times}")
    return "; ".join(parts)


def died(record: Record) -> bool:
    """Whether the network answers the same whatever it is asked, or has diverged: it has an accuracy and no size."""
    return bool(record["metrics"]["final"].get("dead"))


def _epochs(record: Record) -> int:
    """How many a network learned for, all stages together; 0 where what is recorded are pieces of steps, or nothing."""
    if "steps" in record["config"]:
        return 0
    return max(map(len, record["metrics"].get("epochs", {}).values()), default=0)


def _rank(value: Any) -> tuple[int, float, str]:
    """Numbers by size, then everything else by its text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (0, float(value), "")
    return (1, 0.0, json.dumps(value))
