"""Appendix E.3: how alike the features of a layer are, pair by pair."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from headgate_lab.report.figures.drawing import by_fields
from headgate_lab.report.runs import ReportError, Runs

KINDS = {"cka": "linear CKA", "rbf_cka": "CKA with Gaussian kernels"}


def likeness(groups: Sequence[Runs]) -> Figure:
    """A line of panels for each network and kind of CKA, a column a recipe, its first seed; all on one scale."""
    networks = list(by_fields((group for group in groups if any(map(group.final, KINDS))), ("network",)).values())
    if not networks:
        raise ReportError("the records of cka lack the matrices cka and rbf_cka")
    columns, lines = max(map(len, networks)), list(product(networks, KINDS))
    figure = Figure(figsize=(3.6 * columns + 0.8, 3.4 * len(lines)), layout="constrained")
    for panels, (alike, kind) in zip(figure.subplots(len(lines), columns, squeeze=False), lines, strict=True):
        shown = [_draw(axes, group, kind) for axes, group in zip(panels, alike, strict=False)]
        for axes in panels[len(alike) :]:
            axes.set_axis_off()
        if drawn := [image for image in shown if image is not None]:
            figure.colorbar(drawn[0], ax=panels.tolist(), label=KINDS[kind])
    return figure


def _draw(axes: Axes, group: Runs, kind: str) -> AxesImage | None:
    """The matrix, or that there is none."""
    matrices = group.final(kind)
    if not matrices:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "nothing to compare", transform=axes.transAxes, ha="center", color="0.5")
        return None
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.set_title(f"{group.setting}\n{len(matrices[0])} features", fontsize=8)
    return axes.imshow(np.array(matrices[0]), vmin=0, vmax=1, cmap="viridis")
