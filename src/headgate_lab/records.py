"""Writing a record: one run as JSON, the only place a number in the docs may come from."""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from headgate_lab.files import write_whole


def write_record(
    path: Path,
    *,
    recipe: str,
    config: dict[str, Any],
    metrics: dict[str, Any],
    headline: str,
    duration_s: float,
    device: str = "cpu",
    commit: str | None = None,
    seed: int = 0,
) -> None:
    """Writes one run to `path`, whole or not at all; folders are made. The commit is git's unless given."""
    record = {
        "recipe": recipe,
        "config": config,
        "seed": seed,
        "metrics": metrics,
        "environment": environment(device, commit),
        "duration_s": round(duration_s, 1),
        "headline": headline,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps(record, indent=1) + "\n").encode())


def environment(device: str, commit: str | None = None) -> dict[str, str]:
    """What a run was made with: torch, the device in words, and the commit, which is git's unless given."""
    return {"torch": torch.__version__, "device": device_name(device), "commit": commit or _git_commit()}


def device_name(device: str) -> str:
    """What a reader knows the device by."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def _git_commit() -> str:
    answer = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SystemExit("no git repository here: name the commit with --commit")
    return answer.stdout.strip()
