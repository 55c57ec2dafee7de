"""Appendix C: where learning rate, strength and initial offset lead to, as heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from headgate_lab.report.figures.dimension import PROBLEMS
from headgate_lab.report.figures.drawing import by_fields, grid
from headgate_lab.report.runs import ReportError, Runs

METRICS = ("dimension", "loss")
MAPS = ("strength", "offset")
# The inches of a panel.
PANEL = (2.75, 2.8)


def sensitivity(groups: Sequence[Runs]) -> Figure:
    """A line of panels a problem: dimension and loss over each map, the mean of all seeds; grey where a run failed."""
    found = by_fields(groups, ("problem", "map"))
    problems = list(dict.fromkeys(problem for problem, _ in found))
    problems.sort(key=lambda problem: PROBLEMS.index(problem) if problem in PROBLEMS else len(PROBLEMS))
    panels = [(over, metric) for over in MAPS for metric in METRICS]
    figure, laid = grid([len(panels)] * len(problems), len(panels), PANEL)
    for line, problem in zip(laid, problems, strict=True):
        for axes, (over, metric) in zip(line, panels, strict=True):
            here = found.get((problem, over), [])
            if len(here) > 1:
                raise ReportError(f"sensitivity: {len(here)} recipes share the map of {problem} over {over}")
            axes.set_title(f"{problem}: {metric}", fontsize=9)
            axes.set(xlabel=f"{'initial ' * (over == 'offset')}{over}")
            axes.set_ylabel("learning rate")
            if here:
                _draw(figure, axes, here[0], over, metric)
            else:
                axes.set_axis_off()
                axes.text(0.5, 0.5, "no records", transform=axes.transAxes, ha="center", color="0.5")
    return figure


def _draw(figure: Figure, axes: Axes, group: Runs, over: str, metric: str) -> None:
    rates, others = _axis(group, "rates"), _axis(group, "values")
    cells = np.array(group.final(metric), dtype=float)
    if cells.shape[1:] != (len(rates), len(others)):
        raise ReportError(
            f"sensitivity ({group.setting}): {metric} must be a line a learning rate and a column a {over}, "
            f"{len(rates)} × {len(others)}, not {' × '.join(map(str, cells.shape[1:]))}"
        )
    mean = np.ma.masked_invalid(cells.mean(axis=0))
    is_loss = metric == "loss"
    # Zero has no place on a logarithmic scale: it is drawn as the smallest loss that has one.
    positive = mean.compressed()[mean.compressed() > 0]
    norm = LogNorm(vmin=positive.min(), clip=True) if is_loss and len(positive) else None
    axes.set_facecolor("0.8")
    shown = axes.imshow(mean, origin="lower", aspect="auto", norm=norm, cmap="magma_r" if is_loss else "viridis")
    if not is_loss:
        # One scale for all maps: what is dark in one is dark in the others.
        shown.set_clim(0, group.config.get("bottleneck"))
    axes.set_xticks(range(len(others)), [f"{value:g}" for value in others], rotation=45, fontsize=7)
    axes.set_yticks(range(len(rates)), [f"{value:g}" for value in rates], fontsize=7)
    bar = figure.colorbar(shown, ax=axes)
    if not is_loss and (factors := group.config.get("factors")) is not None:
        bar.ax.axhline(factors, color="red")
        bar.ax.set_title(f"r = {factors}", color="red", fontsize=8)


def _axis(group: Runs, name: str) -> list[Any]:
    values = group.config.get(name)
    if not isinstance(values, list):
        raise ReportError(f"sensitivity ({group.setting}): the configs of the records lack {name}")
    return values
