"""Runs jobs: skips what is finished, goes on with what was interrupted, records what ends."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from headgate_lab.engine.checkpoint import Progress, begun, checkpoint_path, load_checkpoint, save_checkpoint
from headgate_lab.engine.job import FAILED, InStages, Job, Metrics, Training
from headgate_lab.engine.precision import precision_on
from headgate_lab.engine.record import RECORD, read_run, write_run
from headgate_lab.files import remove

# A checkpoint costs little, but an epoch may cost less.
SECONDS_BETWEEN_CHECKPOINTS = 15.0
# What saving takes of the time, at most: the state of large networks side by side is a gigabyte.
SAVING = 0.02


class Watch(Protocol):
    """Told what happens, as it happens."""

    def begin(self, jobs: Sequence[Job], epochs: int, done: int) -> None:
        """A training of these jobs begins, or goes on after `done` epochs."""

    def epoch(self, number: int, metrics: Sequence[Metrics]) -> None:
        """Epoch `number`, counted from 1, is over."""

    def end(self, jobs: Sequence[Job], final: Sequence[Metrics]) -> None:
        """The training is over and its records are written."""


@dataclass(frozen=True)
class Place:
    """Where runs happen and where they are kept.

    `seconds_between_checkpoints` is the least; 0: one after every epoch, however long it takes.
    """

    out: Path
    device: torch.device
    environment: Mapping[str, str]
    seconds_between_checkpoints: float = SECONDS_BETWEEN_CHECKPOINTS

    def seconds_before_the_next(self, took: float) -> float:
        """How long to wait after a checkpoint that took so many seconds."""
        least = self.seconds_between_checkpoints
        return max(least, took / SAVING) if least else 0.0


@dataclass(frozen=True)
class Failure:
    """A run that did not end well."""

    job: Job
    reason: str

    def __str__(self) -> str:
        return f"{self.job}: {self.reason}"


def run(
    jobs: Sequence[Job], place: Place, watch: Watch, *, together: int = 1, until: float = math.inf
) -> list[Failure]:
    """Runs what is not finished, up to `together` jobs of a cohort side by side, and returns what failed.

    Trainings that have a checkpoint come first and go on as they were, however many there were side by side.
    No epoch begins that would end after `until`, on the clock of `time.monotonic`, if it took as long as the one
    before: what is unfinished then has its checkpoint, and goes on when it is run again.

    Raises:
        CheckpointError, RecordError: a file of an earlier run is damaged.
        OSError: something cannot be written; what was written before stays whole.
    """
    failures: list[Failure] = []
    for batch in _to_run(list(dict.fromkeys(jobs)), place.out, together):
        failed = None if time.monotonic() >= until else _run_together(batch, place, watch, until)
        if failed is None:
            break
        failures += failed
    return failures


def _to_run(jobs: Sequence[Job], out: Path, together: int) -> list[list[Job]]:
    """What was begun, farthest first, then what was not.

    Of a job that several checkpoints are of, the farthest counts. Those whose records are all there are removed.
    """
    left, batch_list = dict.fromkeys(job for job in jobs if not is_finished(job, out)), list[list[Job]]()
    for batch in begun(jobs, out):
        if left.keys() & batch:
            batch_list.append(batch)
            left = dict.fromkeys(job for job in left if job not in batch)
        elif all(is_finished(job, out) for job in batch):
            remove(checkpoint_path(out, batch))
    return batch_list + batches(list(left), together)


def is_finished(job: Job, out: Path) -> bool:
    """Whether the run has its record.

    Raises:
        RecordError: what is there is damaged.
    """
    path = job.folder(out) / RECORD
    return path.exists() and bool(read_run(path))


def batches(jobs: Sequence[Job], together: int) -> list[list[Job]]:
    """Jobs of equal cohorts in lists of at most `together`, in the order given."""
    cohorts: dict[Hashable, list[Job]] = {}
    for job in jobs:
        cohorts.setdefault((type(job.recipe), job.recipe.epochs, job.recipe.cohort), []).append(job)
    return [cohort[i : i + together] for cohort in cohorts.values() for i in range(0, len(cohort), together)]


def _run_together(jobs: list[Job], place: Place, watch: Watch, until: float) -> list[Failure] | None:
    """What failed; None if there was no time to end."""
    epochs, path = jobs[0].recipe.epochs, checkpoint_path(place.out, jobs)
    training = jobs[0].recipe.start(jobs, place.device)
    precision = str(precision_on(place.device)).removeprefix("torch.") if jobs[0].recipe.takes_precision else ""
    progress = load_checkpoint(path, training, place.device, precision)
    watch.begin(jobs, epochs, len(progress.epochs))
    reasons = _reasons(progress.epochs)
    saved, wait, took = time.monotonic(), place.seconds_between_checkpoints, 0.0
    while len(progress.epochs) < epochs and len(reasons) < len(jobs):
        if (began := time.monotonic()) + took > until:
            save_checkpoint(path, jobs, training, progress)
            return None
        with _timed(progress, _begun_stage(training, progress)):
            progress.epochs.append(training.epoch())
        reasons = _reasons(progress.epochs)
        watch.epoch(len(progress.epochs), progress.epochs[-1])
        took = (now := time.monotonic()) - began
        if now - saved >= wait and len(progress.epochs) < epochs:
            save_checkpoint(path, jobs, training, progress)
            saved = time.monotonic()
            wait = place.seconds_before_the_next(saved - now)
    without_result: dict[int, str] = {}
    if len(reasons) < len(jobs):
        try:
            without_result = _finish(jobs, training, progress, reasons, place, watch)
        except BaseException:  # what was learned does not depend on what is made of it
            with suppress(OSError):
                save_checkpoint(path, jobs, training, progress)
            raise
    if without_result:
        save_checkpoint(path, jobs, training, progress)
    else:
        remove(path)
    return [Failure(jobs[number], reason) for number, reason in (reasons | without_result).items()]


def _finish(
    jobs: list[Job],
    training: Training,
    progress: Progress,
    reasons: Mapping[int, str],
    place: Place,
    watch: Watch,
) -> dict[int, str]:
    """Records the results of jobs that have not failed; which of them have none, by number, and why.

    A record that is there already stays.
    """
    progress.seconds.pop("finish", None)
    with _timed(progress, "finish"):
        final = training.finish()
    failed = {number: str(metrics[FAILED]) for number, metrics in enumerate(final) if FAILED in metrics}
    alive = [number for number in range(len(jobs)) if number not in {*reasons, *failed}]
    for number in alive:
        if is_finished(jobs[number], place.out):
            continue
        try:
            write_run(
                place.out,
                jobs[number],
                epochs=[epoch[number] for epoch in progress.epochs],
                final=final[number],
                environment=place.environment,
                seconds=progress.seconds,
                networks=progress.networks,
                together=len(jobs),
            )
        except ValueError as error:  # which must not stop those beside it
            failed[number] = f"its results cannot be recorded: {error}"
    recorded = [number for number in alive if number not in failed]
    watch.end([jobs[number] for number in recorded], [final[number] for number in recorded])
    return failed


def _reasons(epochs: Sequence[Sequence[Metrics]]) -> dict[int, str]:
    """Which jobs, by number, have failed, and why."""
    found: dict[int, str] = {}
    for number, metrics in enumerate(epochs, start=1):
        for job, values in enumerate(metrics):
            loss = values.get("loss")
            if isinstance(loss, float) and not math.isfinite(loss):
                found.setdefault(job, f"the loss became {loss} in epoch {number}; try a smaller learning rate")
    return found


def _begun_stage(training: Training, progress: Progress) -> str:
    """The stage that the next epoch is in; what it begins with is made, in seconds of its own."""
    if not isinstance(training, InStages):
        return "train"
    stage = training.stage
    if progress.epochs and stage not in progress.networks:
        with _timed(progress, f"to {stage}"):
            training.turn()
    progress.networks[stage] = training.side_by_side
    return stage


@contextmanager
def _timed(progress: Progress, stage: str) -> Iterator[None]:
    """Adds the seconds spent inside to a stage."""
    started = time.perf_counter()
    yield
    progress.seconds[stage] = progress.seconds.get(stage, 0.0) + time.perf_counter() - started
