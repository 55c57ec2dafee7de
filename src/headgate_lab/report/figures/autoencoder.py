"""Fig. 5: DAM against L1 on an autoencoder of handwritten digits."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headgate_lab.report.figures.drawing import by_fields, grid, plain, points
from headgate_lab.report.runs import ReportError, Runs

LABELS = {"dam": "DAM", "l1": "L1"}
# The inches of a panel.
PANEL = (3.6, 3.4)


def autoencoder(groups: Sequence[Runs]) -> Figure:
    """Test error and macro-F1 against dimension, every run a faint dot; dimension against strength."""
    figure, ((mse, f1, shrinking),) = grid([3], 3, PANEL)
    drawn = False
    for number, ((method,), alike) in enumerate(by_fields(groups, ("method",)).items()):
        color, label = f"C{number}", LABELS.get(method, str(method))
        for axes, metric in ((mse, "test_mse"), (f1, "macro_f1")):
            drawn |= _draw_runs(axes, alike, metric, color, label)
        known = [group for group in alike if group.config.get("strength") is not None]
        pairs = (([group.config["strength"]], group.final("dimension")) for group in known)
        drawn |= points(shrinking, pairs, color, label)
    if not drawn:
        raise ReportError("the records of autoencoder lack dimension, test_mse and macro_f1")
    plain(mse, xlabel="dimension", ylabel="test MSE")
    plain(f1, xlabel="dimension", ylabel="macro-F1 of a classifier on the codes")
    plain(shrinking, xlabel="strength", ylabel="dimension", ylim=(0, None))
    return figure


def _draw_runs(axes: Axes, groups: Sequence[Runs], metric: str, color: str, label: str) -> bool:
    """Each run by itself, and the means of each strength joined."""
    ends = [record["metrics"]["final"] for group in groups for record in group.records]
    both = [(end["dimension"], end[metric]) for end in ends if None not in (end.get("dimension"), end.get(metric))]
    if both:
        x, y = zip(*both, strict=True)
        axes.scatter(x, y, color=color, alpha=0.3, s=10, linewidth=0)
    return points(axes, ((group.final("dimension"), group.final(metric)) for group in groups), color, label)
