"""What the figures share: panels and their legend, curves and points with their spread, the paper's numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from headgate_lab.paper import PAPER
from headgate_lab.report.runs import Runs

# The runs behind one point: their values across and their values upwards.
Pair = tuple[Sequence[float], Sequence[float]]
# Lines that share a colour: how each is marked and drawn.
STYLES = ("o-", "^:", "D-.", "v--")
# What others printed is hollow.
PRINTED = "s--"


def grid(counts: Sequence[int], columns: int, panel: tuple[float, float]) -> tuple[Figure, list[list[Axes]]]:
    """Panels, so many inches wide and high, for groups of so many, at most `columns` side by side.

    A group begins on a line of its own; behind its last panel there is nothing, not even a frame. A page is less than
    1000 pixels wide: what stands in a figure of more than 11 inches can hardly be read there.
    """
    columns = min(columns, max(counts))
    lines = [math.ceil(count / columns) for count in counts]
    figure = Figure(figsize=(panel[0] * columns, panel[1] * sum(lines)), layout=ConstrainedLayoutEngine(h_pad=0.1))
    cells = figure.add_gridspec(sum(lines), columns)
    first = accumulate(lines, initial=0)
    return figure, [
        [figure.add_subplot(cells[line + number // columns, number % columns]) for number in range(count)]
        for line, count in zip(first, counts, strict=False)
    ]


def share_legend(
    figure: Figure, panels: Iterable[Axes], columns: int, title: str | None = None, **more: Artist
) -> None:
    """One legend above all panels in place of theirs; what has the same name must look the same in all of them."""
    names: dict[str, Artist] = {}
    for axes in panels:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            names.setdefault(name, handle)
        if (own := axes.get_legend()) is not None:
            own.remove()
    names |= more
    handles, labels = names.values(), names.keys()
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False, title=title)


def band(axes: Axes, steps: Sequence[float], curves: Sequence[Sequence[float | None]], color: str, label: str) -> None:
    """The mean of curves as a line, one sample standard deviation to each side as a shade."""
    values = np.array(curves, dtype=float)
    mean = values.mean(axis=0)
    axes.plot(steps, mean, color=color, label=label, linewidth=1.2)
    if len(curves) > 1:
        spread = values.std(axis=0, ddof=1)
        axes.fill_between(steps, mean - spread, mean + spread, color=color, alpha=0.25, linewidth=0)


def points(axes: Axes, pairs: Iterable[Pair], color: str, label: str, style: str = STYLES[0], **looks: Any) -> bool:
    """Means, joined from left to right, with one sample standard deviation both ways; tells whether there were any."""
    found = sorted((np.mean(xs), np.mean(ys), _sd(xs), _sd(ys)) for xs, ys in pairs if len(xs) and len(ys))
    if found:
        x, y, across, upwards = zip(*found, strict=True)
        given = {"markersize": 4, "linewidth": 1.2, "capsize": 2} | looks
        if style == PRINTED:
            given["mfc"] = "white"
        axes.errorbar(x, y, yerr=upwards, xerr=across, color=color, label=label, fmt=style, **given)
    return bool(found)


def by_fields(groups: Iterable[Runs], names: Sequence[str]) -> dict[tuple[Any, ...], list[Runs]]:
    """Recipes that agree in these fields of their configs, together."""
    found: dict[tuple[Any, ...], list[Runs]] = {}
    for group in groups:
        found.setdefault(tuple(group.config.get(name) for name in names), []).append(group)
    return found


def printed(experiment: str) -> list[tuple[Mapping[str, Any], dict[str, float]]]:
    """The paper's settings of an experiment, each with the means it prints, by metric."""
    found: dict[str, tuple[Mapping[str, Any], dict[str, float]]] = {}
    for number in PAPER[experiment].numbers:
        if number.value is not None and number.statistic == "mean":
            _, values = found.setdefault(json.dumps(number.setting, sort_keys=True), (number.setting, {}))
            values[number.metric] = number.value
    return list(found.values())


def percent(axes: Axes) -> None:
    """What is a share upwards ends at 0 and at 100, whatever its spread."""
    bottom, top = axes.get_ylim()
    axes.set_ylim(max(0.0, bottom), min(100.0, top))


def plain(axes: Axes, **labels: Any) -> None:
    """Titles and labels, no frame, and a legend where something has a label."""
    axes.set(**labels)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(framealpha=0.7, edgecolor="none", handlelength=1.6, fontsize=8)
    else:
        axes.text(0.5, 0.5, "no records", transform=axes.transAxes, ha="center", color="0.5")


def _sd(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
