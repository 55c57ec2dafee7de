"""Fig. 4: link prediction against the dimension of the embedding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from headgate_lab.report.figures.drawing import Pair, by_fields, plain, points
from headgate_lab.report.runs import ReportError, Runs

METRICS = {"auc": "test AUC", "ap": "test AP"}
LOWEST, SMALLEST = 0.7, 0.9
# How edges are divided, unless a record says otherwise.
RULES = "2021"
GATED = {"gae-dam": "GAE-DAM", "ours": "ours"}


def link_prediction(groups: Sequence[Runs]) -> Figure:
    """A column a dataset: AUC and AP, a star where validation chooses a strength, and the gain over plain ones.

    A gate that has closed everything scores 0.5; such points lie outside of the panels.
    """
    found = by_fields(groups, ("dataset",))
    figure = Figure(figsize=(5.5 * len(found), 11.5), layout="constrained")
    panels = figure.subplots(len(METRICS) + 1, len(found), squeeze=False)
    drawn, names = False, dict.fromkeys(map(_name, groups))
    for column, ((dataset,), alike) in enumerate(found.items()):
        # By name, with the same colour in every panel.
        lines = {name: [group for group in alike if _name(group) == name] for name in names}
        for axes, (metric, words) in zip(panels[:-1, column], METRICS.items(), strict=True):
            drawn |= _draw(axes, lines, metric)
            plain(axes, title=str(dataset), xlabel="dimension", ylabel=words, ylim=(LOWEST, None))
        _draw_gains(panels[-1, column], lines, alike)
        ylabel = "test AUC minus that of GAE: same seed,\ndimension, hidden layer and rates"
        plain(panels[-1, column], title=str(dataset), xlabel="dimension", ylabel=ylabel)
    if not drawn:
        raise ReportError("the records of link_prediction lack dimension, auc and ap")
    _by_doublings(panels.flat)
    _explain(figure, panels.flat)
    return figure


def _by_doublings(panels: Iterable[Axes]) -> None:
    """Most dimensions are small: as far from 1 to 2 as from 32 to 64."""
    for axes in panels:
        axes.set_xscale("log", base=2, nonpositive="mask")
        axes.set_xlim(SMALLEST, None)
        axes.xaxis.set_major_formatter("{x:g}")


def _explain(figure: Figure, panels: Iterable[Axes]) -> None:
    """One legend for all panels, below them."""
    names: dict[str, Artist] = {}
    for axes in panels:
        names |= {name: handle for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
        if (own := axes.get_legend()) is not None:
            own.remove()
    names["strength chosen by validation"] = Line2D([], [], marker="*", color="white", mec="black", markersize=14)
    title = "means over seeds, with one standard deviation to each side"
    figure.legend(names.values(), names.keys(), loc="outside lower center", ncols=5, frameon=False, title=title)


def _draw(axes: Axes, lines: dict[str, list[Runs]], metric: str) -> bool:
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


def _draw_gains(axes: Axes, lines: dict[str, list[Runs]], groups: Sequence[Runs]) -> None:
    axes.axhline(0, color="0.7", linewidth=0.8)
    for number, (name, alike) in enumerate(lines.items()):
        if alike and alike[0].config.get("method") in GATED:
            # Of most runs of a recipe, or not at all: a dimension that few of them end with is a choice by luck.
            found = [(gains(group, groups, "auc"), len(group.records)) for group in alike]
            points(axes, [pair for pair, runs in found if 2 * len(pair[0]) >= runs], f"C{number}", name)


def chosen(groups: Sequence[Runs]) -> Runs | None:
    """The recipe with the best mean AUC on the validation's edges; the test's have no say."""
    known = [(fmean(scores), group) for group in groups if (scores := group.final("validation_auc"))]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def gains(gated: Runs, groups: Sequence[Runs], metric: str) -> Pair:
    """The dimensions of gated runs, and by how much each is better than the plain run that is like it.

    That is the one with the same division of edges, hidden layer, schedule of rates and seed whose width is that
    dimension; runs without such a twin are left out.
    """
    alike = ("dataset", "split", "hidden", "search")
    twins = {
        (group.config.get("width"), record["seed"]): record["metrics"]["final"].get(metric)
        for group in groups
        if group.config.get("method") == "gae"
        and all(group.config.get(name) == gated.config.get(name) for name in alike)
        for record in group.records
    }
    dimensions, differences = [], []
    for record in gated.records:
        final = record["metrics"]["final"]
        twin = twins.get((final.get("dimension"), record["seed"]))
        if twin is not None and final.get(metric) is not None:
            dimensions.append(final["dimension"])
            differences.append(final[metric] - twin)
    return dimensions, differences


def _name(group: Runs) -> str:
    """What a line is called: the method, and where it starts or which hidden layer it has."""
    known = group.config
    method, width, hidden = known.get("method"), known.get("width", 0), known.get("hidden", 0)
    split = [] if known.get("split", RULES) == RULES else [f"split of {known['split']}"]
    if method in GATED:
        return ", ".join([f"{GATED[method]} from {width}", *split])
    parts = ["GAE"] + ([f"{hidden} hidden units"] if hidden != 2 * width else [])
    return ", ".join(parts + (["rates fall"] if known.get("search", 1) < 1 else []) + split)
