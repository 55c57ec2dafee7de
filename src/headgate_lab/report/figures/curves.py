"""Fig. 6: what networks of every size are worth by every method, and the time that each stage takes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headgate_lab.report.figures.drawing import by_fields, grid, plain
from headgate_lab.report.figures.panel import Panel, draw, name
from headgate_lab.report.minutes import minutes
from headgate_lab.report.runs import ReportError, Runs

# Panels side by side, and the inches of one.
COLUMNS, PANEL = 2, (5.25, 4.0)
# Behind the longest bar, for the legend.
ROOM = 1.4
COLORS = {"minutes_training": "C0", "minutes_pruning": "0.6", "minutes_finetuning": "C3"}


def curves(groups: Sequence[Runs]) -> Figure:
    """Panels for each network: accuracy against parameters for each dataset, a line a method; minutes by stage."""
    networks = by_fields(groups, ("network",))
    figure, laid = grid([1 + len(by_fields(alike, ("dataset",))) for alike in networks.values()], COLUMNS, PANEL)
    drawn = False
    for (*panels, times), ((network,), of_network) in zip(laid, networks.items(), strict=True):
        found = by_fields(of_network, ("dataset",))
        for axes, ((dataset,), alike) in zip(panels, found.items(), strict=True):
            panel = Panel(f"{network}, {dataset}", alike, "params", {"network": network, "dataset": dataset})
            drawn |= draw(axes, panel, "curves", "accuracy", ("method",))
        _draw_times(times, of_network)
    if not drawn:
        raise ReportError("the records of curves lack params or accuracy")
    return figure


def _draw_times(axes: Axes, groups: Sequence[Runs]) -> None:
    methods = by_fields(groups, ("method",))
    labels = [f"{name(('method',), method)}\n{_side_by_side(alike)}" for method, alike in methods.items()]
    left = [0.0] * len(methods)
    # A stage that took no time would end the axis where its bar ends, and the bar would look cut off.
    axes.use_sticky_edges = False
    for kind, color in COLORS.items():
        wide = [
            statistics.fmean(minutes(record)[kind] for group in alike for record in group.records)
            for alike in methods.values()
        ]
        axes.barh(labels, wide, left=left, color=color, label=kind.removeprefix("minutes_"))
        left = [before + more for before, more in zip(left, wide, strict=True)]
    axes.invert_yaxis()
    axes.set_xlim(0, ROOM * (max(left) or 1))
    unequal = "\n(means of networks of unequal size)" if any(len(alike) > 1 for alike in methods.values()) else ""
    plain(axes, title=f"time by stage{unequal}", xlabel="minutes a network")


def _side_by_side(groups: Sequence[Runs]) -> str:
    """How many networks a device had at once: times can be compared where these are equal."""
    runs = [record for group in groups for record in group.records]
    counts = [count for run in runs for count in run.get("networks", {"train": run["together"]}).values()]
    least, most = min(counts), max(counts)
    return f"({least} at once)" if least == most else f"({least} to {most} at once)"
