"""Appendix E4: pruned architectures, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headgate_lab.outline import Outline
from headgate_lab.report.figures.drawing import grid, plain, share_legend
from headgate_lab.report.runs import ReportError, Runs

BEFORE, INNER, WRITING, GONE = "0.88", "tab:blue", "tab:orange", "tab:red"
# More layers than these have no room for their names: the parts of the network are named instead.
NAMED = 40
# What legends do not list.
UNTOLD = "_"
INCHES_A_LAYER, NARROWEST, WIDEST = 0.16, 6.0, 24.0
LEGEND_COLUMNS = 3


def architecture(groups: Sequence[Runs]) -> Figure:
    """A panel a network, the first seed of each recipe that has its layers recorded."""
    found = [(group.setting, _outline(group)) for group in groups if group.finals("layers", "streams")[0]]
    if not found:
        raise ReportError("the records of architecture lack layers")
    longest = max(len(outline.layers) for _, outline in found)
    figure, (panels,) = grid([len(found)], 1, (_width(longest), 3.0))
    for axes, (setting, outline) in zip(panels, found, strict=True):
        draw(axes, outline, setting)
    share_legend(figure, panels, LEGEND_COLUMNS)
    return figure


def portrait(outline: Outline, title: str) -> Figure:
    """One network by itself."""
    figure, ((axes,),) = grid([1], 1, (_width(len(outline.layers)), 4.0))
    draw(axes, outline, title)
    share_legend(figure, [axes], LEGEND_COLUMNS)
    return figure


def draw(axes: Axes, outline: Outline, title: str) -> None:
    """A bar a layer, grey before and coloured after; lines for streams; what is gone is shaded."""
    layers = outline.layers
    places = range(len(layers))
    axes.bar(places, [layer.before for layer in layers], color=BEFORE, width=0.9, label="before")
    for label, color, writes in (("left", INNER, False), ("left, written into a stream", WRITING, True)):
        here = [place for place in places if (layers[place].stream is not None) == writes]
        if here:
            axes.bar(here, [layers[place].after for place in here], color=color, width=0.9, label=label)
    for number, (name, before, after) in enumerate(outline.streams):
        within = [place for place in places if layers[place].stream == name]
        ends = (min(within) - 0.5, max(within) + 0.5)
        axes.hlines([before], *ends, color="0.5", linestyle=":", linewidth=1)
        axes.hlines([after], *ends, color="black", linewidth=1.5, label="stream" if number == 0 else UNTOLD)
    for number, path in enumerate(outline.gone):
        here = [place for place in places if f"{layers[place].path}.".startswith(f"{path}.")]
        label = "gone" if number == 0 else UNTOLD
        axes.axvspan(min(here) - 0.5, max(here) + 0.5, color=GONE, alpha=0.25, linewidth=0, label=label)
    _name_layers(axes, [layer.path for layer in layers])
    axes.set_xlim(-0.5, len(layers) - 0.5)
    plain(axes, title=title, ylabel="channels")


def _name_layers(axes: Axes, paths: Sequence[str]) -> None:
    if len(paths) <= NAMED:
        axes.set_xticks(range(len(paths)), paths, rotation=90, fontsize=7)
        return
    parts = [path.partition(".")[0] for path in paths]
    first = [place for place, part in enumerate(parts) if place == 0 or parts[place - 1] != part]
    axes.set_xticks(first, [parts[place] for place in first], rotation=30, ha="right", fontsize=7)


def _outline(group: Runs) -> Outline:
    layers, streams = group.finals("layers", "streams")
    return Outline.from_json(layers[0], streams[0])


def _width(layers: int) -> float:
    return min(WIDEST, max(NARROWEST, 2 + INCHES_A_LAYER * layers))
