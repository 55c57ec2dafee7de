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
    """What a training has behind it: the metrics of its epochs, by job, and by stage its seconds and networks."""

    epochs: list[list[Metrics]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    networks: dict[str, int] = field(default_factory=dict)


def checkpoint_path(out: Path, jobs: Sequence[Job]) -> Path:
    """Where the state of a training of these jobs is kept."""
    together = hashlib.sha256(" ".join(job.name for job in jobs).encode()).hexdigest()[:12]
    return out / jobs[0].recipe.experiment / f"unfinished-{together}.pt"


def save_checkpoint(path: Path, training: Training, progress: Progress) -> None:
    """Writes the state, whole or not at all."""
    buffer = io.BytesIO()
    state = {
        "epochs": [[dict(metrics) for metrics in epoch] for epoch in progress.epochs],
        "seconds": dict(progress.seconds),
        "networks": dict(progress.networks),
        "training": training.state_dict(),
    }
    torch.save(state, buffer)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, buffer.getvalue())


def load_checkpoint(path: Path, training: Training, device: torch.device) -> Progress:
    """Puts the training where the file left it and says what it has behind it; a fresh start if there is no file.

    Raises:
        CheckpointError: the file is damaged or belongs to other code.
    """
    if not path.exists():
        return Progress()
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        training.load_state_dict(state["training"])
        return Progress(state["epochs"], state["seconds"], state.get("networks", {}))
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise CheckpointError(f"cannot go on from {path} ({first}); remove it to start that training anew") from error
