"""Appendix E.3: how alike the features of a layer are, pair by pair."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headgate_lab.report.runs import ReportError, Runs

KINDS = {"cka": "linear CKA", "rbf_cka": "CKA with Gaussian kernels"}


def likeness(groups: Sequence[Runs]) -> Figure:
    """A column a recipe, its first seed; a line of panels a kind of CKA, all on one scale."""
    found = [group for group in groups if any(group.final(kind) for kind in KINDS)]
    if not found:
        raise ReportError("the records of cka lack the matrices cka and rbf_cka")
    figure = Figure(figsize=(3.6 * len(found) + 0.8, 3.4 * len(KINDS)), layout="constrained")
    panels = figure.subplots(len(KINDS), len(found), squeeze=False)
    for line, (kind, name) in zip(panels, KINDS.items(), strict=True):
        shown = None
        for axes, group in zip(line, found, strict=True):
            if matrices := group.final(kind):
                shown = axes.imshow(np.array(matrices[0]), vmin=0, vmax=1, cmap="viridis")
                for axis in (axes.xaxis, axes.yaxis):
                    axis.set_major_locator(MaxNLocator("auto", integer=True))
                axes.set_title(f"{group.setting}\n{len(matrices[0])} features", fontsize=8)
            else:
                axes.set_axis_off()
                axes.text(0.5, 0.5, "nothing to compare", transform=axes.transAxes, ha="center", color="0.5")
        if shown is not None:
            figure.colorbar(shown, ax=line.tolist(), label=name)
    return figure
