"""Fig. 3: the bottleneck's dimension during training, beside the true one."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headgate_lab.report.figures.drawing import band, by_fields, grid, plain
from headgate_lab.report.runs import ReportError, Runs

PROBLEMS = ("linear", "quadratic", "neural")
# The inches of a panel.
PANEL = (3.6, 3.3)


def dimension(groups: Sequence[Runs]) -> Figure:
    """A panel a problem, a line of panels for the paper's settings and one for ours; the true dimension dotted."""
    if not any(group.curves("dimension") for group in groups):
        raise ReportError("the records of dimension lack the dimension of every epoch")
    chosen = sorted({str(group.config.get("settings")) for group in groups}, key=lambda name: (name != "paper", name))
    found = by_fields(groups, ("settings", "problem"))
    figure, laid = grid([len(PROBLEMS)] * len(chosen), len(PROBLEMS), PANEL)
    for line, settings in zip(laid, chosen, strict=True):
        for axes, problem in zip(line, PROBLEMS, strict=True):
            _draw(axes, found.get((settings, problem), []))
            plain(axes, title=f"{problem}, settings: {settings}", xlabel="step", ylabel="dimension", ylim=(0, None))
    return figure


def _draw(axes: Axes, groups: Sequence[Runs]) -> None:
    for number, group in enumerate(group for group in groups if group.curves("dimension")):
        curves, factors = group.curves("dimension"), group.config.get("factors")
        each = group.config.get("steps", len(curves[0])) / len(curves[0])
        steps = [each * epoch for epoch in range(1, len(curves[0]) + 1)]
        label = f"{factors} factors ({len(curves)} run{'s' * (len(curves) != 1)})"
        band(axes, steps, curves, f"C{number}", label)
        if factors is not None:
            axes.axhline(factors, color=f"C{number}", linestyle=":", linewidth=1)
