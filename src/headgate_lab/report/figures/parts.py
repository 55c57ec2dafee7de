"""What a budget is made of: the accuracy of the default, and what every change of it makes of that."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headgate_lab.report.figures.drawing import by_fields, grid
from headgate_lab.report.runs import ReportError, Runs

# What tells panels apart.
PANEL = ("network", "dataset", "params")
DEFAULT = "as by default"
# Panels side by side, and the inches of one.
COLUMNS, PANEL_INCHES = 2, (5.0, 3.0)
# The least points of accuracy from one end of a panel to the other.
SPAN = 4.0


def parts(groups: Sequence[Runs]) -> Figure:
    """A panel for each network and size, in it a line for each change, the default's accuracy drawn through.

    All show equally many points of accuracy.
    """
    measured = [group for group in groups if group.final("accuracy")]
    if not measured:
        raise ReportError("the records of budget lack accuracy")
    panels = by_fields(measured, PANEL)
    figure, (laid,) = grid([len(panels)], COLUMNS, PANEL_INCHES)
    for axes, (key, alike) in zip(laid, panels.items(), strict=True):
        _draw(axes, {_change(group): group for group in alike})
        network, dataset, params = key
        axes.set(title=f"{network}, {dataset}\n{params:,} parameters", xlabel="test accuracy (%)")
        axes.spines[["top", "right"]].set_visible(False)
    _equal_spans(laid)
    return figure


def _equal_spans(panels: Sequence[Axes]) -> None:
    """As long a step for a point of accuracy in every panel: what differs by little must not look as if by much."""
    ends = [axes.get_xlim() for axes in panels]
    half = max(SPAN, *(right - left for left, right in ends)) / 2
    for axes, (left, right) in zip(panels, ends, strict=True):
        middle = (left + right) / 2
        axes.set_xlim(middle - half, middle + half)


def _draw(axes: Axes, groups: dict[str, Runs]) -> None:
    """The default first, the others below it."""
    order = sorted(groups, key=lambda change: change != DEFAULT)
    for place, change in enumerate(order):
        values = groups[change].final("accuracy")
        spread = np.std(values, ddof=1) if len(values) > 1 else 0.0
        color = "C1" if change == DEFAULT else "C0"
        axes.errorbar(np.mean(values), place, xerr=spread, fmt="o", color=color, markersize=5, capsize=2)
    if DEFAULT in groups:
        axes.axvline(float(np.mean(groups[DEFAULT].final("accuracy"))), color="C1", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(order)), order)
    axes.invert_yaxis()


def _change(group: Runs) -> str:
    """As the setting tells it."""
    return group.setting.partition(" parameters, ")[2] or group.setting
