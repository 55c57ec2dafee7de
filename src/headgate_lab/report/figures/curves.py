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
    """A line of panels a network: accuracy against parameters for each dataset, a line a method; minutes by stage."""
    networks = by_fields(groups, ("network",))
    columns = 1 + max(len(by_fields(alike, ("dataset",))) for alike in networks.values())
    figure = Figure(figsize=(5.5 * columns, 4.2 * len(networks)), layout="constrained")
    drawn = False
    for (*panels, times), ((network,), of_network) in zip(
        figure.subplots(len(networks), columns, squeeze=False), networks.items(), strict=True
    ):
        found = by_fields(of_network, ("dataset",))
        for axes, ((dataset,), alike) in zip(panels, found.items(), strict=False):
            panel = Panel(f"{network}, {dataset}", alike, "params", {"network": network, "dataset": dataset})
            drawn |= draw(axes, panel, "curves", "accuracy", ("method",))
            plain(axes, title=panel.title, xlabel=LABELS["params"], ylabel=LABELS["accuracy"])
        for axes in panels[len(found) :]:
            axes.set_axis_off()
        _draw_times(times, of_network)
    if not drawn:
        raise ReportError("the records of curves lack params or accuracy")
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
