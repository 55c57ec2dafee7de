"""What the figures share: curves and points with their spread, the paper's numbers, plain axes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from headgate_lab.paper import PAPER
from headgate_lab.report.runs import Runs

# The runs behind one point: their values across and their values upwards.
Pair = tuple[Sequence[float], Sequence[float]]


def band(axes: Axes, steps: Sequence[float], curves: Sequence[Sequence[float | None]], color: str, label: str) -> None:
    """The mean of curves as a line, one sample standard deviation to each side as a shade."""
    values = np.array(curves, dtype=float)
    mean = values.mean(axis=0)
    axes.plot(steps, mean, color=color, label=label, linewidth=1.2)
    if len(curves) > 1:
        spread = values.std(axis=0, ddof=1)
        axes.fill_between(steps, mean - spread, mean + spread, color=color, alpha=0.25, linewidth=0)


def points(axes: Axes, pairs: Iterable[Pair], color: str, label: str, *, hollow: bool = False) -> bool:
    """Means, joined from left to right, with one sample standard deviation both ways; tells whether there were any.

    Hollow and dashed is what others printed.
    """
    found = sorted((np.mean(xs), np.mean(ys), _sd(xs), _sd(ys)) for xs, ys in pairs if len(xs) and len(ys))
    if found:
        x, y, across, upwards = zip(*found, strict=True)
        look: dict[str, Any] = {"fmt": "s--", "mfc": "white"} if hollow else {"fmt": "o-"}
        axes.errorbar(
            x, y, yerr=upwards, xerr=across, color=color, label=label, markersize=4, linewidth=1.2, capsize=2, **look
        )
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


def plain(axes: Axes, **labels: Any) -> None:
    """Titles and labels, no frame, and a legend where something has a label."""
    axes.set(**labels)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
    else:
        axes.text(0.5, 0.5, "no records", transform=axes.transAxes, ha="center", color="0.5")


def _sd(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
