"""Fig. 4: link prediction against the dimension of the embedding."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headgate_lab.report.figures.drawing import by_fields, plain, points
from headgate_lab.report.runs import ReportError, Runs

METRICS = {"auc": "test AUC", "ap": "test AP"}
GATED = {"gae-dam": "GAE-DAM", "ours": "ours"}


def link_prediction(groups: Sequence[Runs]) -> Figure:
    """A column a dataset; the strength that validation chooses from each starting width has a star."""
    found = by_fields(groups, ("dataset",))
    figure = Figure(figsize=(5.5 * len(found), 8), layout="constrained")
    panels = figure.subplots(len(METRICS), len(found), squeeze=False)
    drawn = False
    for column, ((dataset,), alike) in enumerate(found.items()):
        for axes, (metric, words) in zip(panels[:, column], METRICS.items(), strict=True):
            drawn |= _draw(axes, alike, metric)
            plain(axes, title=str(dataset), xlabel="dimension", ylabel=words)
    if not drawn:
        raise ReportError("the records of link_prediction lack dimension, auc and ap")
    return figure


def _draw(axes: Axes, groups: Sequence[Runs], metric: str) -> bool:
    lines: dict[str, list[Runs]] = {}
    for group in groups:
        lines.setdefault(_name(group), []).append(group)
    drawn = False
    for number, (name, alike) in enumerate(lines.items()):
        drawn |= points(axes, (group.finals("dimension", metric) for group in alike), f"C{number}", name)
        best = chosen(alike)
        if (
            best is not None
            and best.config.get("method") == "gae-dam"
            and (ends := best.finals("dimension", metric))[0]
        ):
            axes.plot(fmean(ends[0]), fmean(ends[1]), "*", color=f"C{number}", markersize=14, markeredgecolor="black")
    return drawn


def chosen(groups: Sequence[Runs]) -> Runs | None:
    """The recipe with the best mean AUC on the validation's edges; the test's have no say."""
    known = [(fmean(scores), group) for group in groups if (scores := group.final("validation_auc"))]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def _name(group: Runs) -> str:
    """What a line is called: the method, and where it starts or which hidden layer it has."""
    known = group.config
    method, width, hidden = known.get("method"), known.get("width", 0), known.get("hidden", 0)
    if method in GATED:
        return f"{GATED[method]} from {width}"
    parts = ["GAE"] + ([f"{hidden} hidden units"] if hidden != 2 * width else [])
    return ", ".join(parts + (["rates fall"] if known.get("search", 1) < 1 else []))
