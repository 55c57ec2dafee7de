"""The demo's picture: the channels of every layer before and after."""

from __future__ import annotations

import io

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headgate_lab.pruning_outcome import Outcome

FULL, SMALL, CONTROL = "0.85", "tab:blue", "0.25"


def picture(outcome: Outcome) -> bytes:
    """A PNG: left the width of every layer before and after, with the control's as a mark; right what it costs."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    widths, costs = figure.subplots(1, 2, width_ratios=(5, 3))
    _draw_widths(widths, outcome)
    _draw_costs(costs, outcome)
    for axes in (widths, costs):
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.tick_params(bottom=False, labelbottom=False, left=False)
        axes.invert_yaxis()
    # Matplotlib lists lines before bars; the order of the table reads better.
    mark, before, after = widths.get_legend_handles_labels()[0]
    figure.legend(handles=[before, after, mark], loc="outside lower center", ncols=3, frameon=False, markerscale=0.5)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=150)
    return image.getvalue()


def _draw_widths(axes: Axes, outcome: Outcome) -> None:
    names = list(outcome.full.widths)
    full = [outcome.full.widths[name] for name in names]
    small = [outcome.small.widths.get(name, 0) for name in names]
    control = [outcome.control.widths[name] for name in names]
    places = range(len(names))
    axes.barh(places, full, color=FULL, label=f"before: {outcome.full.accuracy:.1%} (without gates)")
    axes.barh(places, small, color=SMALL, label=f"compacted: {outcome.small.accuracy:.1%}")
    label = f"{outcome.control.name}: {outcome.control.accuracy:.1%}"
    axes.plot(control, places, "|", color=CONTROL, markersize=20, markeredgewidth=2, label=label)
    for place, before, after in zip(places, full, small, strict=True):
        axes.text(before + 0.6, place, f"{after} of {before}", va="center", fontsize=9)
    axes.set_yticks(places, names)
    axes.set_xlim(0, max(full) * 1.2)
    axes.set_title("Channels each layer writes", loc="left")


def _draw_costs(axes: Axes, outcome: Outcome) -> None:
    full, small, control = outcome.full, outcome.small, outcome.control
    shares = {
        "parameters": (small.params / full.params, control.params / full.params),
        "MACs": (small.macs / full.macs, control.macs / full.macs),
        "latency": (small.latency_ms / full.latency_ms, control.latency_ms / full.latency_ms),
        "file": (small.file_bytes / full.file_bytes, control.file_bytes / full.file_bytes),
    }
    places = range(len(shares))
    axes.barh(places, [1.0] * len(shares), color=FULL)
    axes.barh(places, [ours for ours, _ in shares.values()], color=SMALL)
    axes.plot([other for _, other in shares.values()], places, "|", color=CONTROL, markersize=28, markeredgewidth=2)
    for place, (ours, _) in zip(places, shares.values(), strict=True):
        axes.text(1.03, place, f"{ours:.0%}", va="center", fontsize=9)
    axes.set_yticks(places, list(shares))
    axes.set_xlim(0, 1.2)
    axes.set_title("What is left", loc="left")
