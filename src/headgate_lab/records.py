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


def environment(device: str, commit: str | None = None, precision: torch.dtype | None = None) -> dict[str, str]:
    """What a run was made with: torch, the device in words, the commit, which is git's unless given.

    And the precision, if one was asked for.
    """
    found = {"torch": torch.__version__, "device": device_name(device), "commit": commit or _git_commit()}
    return found if precision is None else {**found, "precision": str(precision).removeprefix("torch.")}


def device_name(device: str) -> str:
    """What a reader knows the device by."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def checkout_commit() -> str | None:
    """The commit of the checkout that this code lies in; None where it is installed, or git is not there."""
    here = Path(__file__)
    # A package installed inside somebody's repository is no part of it.
    if _git("ls-files", "--error-unmatch", here.name, folder=here.parent) is None:
        return None
    return _git("rev-parse", "HEAD", folder=here.parent)


def _git_commit() -> str:
    if (commit := _git("rev-parse", "HEAD", folder=Path())) is None:
        raise SystemExit("no git repository here: name the commit with --commit")
    return commit


def _git(*arguments: str, folder: Path) -> str | None:
    """What git answers in a folder; None if it refuses or is not installed."""
    try:
        answer = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return None if answer.returncode else answer.stdout.strip()
