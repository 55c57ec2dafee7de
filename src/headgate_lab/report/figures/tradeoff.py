"""What is given up for what is saved: one metric against another, a line a method, the paper's numbers dashed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.figure import Figure

from headgate_lab.report.figures.colors import colors
from headgate_lab.report.figures.drawing import by_fields, grid, share_legend
from headgate_lab.report.figures.panel import Panel, by_series, draw, name
from headgate_lab.report.runs import ReportError, Runs

# Panels side by side, and the inches of one.
COLUMNS, PANEL = 2, (5.0, 3.6)
LEGEND_COLUMNS = 3
# Of ours, what stands beside a printed accuracy: that of the network with its gates, which is what the paper prints and
# what compaction keeps. Older records of gates before BatchNorm are of a compaction that did not.
WITH_GATES = {"accuracy": "accuracy_before"}


def tradeoff(
    groups: Sequence[Runs],
    experiment: str,
    x: str,
    y: str,
    panels: Sequence[str],
    series: Sequence[str],
    controls: Sequence[str] = (),
) -> Figure:
    """A panel for each value of the fields `panels`, in it a line for each value of the fields `series`.

    Methods that are `controls` know the first field of `panels` only and are drawn wherever it is theirs.
    """
    found = by_fields(groups, panels)
    for (first, *others), alike in found.items():
        if any(value is not None for value in others):
            own = [group for group in groups if group.config[panels[0]] == first]
            alike += [group for group in own if group.config["method"] in controls]
    laid = [Panel(name(panels, key), alike, x, dict(zip(panels, key, strict=True))) for key, alike in found.items()]
    return _figure(laid, experiment, y, series)


def cifar(groups: Sequence[Runs]) -> Figure:
    """A panel for each network and dataset; where shares of the multiply-accumulates were to stay, against these."""
    panels = []
    for (network, dataset, _), alike in by_fields(groups, ("network", "dataset", "length")).items():
        x = "macs" if any(one.config.get("macs") for one in alike) else "params"
        where = {"network": network, "dataset": dataset}
        panels.append(Panel(f"{network}, {dataset}", alike, x, where))
    return _figure(panels, "cifar", "accuracy", ("method",), WITH_GATES)


def _figure(
    panels: Sequence[Panel],
    experiment: str,
    y: str,
    series: Sequence[str],
    ours: Mapping[str, str] | None = None,
) -> Figure:
    """All panels, with one colour a line in all of them, and one legend."""
    figure, (laid,) = grid([len(panels)], COLUMNS, PANEL)
    chosen = colors(key for panel in panels for key in by_series(panel, experiment, series))
    drawn = [draw(axes, panel, experiment, y, series, chosen, ours) for axes, panel in zip(laid, panels, strict=True)]
    if not any(drawn):
        raise ReportError(f"the records of {experiment} lack {y} or {' or '.join({panel.x for panel in panels})}")
    share_legend(figure, laid, LEGEND_COLUMNS)
    return figure


tinyimagenet = partial(
    tradeoff, experiment="tinyimagenet", x="pruned_channels", y="accuracy", panels=("dataset",), series=("method",)
)
pretrained = partial(
    tradeoff,
    experiment="pretrained",
    x="params",
    y="accuracy",
    panels=("network", "tail_lr"),
    series=("method", "order"),
    controls=("narrower", "dense"),
)
