"""Writing files that are either whole or not there."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Writes `content` to `path` in one move: whoever looks sees the old file or the new one, never half of one."""
    part = _part(path)
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def why_not_writable(path: Path) -> str | None:
    """Why a file cannot be written at `path`, or None if it can. Tries it out with an empty file beside it."""
    try:
        if path.is_dir():
            return f"{path} is a folder"
        if not path.parent.is_dir():
            return f"the folder {path.parent} does not exist"
        part = _part(path)
        part.touch()
        part.unlink()
    except OSError as error:
        return f"cannot write in {path.parent}: {error.strerror}"
    return None


def _part(path: Path) -> Path:
    """Where a file is written before it is moved into place: beside it, since only then is the move one step."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")
