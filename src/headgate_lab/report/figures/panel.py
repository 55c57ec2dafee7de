"""One metric against another, a line a method, the paper's numbers dashed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress, cycle
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from headgate_lab.report.figures.colors import colors
from headgate_lab.report.figures.drawing import PRINTED, STYLES, Pair, by_fields, percent, plain, points, printed
from headgate_lab.report.runs import Runs

LABELS = {
    "accuracy": "test accuracy (%)",
    "params": "parameters",
    "macs": "multiply-accumulates",
    "pruned": "parameters pruned (%)",
    "pruned_channels": "channels pruned (%)",
}
SIZES = ("params", "macs")

Key = tuple[Any, ...]


class Panel(NamedTuple):
    """Recipes to draw, what lies across, and the fields of the paper's settings that belong here."""

    title: str
    groups: Sequence[Runs]
    x: str
    setting: dict[str, Any]


class Line(NamedTuple):
    """Points to join: the values of the series' fields, the label, how it is drawn."""

    key: Key
    label: str
    style: str
    pairs: list[Pair]


def lines(
    panel: Panel, experiment: str, y: str, series: Sequence[str], ours: Mapping[str, str] | None = None
) -> list[Line]:
    """What a panel has to show: our lines and, for each that the paper prints, the paper's; none without points.

    `ours` names the metrics of our records that are called otherwise.
    """
    found = []
    for key, alike in by_series(panel, experiment, series).items():
        label = name(series, key)
        for style, (kind, same) in zip(cycle(STYLES), _kinds(alike, panel.x).items(), strict=False):
            pairs = [_pair(group, panel.x, (ours or {}).get(y, y)) for group in same]
            found.append(Line(key, ", ".join(filter(None, (label, kind))), style, pairs))
        theirs = _printed_pairs(experiment, {**panel.setting, **dict(zip(series, key, strict=True))}, panel.x, y)
        found.append(Line(key, f"{label}: as printed" if label else "as printed", PRINTED, theirs))
    return [line for line in found if any(len(across) and len(upwards) for across, upwards in line.pairs)]


def draw(
    axes: Axes,
    panel: Panel,
    experiment: str,
    y: str,
    series: Sequence[str],
    chosen: Mapping[Key, str] | None = None,
    ours: Mapping[str, str] | None = None,
) -> bool:
    """The lines of a panel, in the colours `chosen` for several panels; tells whether there was one of ours."""
    chosen = colors(by_series(panel, experiment, series)) if chosen is None else chosen
    shown = lines(panel, experiment, y, series, ours)
    for line in shown:
        points(axes, line.pairs, chosen[line.key], line.label, line.style)
    if panel.x in SIZES:
        _by_factors(axes)
    elif panel.x == "strength":
        # Strengths are spread over decades, and 0 is one of them.
        axes.set_xscale("symlog", linthresh=0.01)
    if y == "accuracy":
        percent(axes)
    plain(axes, title=panel.title, xlabel=LABELS.get(panel.x, panel.x), ylabel=LABELS.get(y, y))
    return any(line.style != PRINTED for line in shown)


def _by_factors(axes: Axes) -> None:
    """Sizes stand at equal factors from each other: 10k, 20k, 50k or, where they spread more, 10k, 30k."""
    axes.set_xscale("log")
    least, most = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if most < 100 * least else (1, 3)))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_minor_formatter(NullFormatter())


def by_series(panel: Panel, experiment: str, series: Sequence[str]) -> dict[Key, list[Runs]]:
    """Our recipes by the fields `series` and, without recipes, what is only printed."""
    found = by_fields(panel.groups, series)
    for where, _ in printed(experiment):
        if panel.setting.items() <= where.items():
            found.setdefault(tuple(where.get(field) for field in series), [])
    return found


def _kinds(groups: Sequence[Runs], x: str) -> dict[str, list[Runs]]:
    """Recipes that one line may join, by what tells them from others: their length, and what their size follows from.

    Against strength stand only those that have one.
    """
    found: dict[tuple[str, str], list[Runs]] = {}
    for group in groups:
        by_strength = group.config.get("strength") is not None
        if by_strength or x != "strength":
            kind = (f"{group.config.get('length')} epochs", "by strength" if by_strength else "to a size")
            found.setdefault(kind, []).append(group)
    differ = [len(set(words)) > 1 for words in zip(*found, strict=True)]
    return {", ".join(compress(kind, differ)): alike for kind, alike in found.items()}


def _pair(group: Runs, x: str, y: str) -> Pair:
    return ([group.config[x]], group.final(y)) if x == "strength" else group.finals(x, y)


def _printed_pairs(experiment: str, setting: Mapping[str, Any], x: str, y: str) -> list[Pair]:
    both = [
        {**where, **values} for where, values in printed(experiment) if setting.items() <= where.items() and y in values
    ]
    return [([one[x]], [one[y]]) for one in both if x in one]


def name(series: Sequence[str], key: Sequence[Any]) -> str:
    """What a line is called: texts as they are, numbers with what they are; what is zero or missing is not told."""
    told = []
    for field, value in zip(series, key, strict=True):
        if isinstance(value, str):
            told.append("the paper's method" if (field, value) == ("method", "paper") else value)
        elif value:
            told.append(f"{field.replace('_', ' ')} {value:g}")
    return ", ".join(told)
