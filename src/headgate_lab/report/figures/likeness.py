"""Appendix E.3: how alike the features of a layer are, pair by pair."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from headgate_lab.report.figures.drawing import by_fields, grid
from headgate_lab.report.runs import ReportError, Runs

KINDS = {"cka": "linear CKA", "rbf_cka": "CKA with Gaussian kernels"}
# Panels side by side, and the inches of one.
COLUMNS, PANEL = 3, (3.4, 3.2)
# Letters that fit on a line of a title.
FITTING = 28


def likeness(groups: Sequence[Runs]) -> Figure:
    """Panels for each network and kind of CKA, one a recipe, its first seed; all on one scale."""
    networks = list(by_fields((group for group in groups if any(map(group.final, KINDS))), ("network",)).values())
    if not networks:
        raise ReportError("the records of cka lack the matrices cka and rbf_cka")
    parts = list(product(networks, KINDS))
    figure, laid = grid([len(alike) for alike, _ in parts], COLUMNS, PANEL)
    for panels, (alike, kind) in zip(laid, parts, strict=True):
        shown = [_draw(axes, group, kind) for axes, group in zip(panels, alike, strict=True)]
        if drawn := [image for image in shown if image is not None]:
            figure.colorbar(drawn[0], ax=panels, label=KINDS[kind])
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
    axes.set_title(f"{fill(group.setting, FITTING)}\n{len(matrices[0])} features", fontsize=10)
    return axes.imshow(np.array(matrices[0]), vmin=0, vmax=1, cmap="viridis")
