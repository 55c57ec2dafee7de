"""Appendix E.1: LeNet-5 on MNIST, what strengths do, and what the network is worth at its size."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from headgate_lab.report.figures.drawing import PRINTED, by_fields, grid
from headgate_lab.report.figures.panel import Panel, draw, lines, name
from headgate_lab.report.runs import ReportError, Runs

VARIANT = ("network", "activation", "gradient_noise", "shift")
SERIES = ("method",)
# Below this accuracy a network of any size is no use, and would hide how the others differ.
WORST_SHOWN = 93.0
MEASURES = (("strength", "accuracy"), ("strength", "pruned"), ("params", "accuracy"))
# Panels side by side, and the inches of one.
COLUMNS, PANEL = 3, (3.65, 3.2)


def lenet(groups: Sequence[Runs]) -> Figure:
    """Three panels a variant of the network: accuracy and share pruned against strength, accuracy against size.

    A control that has no strength, such as a narrower network, stands in the last of them only; a variant of which no
    network has one has no others. A network that has died has no size; the last panel shows what the others are worth.
    """
    panels = []
    for variant, alike in by_fields(groups, VARIANT).items():
        known = {field: value for field, value in zip(VARIANT, variant, strict=True) if value is not None}
        panels += [(Panel(name(VARIANT, variant), alike, x, known), y) for x, y in MEASURES]
    if all(line.style == PRINTED for panel, y in panels for line in lines(panel, "lenet", y, SERIES)):
        raise ReportError("the records of lenet lack accuracy, pruned and params")
    shown = [(panel, y) for panel, y in panels if lines(panel, "lenet", y, SERIES)]
    figure, (laid,) = grid([len(shown)], COLUMNS, PANEL)
    for axes, (panel, y) in zip(laid, shown, strict=True):
        draw(axes, panel, "lenet", y, SERIES)
        if panel.x == "params":
            axes.set_ylim(bottom=max(WORST_SHOWN, axes.get_ylim()[0]))
    return figure
