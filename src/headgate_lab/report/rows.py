"""The rows of a table: every number of the paper beside ours, then our own variants and controls."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headgate_lab.paper import PAPER, Number
from headgate_lab.report.runs import Record, ReportError, Runs, by_recipe, differing

# What is reported of a metric that is a map, such as a matrix over two settings.
OF_A_MAP: dict[str, Callable[[Sequence[float]], float]] = {"least": min, "median": statistics.median, "most": max}


@dataclass(frozen=True)
class Row:
    """One number: the paper's and ours. `sd` is the sample's; `text` is the paper's number as printed."""

    id: str
    setting: Mapping[str, Any]
    metric: str
    statistic: str
    place: str | None
    paper: float | None
    paper_sd: float | None
    ours: float | None
    sd: float | None
    n: int
    text: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The row as JSON knows it; whether the paper prints `60.0k` or `60000` is left out."""
        return {name: value for name, value in vars(self).items() if name != "text"}


def rows(experiment: str, records: Sequence[Record]) -> list[Row]:
    """All rows of an experiment, the paper's numbers first; where it prints none, by setting.

    Raises:
        ReportError: a number of the paper fits several recipes, or a metric is not what its row needs.
    """
    groups, numbers, beside = by_recipe(records), PAPER[experiment].numbers, PAPER[experiment].ours
    printed = [_printed(experiment, number, groups) for number in numbers]
    pinned = _pinned(numbers, groups)
    found = list(printed)
    for group in groups:
        found += _own(experiment, group, pinned, numbers, beside)
    return found if any(row.text for row in found) else _in_order(found, pinned)


def _printed(experiment: str, number: Number, groups: Sequence[Runs]) -> Row:
    fitting = [group for group in groups if group.fits(number.setting)]
    if len(fitting) > 1:
        raise ReportError(_several(experiment, number.setting, fitting))
    values = _values(fitting[0], number) if fitting else []
    ours, sd = _measured(values, number.statistic)
    return Row(
        experiment, number.setting, number.metric, number.statistic, number.place, number.value, number.sd,
        ours, sd, len(values), number.text,
    )  # fmt: skip


def _own(
    experiment: str, group: Runs, pinned: Sequence[str], numbers: Sequence[Number], beside: Sequence[str]
) -> Iterator[Row]:
    """What the paper does not print: `beside` of every recipe, and of a recipe that it does not have, all it has.

    That is the same metrics as the paper's, or every number there is if it prints none and nothing is asked for.
    """
    known = next((number.setting for number in numbers if group.fits(number.setting)), None)
    wanted: dict[tuple[str, str], None] = {}
    if known is None:
        wanted = dict.fromkeys((number.metric, number.statistic) for number in numbers)
        wanted = wanted or dict.fromkeys((metric, "mean") for metric in beside or _numbers(group))
    names = pinned if known is None else [name for name in known if name != "seed"]
    setting = {name: group.config[name] for name in names if name in group.config}
    for metric, statistic in wanted | dict.fromkeys((metric, "mean") for metric in beside):
        values = _values(group, Number(metric, {}, "", statistic=statistic))
        if values:
            ours, sd = _measured(values, statistic)
            yield Row(experiment, setting, metric, statistic, None, None, None, ours, sd, len(values))


def _numbers(group: Runs) -> list[str]:
    """The final metrics of which every run has a number."""
    ends = [record["metrics"]["final"] for record in group.records]
    return [name for name in ends[0] if all(isinstance(end.get(name), int | float) for end in ends)]


def _pinned(numbers: Sequence[Number], groups: Sequence[Runs]) -> list[str]:
    """The fields that tell recipes apart: those of the paper's settings and those in which recipes differ."""
    names = dict.fromkeys(name for number in numbers for name in number.setting if name != "seed")
    return list(names | dict.fromkeys(differing(groups)))


def _in_order(found: list[Row], pinned: Sequence[str]) -> list[Row]:
    """Rows by setting: numbers by size, words as they first come. For figures, whose order the paper does not print."""
    words = list(dict.fromkeys(str(row.setting.get(name)) for row in found for name in pinned))

    def rank(row: Row) -> list[tuple[int, float]]:
        values = [row.setting.get(name) for name in pinned]
        return [(0, v) if isinstance(v, int | float) else (1, words.index(str(v))) for v in values]

    return sorted(found, key=rank)


def _several(experiment: str, setting: Mapping[str, Any], fitting: Sequence[Runs]) -> str:
    fields = differing(fitting)
    told = [", ".join(_field(group, name) for name in fields) or group.recipe for group in fitting]
    wanted = ", ".join(f"{name}={value}" for name, value in setting.items())
    return (
        f"{experiment}: the paper's row ({wanted}) fits {len(fitting)} recipes: {'; '.join(told)}. "
        "Let the row name what sets them apart"
    )


def _field(group: Runs, name: str) -> str:
    return f"{name}={group.config[name]}" if name in group.config else f"no {name}"


def _values(group: Runs, number: Number) -> list[float]:
    """One value a run."""
    of_a_map = OF_A_MAP.get(number.statistic)
    found = []
    for value in group.final(number.metric, number.setting.get("seed")):
        if isinstance(value, Sequence) != (of_a_map is not None) or isinstance(value, str):
            wanted = "a map" if of_a_map else "a number"
            raise ReportError(f"the final {number.metric} of {group.setting} must be {wanted}, not {str(value)[:40]}")
        if of_a_map is None:
            found.append(float(value))
        elif cells := list(_cells(value)):
            found.append(float(of_a_map(cells)))
    return found


def _cells(value: Any) -> Iterator[float]:
    """The numbers in nested lists; a cell without one is passed over."""
    if isinstance(value, Sequence):
        for part in value:
            yield from _cells(part)
    elif value is not None:
        yield float(value)


def _measured(values: Sequence[float], statistic: str) -> tuple[float | None, float | None]:
    """What the runs say, and their sample standard deviation, which one run does not have."""
    if not values:
        return None, None
    mean, spread = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
    if statistic == "relative sd":
        return (None if spread is None or mean == 0 else spread / abs(mean)), None
    return mean, spread
