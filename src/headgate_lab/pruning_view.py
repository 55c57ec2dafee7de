"""What the demo shows in a terminal: the gates closing while the network learns, and the table at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headgate_lab.pruning import Bar, Frame, PruningConfig
from headgate_lab.pruning_outcome import Outcome

BAR_WIDTH = 32


@contextmanager
def watching(console: Console, config: PruningConfig, *, live: bool) -> Iterator[Callable[[Frame], None]]:
    """Yields the function that shows a frame: a moving picture if `live`, else a plain line."""
    if not live:
        yield lambda frame: print(line(config, frame), flush=True)
        return
    latest: dict[str, Frame] = {}
    with Live(console=console, refresh_per_second=8) as screen:

        def show(frame: Frame) -> None:
            latest[frame.run] = frame
            screen.update(Group(*(panel(config, frame, console.options.ascii_only) for frame in latest.values())))

        yield show


def line(config: PruningConfig, frame: Frame) -> str:
    """A frame in one plain line."""
    text = f"{frame.run}: epoch {frame.epoch:>{len(str(config.epochs))}}/{config.epochs}  loss {frame.loss:.3f}"
    text += f"  accuracy {frame.accuracy:.1%}"
    if frame.bars:
        text += f"  left: channels {frame.channels:.0%}, parameters {frame.params:.0%}  ({_phase(config, frame)})"
    return text


def panel(config: PruningConfig, frame: Frame, ascii_only: bool = False) -> Panel:
    """A network at one moment: the numbers, how far the training is and, if it has gates, a bar for each."""
    numbers = Text.assemble(
        ("epoch ", "dim"), f"{frame.epoch:>{len(str(config.epochs))}}/{config.epochs}",
        ("   loss ", "dim"), f"{frame.loss:.3f}",
        ("   test accuracy ", "dim"), (f"{frame.accuracy:.1%}", "bold"),
    )  # fmt: skip
    progress = ProgressBar(total=config.epochs, completed=frame.epoch, width=BAR_WIDTH)
    parts: list[RenderableType] = [numbers]
    if frame.bars:
        left = Text.assemble(
            ("left: channels ", "dim"), (f"{frame.channels:.0%}", "bold green"),
            (", parameters ", "dim"), (f"{frame.params:.0%}", "bold green"),
        )  # fmt: skip
        parts += [left, bars(frame.bars, ascii_only)]
    return Panel(
        # A progress bar does not end its line, so it comes last.
        Group(*parts, progress),
        title=frame.run,
        title_align="left",
        subtitle=Text(_phase(config, frame), style="dim") if frame.bars else None,
        subtitle_align="left",
        expand=False,
    )


def bars(gates: Sequence[Bar], ascii_only: bool = False) -> Table:
    """One row per gate: its name, a bar of what is open, and the count."""
    full, empty = ("#", ".") if ascii_only else ("█", "·")
    table = Table.grid(padding=(0, 2))
    for gate in gates:
        filled = -(-gate.open * BAR_WIDTH // gate.total)
        bar = Text.assemble((full * filled, "green"), (empty * (BAR_WIDTH - filled), "dim"))
        table.add_row(gate.name, bar, f"{gate.open:>3}/{gate.total}")
    return table


def results(outcome: Outcome) -> Table:
    """The networks side by side; ratios are to the full one."""
    full = outcome.full
    table = Table("network", "accuracy", "parameters", "MACs", "latency", "file", box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in outcome.rows:
        table.add_row(
            row.name,
            f"{row.accuracy:.1%}",
            f"{row.params:,}{_share(row.params, full.params)}",
            f"{row.macs / 1e6:.2f} M{_share(row.macs, full.macs)}",
            f"{row.latency_ms:.2f} ± {row.latency_spread_ms:.2f} ms",
            f"{row.file_bytes / 1000:,.0f} kB",
            style="bold" if row is outcome.small else None,
        )
    return table


def verdict(outcome: Outcome) -> str:
    """What the table says, in plain sentences, whichever way it went."""
    small, control, images = outcome.small, outcome.control, outcome.images
    ahead = round((small.accuracy - control.accuracy) * images)
    if ahead == 0:
        against = f"gets as many of the {images} test images right as"
    else:
        against = f"gets {abs(ahead)} {'more' if ahead > 0 else 'fewer'} of the {images} test images right than"
    return (
        f"Accuracy is on {images} test images; latency is for {outcome.batch} images on one thread of this CPU.\n"
        f"Compaction changed no output by more than {outcome.difference:.0e} of the largest.\n"
        f"The compacted network {against} the narrower one, the control,\n"
        f"which has {control.params / small.params:.2f}x its parameters. "
        "With one seed, a few images either way are chance."
    )


def lines_to_add(config: PruningConfig) -> str:
    """The lines of headgate in a training script, with this run's settings."""
    lines = [
        ("import headgate as hg", ""),
        ("", ""),
        ("hg.insert_gates_(model, example)", "once, before the optimizer is made"),
        (f"groups = hg.param_groups(model, lr={config.lr:g}, weight_decay={config.weight_decay:g})", ""),
        ("optimizer = torch.optim.SGD(groups, momentum=0.9)", "or any other"),
        (f"budget = hg.Budget(model, example, params={config.params:g}, steps=steps)", "all steps of the training"),
        ("", ""),
        ("loss = task_loss + budget.penalty()", "every step"),
        ("budget.step()", "after optimizer.step()"),
        ("", ""),
        ("small = hg.compact(model)", "an ordinary module of your class, equal outputs"),
        ('hg.save(small, "small.safetensors")', 'back again: hg.load("small.safetensors", YourModel)'),
    ]
    return "\n".join(f"    {code:<50}{note and '  # ' + note}".rstrip() for code, note in lines)


def _phase(config: PruningConfig, frame: Frame) -> str:
    return config.phase(frame.epoch - 1)


def _share(value: int, full: int) -> str:
    return "" if value == full else f" ({value / full:.0%})"
