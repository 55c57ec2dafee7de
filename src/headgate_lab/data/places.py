"""Where datasets are looked for: a folder that was named, HEADGATE_DATA, shared/data, the cache."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

VARIABLE = "HEADGATE_DATA"
# This file is src/headgate_lab/data/places.py in a checkout.
CHECKOUT = Path(__file__).resolve().parents[3]


class DataError(OSError):
    """A dataset is missing, damaged, or cannot be fetched. The message names the file and says what to do."""


def find(names: Sequence[str], root: str | Path | None) -> Path | None:
    """The first of `names`, paths inside a data folder, that is there; None if a download is the last resort.

    A `root` that is given is the only folder looked in.

    Raises:
        DataError: `root` was given and has none of them, or HEADGATE_DATA names no folder.
    """
    for folder in _folders(root):
        for name in names:
            if (folder / name).exists():
                return folder / name
    if root is not None:
        raise DataError(f"{root} holds neither {' nor '.join(names)}" if names[1:] else f"{root} holds no {names[0]}")
    return None


def cache() -> Path:
    """Where downloads are kept."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The standard says that a relative path there is to be ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "headgate"


def _folders(root: str | Path | None) -> Iterator[Path]:
    if root is not None:
        yield Path(root)
        return
    if named := os.environ.get(VARIABLE):
        if not Path(named).is_dir():
            raise DataError(f"{VARIABLE} is {named}, which is not a folder; correct it or unset it")
        yield Path(named)
    yield CHECKOUT.parent / "shared" / "data"
    yield cache()
