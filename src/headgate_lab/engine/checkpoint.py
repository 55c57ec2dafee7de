"""The state of an unfinished training on disk: one file, replaced whole."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from headgate_lab.engine.job import Job, Metrics, Training
from headgate_lab.files import write_whole


class CheckpointError(Exception):
    """A checkpoint cannot be used; the message says what to do."""


@dataclass
class Progress:
    """What a training has behind it: the metrics of its epochs, by job, and by stage its seconds and networks.

    `precision` is what it computes in, where a recipe leaves that open.
    """

    precision: str = ""
    epochs: list[list[Metrics]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    networks: dict[str, int] = field(default_factory=dict)


def checkpoint_path(out: Path, jobs: Sequence[Job]) -> Path:
    """Where the state of a training of these jobs is kept."""
    together = hashlib.sha256(" ".join(job.name for job in jobs).encode()).hexdigest()[:12]
    return out / jobs[0].recipe.experiment / f"unfinished-{together}.pt"


def begun(jobs: Sequence[Job], out: Path) -> list[list[Job]]:
    """Trainings of which there is a checkpoint and whose jobs are all among these: they can go on as they were.

    Those with the most epochs behind them come first.

    Raises:
        CheckpointError: a checkpoint cannot be read.
    """
    by_name = {job.name: job for job in jobs}
    paths = (out / experiment for experiment in dict.fromkeys(job.recipe.experiment for job in jobs))
    found = [_looked_into(file) for path in paths for file in sorted(path.glob("unfinished-*.pt"))]
    farthest = sorted(found, key=lambda one: -one[1])
    return [[by_name[name] for name in names] for names, _ in farthest if names and by_name.keys() >= set(names)]


def _looked_into(path: Path) -> tuple[list[str], int]:
    """The names of the jobs whose state is in a file, none if it is of older code, and their epochs."""
    try:
        # Tensors stay where they are: they may be a gigabyte, and of a device that is not here.
        state = torch.load(path, weights_only=True, mmap=True, map_location="meta")
        return list(state.get("jobs", ())), len(state.get("epochs", ()))
    except Exception as error:
        raise _unusable(path, error) from error


def save_checkpoint(path: Path, jobs: Sequence[Job], training: Training, progress: Progress) -> None:
    """Writes the state, whole or not at all."""
    buffer = io.BytesIO()
    state = {
        "jobs": [job.name for job in jobs],
        "precision": progress.precision,
        "epochs": [[dict(metrics) for metrics in epoch] for epoch in progress.epochs],
        "seconds": dict(progress.seconds),
        "networks": dict(progress.networks),
        "training": training.state_dict(),
    }
    torch.save(state, buffer)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, buffer.getvalue())


def load_checkpoint(path: Path, training: Training, device: torch.device, precision: str = "") -> Progress:
    """Puts the training where the file left it and says what it has behind it; a fresh start if there is no file.

    Raises:
        CheckpointError: the file is damaged, belongs to other code, or has learned in another precision.
    """
    if not path.exists():
        return Progress(precision)
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        if (before := state.get("precision", precision)) == precision:
            training.load_state_dict(state["training"])
            return Progress(precision, state["epochs"], state["seconds"], state.get("networks", {}))
    except Exception as error:
        raise _unusable(path, error) from error
    raise CheckpointError(
        f"{path} has learned in {before}, not in {precision}: go on with --precision {before}, or remove it to start "
        "that training anew"
    )


def _unusable(path: Path, error: Exception) -> CheckpointError:
    first = (str(error).strip().splitlines() or [""])[0]
    return CheckpointError(f"cannot go on from {path} ({first}); remove it to start that training anew")
