"""What is given up for what is saved: one metric against another, a line a method, the paper's numbers dashed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headgate_lab.report.figures.drawing import by_fields, plain, points, printed
from headgate_lab.report.runs import ReportError, Runs

LABELS = {
    "accuracy": "test accuracy (%)",
    "params": "parameters",
    "macs": "multiply-accumulates",
    "pruned": "parameters pruned (%)",
    "pruned_channels": "channels pruned (%)",
}
# What is drawn at equal factors.
SIZES = ("params", "macs")
# Panels in a row.
COLUMNS = 4
# Of ours, what stands beside a printed accuracy: that of the network with its gates, which is what the paper prints and
# what compaction keeps. Older records of gates before BatchNorm are of a compaction that did not.
WITH_GATES = {"accuracy": "accuracy_before"}
# A method looks the same in every figure, whichever others stand beside it.
COLORS = {"paper": "C0", "ours": "C1", "narrower": "C2", "chipnet": "C3", "slimming": "C4", "found": "C5"}

Key = tuple[Any, ...]


class Panel(NamedTuple):
    """Recipes to draw, what lies across, and the fields of the paper's settings that belong here."""

    title: str
    groups: Sequence[Runs]
    x: str
    setting: dict[str, Any]


def tradeoff(
    groups: Sequence[Runs],
    experiment: str,
    x: str,
    y: str,
    panels: Sequence[str],
    series: Sequence[str],
    controls: Sequence[str] = (),
) -> Figure:
    """A panel for each value of the fields `panels`, in it a line for each value of the fields `series`.

    Methods that are `controls` know the first field of `panels` only and are drawn wherever it is theirs.
    """
    found = by_fields(groups, panels)
    for (first, *others), alike in found.items():
        if any(value is not None for value in others):
            own = [group for group in groups if group.config[panels[0]] == first]
            alike += [group for group in own if group.config["method"] in controls]
    laid = [Panel(name(panels, key), alike, x, dict(zip(panels, key, strict=True))) for key, alike in found.items()]
    return _figure(laid, experiment, y, series)


def cifar(groups: Sequence[Runs]) -> Figure:
    """A panel for each network and dataset; where shares of the multiply-accumulates were to stay, against these."""
    panels = []
    for (network, dataset, _), alike in by_fields(groups, ("network", "dataset", "length")).items():
        x = "macs" if any(one.config.get("macs") for one in alike) else "params"
        where = {"network": network, "dataset": dataset}
        panels.append(Panel(f"{network}, {dataset}", alike, x, where))
    return _figure(panels, "cifar", "accuracy", ("method",), WITH_GATES)


def _figure(
    panels: Sequence[Panel],
    experiment: str,
    y: str,
    series: Sequence[str],
    ours: Mapping[str, str] | None = None,
) -> Figure:
    """All panels, with one colour a line in all of them."""
    columns = min(len(panels), COLUMNS)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(5.5 * columns, 4.2 * rows), layout="constrained")
    colors = _colors([key for panel in panels for key in _lines(panel, experiment, series)], series)
    drawn = False
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, number)
        drawn |= draw(axes, panel, experiment, y, series, colors, ours)
        plain(axes, title=panel.title, xlabel=LABELS.get(panel.x, panel.x), ylabel=LABELS.get(y, y))
    if not drawn:
        raise ReportError(f"the records of {experiment} lack {y} or {' or '.join({panel.x for panel in panels})}")
    return figure


def draw(
    axes: Axes,
    panel: Panel,
    experiment: str,
    y: str,
    series: Sequence[str],
    colors: Mapping[Key, str] | None = None,
    ours: Mapping[str, str] | None = None,
) -> bool:
    """Our lines and, for each that the paper prints, the paper's; tells whether there was one of ours.

    Sizes stand at equal factors from each other. `ours` names the metrics of our records that are called otherwise.
    """
    measured = (ours or {}).get(y, y)
    lines, x, drawn = _lines(panel, experiment, series), panel.x, False
    colors = _colors(list(lines), series) if colors is None else colors
    for key, alike in lines.items():
        setting, label = {**panel.setting, **dict(zip(series, key, strict=True))}, name(series, key)
        if x == "strength":
            known = [group for group in alike if group.config.get(x) is not None]
            drawn |= points(axes, (([group.config[x]], group.final(measured)) for group in known), colors[key], label)
        else:
            drawn |= points(axes, (group.finals(x, measured) for group in alike), colors[key], label)
        theirs = [
            ([{**where, **values}[x]], [values[y]])
            for where, values in printed(experiment)
            if setting.items() <= dict(where).items() and x in {**where, **values} and y in values
        ]
        points(axes, theirs, colors[key], f"{label}: as printed" if label else "as printed", hollow=True)
    if x in SIZES:
        axes.set_xscale("log")
    return drawn


def _lines(panel: Panel, experiment: str, series: Sequence[str]) -> dict[Key, list[Runs]]:
    """Ours, and without runs those that are only printed."""
    found = by_fields(panel.groups, series)
    for where, _ in printed(experiment):
        if panel.setting.items() <= dict(where).items():
            found.setdefault(tuple(where.get(field) for field in series), [])
    return found


def _colors(keys: Sequence[Key], series: Sequence[str]) -> dict[Key, str]:
    names = {key: COLORS.get(key[0]) if tuple(series) == ("method",) else None for key in keys}
    return {key: color or f"C{number}" for number, (key, color) in enumerate(names.items())}


def name(series: Sequence[str], key: Sequence[Any]) -> str:
    """What a line is called: texts as they are, numbers with what they are; what is zero or missing is not told."""
    told = []
    for field, value in zip(series, key, strict=True):
        if isinstance(value, str):
            told.append("the paper's method" if (field, value) == ("method", "paper") else value)
        elif value:
            told.append(f"{field.replace('_', ' ')} {value:g}")
    return ", ".join(told)


tinyimagenet = partial(
    tradeoff, experiment="tinyimagenet", x="pruned_channels", y="accuracy", panels=("dataset",), series=("method",)
)
pretrained = partial(
    tradeoff,
    experiment="pretrained",
    x="params",
    y="accuracy",
    panels=("network", "tail_lr"),
    series=("method", "order"),
    controls=("narrower", "dense"),
)
