"""The picture of `headgate dimension`: how the gates closed, and where they ended."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headgate_lab.dimension import Trace


def picture(traces: Sequence[Trace]) -> bytes:
    """A PNG. Left: open channels against training steps, the true dimension dashed. Right: each final mask."""
    figure = Figure(figsize=(11, max(4.2, 1.4 * len(traces))), layout="constrained")
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(3, 2))[0]
    path = left.subplots()
    for index, trace in enumerate(traces):
        _draw_path(path, trace, f"C{index}")
    path.set(title="Bottleneck dimension", xlabel="step", ylabel="open channels", ylim=(0, None))
    path.margins(x=0)
    path.legend(frameon=False)
    path.spines[["top", "right"]].set_visible(False)
    masks = right.subplots(len(traces), sharex=True, squeeze=False)[:, 0]
    for index, (axes, trace) in enumerate(zip(masks, traces, strict=True)):
        _draw_mask(axes, trace, f"C{index}")
    masks[0].set_title("Final masks")
    masks[-1].set_xlabel("channel")
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=150)
    return image.getvalue()


def _draw_path(axes: Axes, trace: Trace, color: str) -> None:
    label = f"{trace.config.dimension} hidden factors: found {trace.last.open}"
    steps = [frame.step for frame in trace.frames]
    axes.step(steps, [frame.open for frame in trace.frames], where="post", label=label, color=color)
    axes.axhline(trace.config.dimension, linestyle="--", linewidth=1, color=color)


def _draw_mask(axes: Axes, trace: Trace, color: str) -> None:
    """Bars for open channels, grey dots for closed ones: a faint mask must not look like a closed one."""
    mask = trace.last.mask
    channels = range(1, len(mask) + 1)
    closed = [channel for channel, value in zip(channels, mask, strict=True) if not value > 0]
    axes.bar(channels, mask, color=color)
    (dots,) = axes.plot(closed, [0.0] * len(closed), ".", color="0.75", markersize=4, clip_on=False)
    # With no closed channel the dots have no extent, which would upset the layout.
    dots.set_in_layout(False)
    axes.set(ylim=(0, 1), ylabel=f"{trace.config.dimension} factors")
    axes.margins(x=0.01)
    axes.spines[["top", "right"]].set_visible(False)
