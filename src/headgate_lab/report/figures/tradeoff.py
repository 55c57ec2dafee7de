"""What is given up for what is saved: one metric against another, a line a method, the paper's numbers dashed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headgate_lab.report.figures.drawing import by_fields, plain, points, printed
from headgate_lab.report.runs import ReportError, Runs

LABELS = {
    "accuracy": "test accuracy (%)",
    "params": "parameters",
    "pruned": "parameters pruned (%)",
    "pruned_channels": "channels pruned (%)",
}
# Panels in a row.
COLUMNS = 4
# A method looks the same in every panel, whichever others stand beside it.
COLORS = {"paper": "C0", "ours": "C1", "narrower": "C2", "chipnet": "C3", "slimming": "C4"}


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

    Sizes stand at equal factors from each other. Methods that are `controls` know the first field of `panels` only and
    are drawn wherever it is theirs.
    """
    found = by_fields(groups, panels)
    for (first, *others), alike in found.items():
        if any(value is not None for value in others):
            own = [group for group in groups if group.config[panels[0]] == first]
            alike += [group for group in own if group.config["method"] in controls]
    columns = min(len(found), COLUMNS)
    rows = math.ceil(len(found) / columns)
    figure = Figure(figsize=(5.5 * columns, 4.2 * rows), layout="constrained")
    drawn = False
    for number, (panel, alike) in enumerate(found.items(), start=1):
        axes = figure.add_subplot(rows, columns, number)
        drawn |= draw(axes, alike, experiment, x, y, dict(zip(panels, panel, strict=True)), series)
        plain(axes, title=name(panels, panel), xlabel=LABELS.get(x, x), ylabel=LABELS.get(y, y))
        if x == "params":
            axes.set_xscale("log")
    if not drawn:
        raise ReportError(f"the records of {experiment} lack {x} or {y}")
    return figure


def draw(
    axes: Axes,
    groups: Sequence[Runs],
    experiment: str,
    x: str,
    y: str,
    panel: dict[str, Any],
    series: Sequence[str],
) -> bool:
    """Our lines and, for each that the paper prints, the paper's; tells whether there was one of ours."""
    drawn = False
    for number, (key, alike) in enumerate(by_fields(groups, series).items()):
        color = COLORS.get(key[0], f"C{number}") if series == ("method",) else f"C{number}"
        setting, label = {**panel, **dict(zip(series, key, strict=True))}, name(series, key)
        if x == "strength":
            known = [group for group in alike if group.config.get(x) is not None]
            drawn |= points(axes, (([group.config[x]], group.final(y)) for group in known), color, label)
        else:
            drawn |= points(axes, (group.finals(x, y) for group in alike), color, label)
        theirs = [
            ([{**where, **values}[x]], [values[y]])
            for where, values in printed(experiment)
            if setting.items() <= dict(where).items() and x in {**where, **values} and y in values
        ]
        points(axes, theirs, color, f"{label}: as printed" if label else "as printed", hollow=True)
    return drawn


def name(series: Sequence[str], key: Sequence[Any]) -> str:
    """What a line is called: texts as they are, numbers with what they are; what is zero or missing is not told."""
    told = []
    for field, value in zip(series, key, strict=True):
        if isinstance(value, str):
            told.append("the paper's method" if (field, value) == ("method", "paper") else value)
        elif value:
            told.append(f"{field.replace('_', ' ')} {value:g}")
    return ", ".join(told)


cifar = partial(
    tradeoff, experiment="cifar", x="params", y="accuracy", panels=("dataset",), series=("network", "method")
)
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
