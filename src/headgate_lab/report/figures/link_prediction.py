"""Fig. 4: link prediction against the dimension of the embedding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from headgate_lab.report.figures.drawing import STYLES, Pair, by_fields, grid, plain, points, share_legend
from headgate_lab.report.runs import ReportError, Runs

METRICS = {"auc": "test AUC", "ap": "test AP"}
LOWEST, SMALLEST = 0.7, 0.9
# How edges are divided, unless a record says otherwise.
RULES = "2021"
GATED = {"gae-dam": "GAE-DAM", "ours": "ours"}
# The colours of a method's lines; more of them differ in how they are marked.
PALETTES = {"gae": ("0.2", "0.45", "0.65"), "gae-dam": ("C0", "C4", "C9"), "ours": ("C1", "C3")}
# The inches of a panel.
PANEL = (3.6, 3.8)

Lines = Mapping[str, Sequence[Runs]]
Looks = Mapping[str, Mapping[str, Any]]


def link_prediction(groups: Sequence[Runs]) -> Figure:
    """A column a dataset: AUC and AP, a star where validation chooses a strength, and the gain over plain ones.

    Plain networks are grey, behind the gated ones. A gate that has closed everything scores 0.5; such points lie
    outside of the panels.
    """
    found = by_fields(groups, ("dataset",))
    figure, laid = grid([len(found)] * (len(METRICS) + 1), len(found), PANEL)
    drawn, looks = False, _looks(groups)
    for column, ((dataset,), alike) in enumerate(found.items()):
        lines = {name: [group for group in alike if _name(group) == name] for name in looks}
        for panels, (metric, words) in zip(laid, METRICS.items(), strict=False):
            drawn |= _draw(panels[column], lines, looks, metric)
            plain(panels[column], title=str(dataset), xlabel="dimension", ylabel=words, ylim=(LOWEST, None))
        _draw_gains(laid[-1][column], lines, looks, alike)
        ylabel = "test AUC minus that of GAE: same seed,\ndimension, hidden layer and rates"
        plain(laid[-1][column], title=str(dataset), xlabel="dimension", ylabel=ylabel)
    if not drawn:
        raise ReportError("the records of link_prediction lack dimension, auc and ap")
    panels = [axes for line in laid for axes in line]
    _by_doublings(panels)
    star = Line2D([], [], marker="*", color="white", mec="black", markersize=10)
    title = "means over seeds, with one standard deviation to each side"
    share_legend(figure, panels, 3, title, **{"strength chosen by validation": star})
    return figure


def _looks(groups: Iterable[Runs]) -> dict[str, dict[str, Any]]:
    """How a line is drawn, by its name, alike in every panel."""
    looks: dict[str, dict[str, Any]] = {}
    for (method,), alike in by_fields(groups, ("method",)).items():
        palette = PALETTES.get(method, PALETTES["gae"])
        back = {} if method in GATED else {"linewidth": 0.8, "markersize": 3, "alpha": 0.6, "zorder": 1}
        for number, name in enumerate(dict.fromkeys(map(_name, alike))):
            color, style = palette[number % len(palette)], STYLES[number // len(palette) % len(STYLES)]
            looks[name] = {"color": color, "style": style, "capsize": 0, "elinewidth": 0.6, **back}
    return looks


def _by_doublings(panels: Iterable[Axes]) -> None:
    """Most dimensions are small: as far from 1 to 2 as from 32 to 64."""
    for axes in panels:
        axes.set_xscale("log", base=2, nonpositive="mask")
        axes.set_xlim(SMALLEST, None)
        axes.xaxis.set_major_formatter("{x:g}")


def _draw(axes: Axes, lines: Lines, looks: Looks, metric: str) -> bool:
    drawn = False
    for name, alike in lines.items():
        drawn |= points(axes, (group.finals("dimension", metric) for group in alike), label=name, **looks[name])
        best = chosen(alike)
        if (
            best is not None
            and best.config.get("method") == "gae-dam"
            and (ends := best.finals("dimension", metric))[0]
        ):
            place, color = (fmean(ends[0]), fmean(ends[1])), looks[name]["color"]
            axes.plot(*place, "*", color=color, markersize=10, markeredgecolor="black", zorder=3)
    return drawn


def _draw_gains(axes: Axes, lines: Lines, looks: Looks, groups: Sequence[Runs]) -> None:
    axes.axhline(0, color="0.7", linewidth=0.8)
    for name, alike in lines.items():
        if alike and alike[0].config.get("method") in GATED:
            # Of most runs of a recipe, or not at all: a dimension that few of them end with is a choice by luck.
            found = [(gains(group, groups, "auc"), len(group.records)) for group in alike]
            points(axes, [pair for pair, runs in found if 2 * len(pair[0]) >= runs], label=name, **looks[name])


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
