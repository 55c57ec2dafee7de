"""What `headgate dimension` shows in a terminal: the gates moving, and the table at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TypeAlias

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headgate_lab.dimension import DimensionConfig, Frame, Trace

Show: TypeAlias = Callable[[DimensionConfig, Frame], None]

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN_LINE_EVERY = 250


@contextmanager
def watching(console: Console, *, live: bool) -> Iterator[Show]:
    """Yields the function that shows a frame of a run: moving pictures if `live`, else a plain line now and then."""
    if not live:
        yield _print_line
        return
    latest: dict[DimensionConfig, Frame] = {}
    with Live(console=console, refresh_per_second=12) as screen:

        def show(config: DimensionConfig, frame: Frame) -> None:
            latest[config] = frame
            screen.update(Group(*(panel(*pair, ascii_only=console.options.ascii_only) for pair in latest.items())))

        yield show


def panel(config: DimensionConfig, frame: Frame, *, ascii_only: bool = False) -> Panel:
    """One run at one moment: the mask as a bar of blocks, the numbers, and how far the training is."""
    phase = "searching" if config.searching(frame.step) else "offset frozen, weights settle"
    numbers = Text.assemble(
        ("open ", "dim"), (f"{frame.open:>2}/{config.bottleneck}", "bold green"),
        ("   offset ", "dim"), f"{frame.offset:+.2f}",
        ("   error ", "dim"), f"{frame.error:.1e}",
        ("   step ", "dim"), f"{frame.step:>{len(str(config.steps))}}/{config.steps}",
    )  # fmt: skip
    progress = ProgressBar(total=config.steps, completed=frame.step, width=config.bottleneck)
    return Panel(
        Group(mask_bar(frame.mask, ascii_only=ascii_only), numbers, progress),
        title=f"{config.dimension} hidden factors, {config.bottleneck} channels",
        title_align="left",
        subtitle=Text(phase, style="dim"),
        subtitle_align="left",
        expand=False,
    )


def mask_bar(mask: Sequence[float], *, ascii_only: bool = False) -> Text:
    """One character per channel: a dot if it is closed, else a block as high as the mask (in ASCII a digit)."""
    heights = "123456789" if ascii_only else BLOCKS
    closed = "." if ascii_only else "·"
    bar = Text()
    for is_open, values in groupby(mask, lambda value: value > 0):
        if is_open:
            bar.append("".join(heights[min(int(value * len(heights)), len(heights) - 1)] for value in values), "green")
        else:
            bar.append(closed * len(list(values)), "dim")
    return bar


def table(traces: Sequence[Trace]) -> Table:
    """The outcome, one row per run; a dimension that was missed says so."""
    result = Table("true dimension", "found dimension", "reconstruction error", "seconds", "")
    for column in result.columns[:4]:
        column.justify = "right"
    for trace in traces:
        verdict = Text("exact", style="green") if trace.exact else Text("missed", style="bold red")
        result.add_row(
            str(trace.config.dimension),
            str(trace.last.open),
            f"{trace.last.error:.1e}",
            f"{trace.seconds:.1f}",
            verdict,
        )
    return result


def _print_line(config: DimensionConfig, frame: Frame) -> None:
    if frame.step % PLAIN_LINE_EVERY and frame.step != config.steps:
        return
    print(
        f"{config.dimension} factors: step {frame.step:>4}/{config.steps}  offset {frame.offset:+.2f}  "
        f"open {frame.open:>2}/{config.bottleneck}  error {frame.error:.1e}",
        flush=True,
    )
