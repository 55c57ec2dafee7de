"""Fig. 7: the losses of every epoch, and what the method moves meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headgate_lab.report.figures.drawing import band, by_fields, grid, plain, share_legend
from headgate_lab.report.runs import ReportError, Runs

# Means over all gates, masks or scales of a network.
MOVED = ("offset", "mask", "scale")
# Panels side by side, and the inches of one.
COLUMNS, PANEL = 2, (5.0, 3.2)
# The stages as configs name their epochs; pruning stays white.
SHADES = {"length": ("training", "C0"), "prune": (None, "white"), "finetune": ("fine-tuning", "C3")}


def losses(groups: Sequence[Runs]) -> Figure:
    """Panels for each network, one a recipe: every metric of the epochs that ends in `loss`; stages shaded."""
    networks = list(by_fields((group for group in groups if _losses(group)), ("network",)).values())
    if not networks:
        raise ReportError("the records of stability lack the losses of every epoch")
    figure, laid = grid([len(alike) for alike in networks], COLUMNS, PANEL)
    for panels, alike in zip(laid, networks, strict=True):
        for axes, group in zip(panels, alike, strict=True):
            _draw(axes, group)
    share_legend(figure, [axes for panels in laid for axes in panels], columns=4)
    return figure


def _draw(axes: Axes, group: Runs) -> None:
    for number, name in enumerate(_losses(group)):
        curves = group.curves(name)
        band(axes, range(1, len(curves[0]) + 1), curves, f"C{number}", name.replace("_", " "))
    _shade(axes, group)
    _draw_moved(axes, group)
    plain(axes, title=group.setting, xlabel="epoch", ylabel="loss")


def _shade(axes: Axes, group: Runs) -> None:
    """Training blue, fine-tuning red, as in the paper; a training without stages is left as it is."""
    parts = {name: group.config.get(name, 0) for name in SHADES}
    if not parts["finetune"]:
        return
    start = 0.5
    for name, epochs in parts.items():
        label, color = SHADES[name]
        axes.axvspan(start, start + epochs, color=color, alpha=0.12, linewidth=0, label=label)
        start += epochs


def _draw_moved(axes: Axes, group: Runs) -> None:
    """On an axis of its own, dashed."""
    moved = [(name, curves) for name in MOVED if (curves := group.curves(name))]
    if not moved:
        return
    beside = axes.twinx()
    for name, curves in moved:
        band(beside, range(1, len(curves[0]) + 1), curves, "C2", f"mean {name}")
        beside.lines[-1].set_linestyle("--")
    beside.spines[["top"]].set_visible(False)
    beside.set_ylabel(", ".join(f"mean {name}" for name, _ in moved), color="C2")


def _losses(group: Runs) -> list[str]:
    names = dict.fromkeys(name for record in group.records for name in record["metrics"]["epochs"])
    return [name for name in names if name.endswith("loss")]
