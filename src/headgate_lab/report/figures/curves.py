"""Fig. 6: what networks of every size are worth by every method, and the time that each stage takes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headgate_lab.report.figures.drawing import by_fields, plain
from headgate_lab.report.figures.tradeoff import LABELS, Panel, draw, name
from headgate_lab.report.minutes import minutes
from headgate_lab.report.runs import ReportError, Runs

COLORS = {"minutes_training": "C0", "minutes_pruning": "0.6", "minutes_finetuning": "C3"}


def curves(groups: Sequence[Runs]) -> Figure:
    """A panel a dataset, accuracy against parameters with a line a method; in the last panel minutes by stage."""
    found = by_fields(groups, ("dataset",))
    figure = Figure(figsize=(5.5 * (len(found) + 1), 4.2), layout="constrained")
    *panels, times = figure.subplots(1, len(found) + 1)
    drawn = False
    for axes, ((dataset,), alike) in zip(panels, found.items(), strict=True):
        panel = Panel(str(dataset), alike, "params", {"dataset": dataset})
        drawn |= draw(axes, panel, "curves", "accuracy", ("method",))
        plain(axes, title=str(dataset), xlabel=LABELS["params"], ylabel=LABELS["accuracy"])
    if not drawn:
        raise ReportError("the records of curves lack params or accuracy")
    _draw_times(times, groups)
    return figure


def _draw_times(axes: Axes, groups: Sequence[Runs]) -> None:
    methods = by_fields(groups, ("method",))
    labels = [f"{name(('method',), method)}\n{_side_by_side(alike)}" for method, alike in methods.items()]
    left = [0.0] * len(methods)
    for kind, color in COLORS.items():
        wide = [
            statistics.fmean(minutes(record)[kind] for group in alike for record in group.records)
            for alike in methods.values()
        ]
        axes.barh(labels, wide, left=left, color=color, label=kind.removeprefix("minutes_"))
        left = [before + more for before, more in zip(left, wide, strict=True)]
    axes.invert_yaxis()
    plain(axes, title="time by stage", xlabel="minutes a network")


def _side_by_side(groups: Sequence[Runs]) -> str:
    """How many networks a device had at once: times can be compared where these are equal."""
    runs = [record for group in groups for record in group.records]
    counts = [count for run in runs for count in run.get("networks", {"train": run["together"]}).values()]
    least, most = min(counts), max(counts)
    return f"({least} at once)" if least == most else f"({least} to {most} at once)"
