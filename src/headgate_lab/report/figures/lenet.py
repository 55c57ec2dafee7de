"""Appendix E.1: LeNet-5 on MNIST, what strengths do, and what the network is worth at its size."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from headgate_lab.report.figures.drawing import by_fields, plain
from headgate_lab.report.figures.tradeoff import LABELS, Panel, draw, name
from headgate_lab.report.runs import ReportError, Runs

VARIANT = ("network", "activation", "gradient_noise", "shift")
# Below this accuracy a network of any size is no use, and would hide how the others differ.
WORST_SHOWN = 93.0
PANELS = (("strength", "accuracy"), ("strength", "pruned"), ("params", "accuracy"))


def lenet(groups: Sequence[Runs]) -> Figure:
    """A line of panels a variant of the network: accuracy and share pruned against strength, accuracy against size.

    A control that has no strength, such as a narrower network, stands in the last panel only. A network that has died
    has no size; the last panel shows what the others are worth.
    """
    found = by_fields(groups, VARIANT)
    figure = Figure(figsize=(15, 4 * len(found)), layout="constrained")
    drawn = False
    lines = figure.subplots(len(found), len(PANELS), squeeze=False)
    for line, (variant, alike) in zip(lines, found.items(), strict=True):
        known = {field: value for field, value in zip(VARIANT, variant, strict=True) if value is not None}
        for axes, (x, y) in zip(line, PANELS, strict=True):
            panel = Panel(name(VARIANT, variant), alike, x, known)
            drawn |= draw(axes, panel, "lenet", y, ("method",))
            plain(axes, title=panel.title, xlabel=LABELS.get(x, x), ylabel=LABELS.get(y, y))
            if axes.has_data():
                # Strengths are spread over decades, and 0 is one of them.
                axes.set_xscale("log") if x == "params" else axes.set_xscale("symlog", linthresh=0.01)
                if x == "params":
                    axes.set_ylim(bottom=max(WORST_SHOWN, axes.get_ylim()[0]), top=min(100.0, axes.get_ylim()[1]))
    if not drawn:
        raise ReportError("the records of lenet lack accuracy, pruned and params")
    return figure
