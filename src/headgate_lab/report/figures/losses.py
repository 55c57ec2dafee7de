"""Fig. 7: the losses of every epoch."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from headgate_lab.report.figures.drawing import band, plain
from headgate_lab.report.runs import ReportError, Runs


def losses(groups: Sequence[Runs]) -> Figure:
    """A panel a recipe, in it every metric of the epochs whose name ends in `loss`."""
    found = [(group, names) for group in groups if (names := _losses(group))]
    if not found:
        raise ReportError("the records of stability lack the losses of every epoch")
    figure = Figure(figsize=(4.8 * len(found), 3.8), layout="constrained")
    for axes, (group, names) in zip(figure.subplots(1, len(found), squeeze=False)[0], found, strict=True):
        for number, name in enumerate(names):
            curves = group.curves(name)
            band(axes, range(1, len(curves[0]) + 1), curves, f"C{number}", name.replace("_", " "))
        plain(axes, title=group.setting, xlabel="epoch", ylabel="loss")
    return figure


def _losses(group: Runs) -> list[str]:
    names = dict.fromkeys(name for record in group.records for name in record["metrics"]["epochs"])
    return [name for name in names if name.endswith("loss")]
