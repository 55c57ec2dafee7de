"""A finished run on disk: one JSON file, whole or not there."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headgate_lab.engine.job import Job, Metric, Metrics
from headgate_lab.files import write_whole

RECORD = "record.json"
# What JSON holds under each key of a record.
KINDS: dict[str, type] = {
    "experiment": str,
    "recipe": str,
    "setting": str,
    "config": dict,
    "seed": int,
    "metrics": dict,
    "environment": dict,
    "seconds": dict,
    "together": int,
}


class RecordError(Exception):
    """A file that should be a record is none; the message names it."""


def write_run(
    out: Path,
    job: Job,
    *,
    epochs: Sequence[Metrics],
    final: Metrics,
    environment: Mapping[str, str],
    seconds: Mapping[str, float],
    together: int,
    networks: Mapping[str, int] | None = None,
) -> Path:
    """Writes the record of a finished run into its folder below `out`; metrics of epochs become columns.

    What is no finite number in an epoch, of a network that diverged, is None there; among results it may not be.
    `seconds` is the time by stage of the whole training, in which `together` jobs ran side by side. Where they shared
    networks in some stages, `networks` says how many there were in each.

    Raises:
        OSError: the file cannot be written.
        ValueError: a result is no finite number.
    """
    names = list(dict.fromkeys(name for metrics in epochs for name in metrics))
    record = {
        "experiment": job.recipe.experiment,
        "recipe": type(job.recipe).__name__,
        "setting": job.recipe.setting,
        "config": job.recipe.config(),
        "seed": job.seed,
        "metrics": {
            "epochs": {name: [_finite(metrics.get(name)) for metrics in epochs] for name in names},
            "final": dict(final),
        },
        "environment": dict(environment),
        "seconds": {stage: round(spent, 2) for stage, spent in seconds.items()},
        "together": together,
    }
    if networks:
        record["networks"] = dict(networks)
    path = job.folder(out) / RECORD
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps(record, allow_nan=False) + "\n").encode())
    return path


def _finite(value: Metric) -> Metric:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_run(path: Path) -> dict[str, Any]:
    """The record in a file.

    Raises:
        RecordError: it cannot be read, or is not a record of a run.
    """
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} cannot be read: {error}; if it is damaged, remove it to run that again") from error
    if (wrong := _wrong(record)) is not None:
        raise RecordError(f"{path} {wrong}: it is not the record of a run; remove it to run that again")
    return record


def _wrong(record: Any) -> str | None:
    """What keeps this from being a record, if anything does."""
    if not isinstance(record, dict):
        return "holds no object"
    if missing := KINDS.keys() - record.keys():
        return f"lacks {', '.join(sorted(missing))}"
    for name, kind in KINDS.items():
        if type(record[name]) is not kind:
            return f"holds {type(record[name]).__name__} instead of {kind.__name__} under {name}"
    parts = record["metrics"].get("epochs"), record["metrics"].get("final")
    return None if all(isinstance(part, dict) for part in parts) else "has metrics without epochs or final"


def read_runs(out: Path, experiment: str) -> list[dict[str, Any]]:
    """All records of an experiment below `out`, in a fixed order."""
    return [read_run(path) for path in sorted((out / experiment).glob(f"*/{RECORD}"))]
