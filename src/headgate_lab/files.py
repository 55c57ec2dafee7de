"""Writing files that are either whole or not there."""

from __future__ import annotations

import glob
import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Writes `content` to `path` in one move: whoever looks sees the old file or the new one, never half of one.

    A link stays, and what it points to is written.

    Raises:
        OSError: nothing can be written there, or something is there that is not a regular file.
    """
    place = _place(path)
    if _is_no_file(place):
        raise OSError(f"{path} is not a regular file")
    part = _part(place)
    try:
        part.write_bytes(content)
        part.replace(place)
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error  # as when a disk is full
    finally:
        part.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Removes what `write_whole` wrote, if it is there, and what it left where it was killed."""
    path.unlink(missing_ok=True)
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        part.unlink(missing_ok=True)


def why_not_writable(path: Path) -> str | None:
    """Why a file cannot be written at `path`, or None if it can. Tries it out with an empty file beside it."""
    place = _place(path)
    try:
        if place.is_dir():
            return f"{path} is a folder"
        if _is_no_file(place):
            return f"{path} is not a regular file"
        if not place.parent.is_dir():
            return f"the folder {place.parent} does not exist"
        part = _part(place)
        part.touch()
        part.unlink()
    except OSError as error:
        return f"cannot write in {place.parent}: {error.strerror}"
    return None


def _place(path: Path) -> Path:
    """Where a link leads; moving a file onto the link would replace the link."""
    return Path(os.path.realpath(path))


def _is_no_file(place: Path) -> bool:
    """Whether something is there (a device, a pipe, a folder, a link in a circle) that a file must not replace."""
    return os.path.lexists(place) and not place.is_file()


def _part(place: Path) -> Path:
    """Where a file is written before it is moved into place: beside it, since only then is the move one step."""
    return place.with_name(f".{place.name}.{os.getpid()}.part")
