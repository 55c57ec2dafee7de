"""Any strength: what networks can still do, and what is left of them, our way beside the naive one."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headgate_lab.report.figures.drawing import by_fields, grid, percent, plain, points, share_legend
from headgate_lab.report.runs import ReportError, Runs

MEASURES = {"accuracy": "test accuracy (%)", "explained": "test images explained (%)"}
# The inches of a panel.
PANEL = (2.75, 2.7)
COLORS = {"naive": "C0", "ours": "C1"}


def strengths(groups: Sequence[Runs]) -> Figure:
    """A row for each network, in it two panels for each optimizer. Strengths stand at equal distances."""
    networks = by_fields(groups, ("network",))
    if not all(any(group.final(name) for name in MEASURES) for group in groups):
        raise ReportError(f"records of sweep lack {' or '.join(MEASURES)}")
    optimizers = sorted({str(group.config["optimizer"]) for group in groups})
    columns = 2 * len(optimizers)
    figure, laid = grid([columns] * len(networks), columns, PANEL)
    for row, ((network,), alike) in zip(laid, networks.items(), strict=True):
        for number, optimizer in enumerate(optimizers):
            some = [group for group in alike if group.config["optimizer"] == optimizer]
            _draw_result(row[2 * number], some, f"{network}, {optimizer}")
            _draw_size(row[2 * number + 1], some, f"{network}, {optimizer}")
    share_legend(figure, [axes for row in laid for axes in row], len(COLORS))
    return figure


def _draw_result(axes: Axes, groups: Sequence[Runs], title: str) -> None:
    """What the networks of one optimizer ended with; dead ones crossed out."""
    measure = next((name for name in MEASURES if any(group.final(name) for group in groups)), "accuracy")
    places = _places(groups)
    for (method,), alike in by_fields(groups, ("method",)).items():
        pairs = [([places[group.config["strength"]]], group.final(measure)) for group in alike]
        points(axes, pairs, COLORS[method], method)
        dead = [group for group in alike if any(group.final("dead"))]
        for group in dead:
            axes.plot(places[group.config["strength"]], min(group.final(measure)), "x", color="black", markersize=9)
    percent(axes)
    plain(axes, title=title, xlabel="strength", ylabel=MEASURES[measure])
    axes.set_xticks(list(places.values()), [f"{strength:g}" for strength in places])


def _draw_size(axes: Axes, groups: Sequence[Runs], title: str) -> None:
    """What is left of the networks; of dead ones nothing is known."""
    places = _places(groups)
    for (method,), alike in by_fields(groups, ("method",)).items():
        left = (
            ([places[group.config["strength"]]], [100 - pruned for pruned in group.final("pruned")]) for group in alike
        )
        points(axes, left, COLORS[method], method)
    plain(axes, title=title, xlabel="strength", ylabel="parameters left (%)")
    axes.set_ylim(bottom=0)
    axes.set_xticks(list(places.values()), [f"{strength:g}" for strength in places])


def _places(groups: Sequence[Runs]) -> dict[float, int]:
    return {strength: place for place, strength in enumerate(sorted({group.config["strength"] for group in groups}))}
