"""What a run shows while it runs: a bar in a terminal, a line an epoch elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headgate_lab.engine.job import Job, Metrics
from headgate_lab.engine.run import Watch

if TYPE_CHECKING:
    from rich.progress import Progress

# Trainings of thousands of short epochs print a line only so often.
SECONDS_BETWEEN_LINES = 2.0


@contextmanager
def watching() -> Iterator[Watch]:
    """A bar for each training in a terminal; plain lines elsewhere, and where rich is not installed."""
    if not sys.stdout.isatty() or (bars := _bars()) is None:
        yield Lines()
        return
    with bars as progress:
        yield Bars(progress)


def _bars() -> Progress | None:
    """Bars, where they can be drawn. Machines that only train need no rich."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ModuleNotFoundError:
        return None
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    metrics = TextColumn("{task.fields[metrics]}")
    return None if console.is_dumb_terminal else Progress(*columns, metrics, console=console)


class Lines:
    """One line an epoch."""

    def begin(self, jobs: Sequence[Job], epochs: int, done: int) -> None:
        """Says what begins."""
        self.label, self.epochs, self.said = described(jobs), epochs, 0.0
        print(f"{self.label}: {'goes on after' if done else 'begins,'} {done or epochs} epochs", flush=True)

    def epoch(self, number: int, metrics: Sequence[Metrics]) -> None:
        """Says where the training is."""
        if number < self.epochs and time.monotonic() - self.said < SECONDS_BETWEEN_LINES and number > 1:
            return
        self.said = time.monotonic()
        print(f"{self.label}: epoch {number:>{len(str(self.epochs))}}/{self.epochs}  {means(metrics)}", flush=True)

    def end(self, jobs: Sequence[Job], final: Sequence[Metrics]) -> None:
        """Says what each run came to."""
        for job, metrics in zip(jobs, final, strict=True):
            print(f"{job}: {means([metrics])}", flush=True)


class Bars:
    """A bar for each training."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def begin(self, jobs: Sequence[Job], epochs: int, done: int) -> None:
        """Adds a bar."""
        self.task = self.progress.add_task(described(jobs), total=epochs, completed=done, metrics="")

    def epoch(self, number: int, metrics: Sequence[Metrics]) -> None:
        """Moves it."""
        self.progress.update(self.task, completed=number, metrics=means(metrics))

    def end(self, jobs: Sequence[Job], final: Sequence[Metrics]) -> None:
        """Leaves the result beside the full bar."""
        self.progress.update(self.task, metrics=means(final))


def described(jobs: Sequence[Job]) -> str:
    """The jobs of one training in a few words."""
    first = jobs[0]
    if len(jobs) == 1:
        return str(first)
    settings = dict.fromkeys(job.recipe.setting for job in jobs)
    what = first.recipe.setting if len(settings) == 1 else f"{len(settings)} settings"
    return f"{first.recipe.experiment} ({what}), {len(jobs)} runs"


def means(metrics: Sequence[Metrics]) -> str:
    """The mean of every metric that is a number, over the jobs that have one."""
    parts = []
    for name in dict.fromkeys(name for values in metrics for name in values):
        numbers = [value for values in metrics if isinstance(value := values.get(name), int | float)]
        if numbers:
            parts.append(f"{name.replace('_', ' ')} {sum(numbers) / len(numbers):.4g}")
    return "  ".join(parts)
