"""Flixster, Douban and YahooMusic: 3,000 users and 3,000 items each, in the split that matrix completion is tried on.

The files are MATLAB's v7.3, that is HDF5; reading them needs h5py (`pip install 'headgate[graphs]'`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headgate_lab.data.download import Remote, fetch
from headgate_lab.data.places import DataError, cache, find
from headgate_lab.data.ratings import Ratings

FILE = "training_test_dataset.mat"
MIRROR = "https://raw.githubusercontent.com/muhanzhang/IGMC/master/raw_data"


@dataclass(frozen=True)
class Source:
    """Where a dataset lies, and how many ratings it has for training and for testing."""

    folder: str
    md5: str
    train: int
    test: int


SOURCES = {
    "flixster": Source("flixster", "80b4316b5c633347dffeed0958a9102c", 23_556, 2_617),
    "douban": Source("douban", "649844d52e32104424b6861b1ef6b812", 123_202, 13_689),
    "yahoo-music": Source("yahoo_music", "b95b77e69a8ced324791dd2378159213", 4_802, 533),
}


@dataclass(frozen=True)
class Split:
    """Ratings to learn from and ratings to be predicted; `levels` are all values that occur in either, ascending."""

    train: Ratings
    test: Ratings
    levels: Tensor


def load(name: str, root: str | Path | None = None) -> Split:
    """One of the three, by its name in `SOURCES`.

    Args:
        name: "flixster", "douban" or "yahoo-music".
        root: a folder that holds `igmc/flixster/training_test_dataset.mat` and so on. Without it HEADGATE_DATA is
            looked in, then shared/data beside the checkout, then the cache, which is filled from IGMC's repository.

    Raises:
        DataError: the file is missing, damaged, or cannot be fetched.
    """
    source = SOURCES[name]
    inside = f"igmc/{source.folder}/{FILE}"
    path = find([inside], root)
    if path is None or path == cache() / inside:
        path = download(source)
    return read(path, source.train, source.test)


def download(source: Source) -> Path:
    """The file in the cache, fetched if it is not there."""
    remote = Remote(f"{MIRROR}/{source.folder}/{FILE}", source.md5)
    return fetch(remote, cache() / "igmc" / source.folder, f"igmc/{source.folder}/{FILE}")


def read(path: Path, train: int, test: int) -> Split:
    """A file of three matrices, users by items: M holds the ratings, Otraining and Otest say which of them are which.

    Raises:
        DataError: it is no such file, or has other numbers of ratings.
    """
    matrices = _matrices(path, ("M", "Otraining", "Otest"))
    parts = {name: matrices[name] != 0 for name in ("Otraining", "Otest")}
    if bool((parts["Otraining"] & parts["Otest"]).any()):
        raise DataError(f"{path}: a rating is in both parts")
    ratings = {name: _chosen(matrices["M"], where) for name, where in parts.items()}
    for name, wanted in (("Otraining", train), ("Otest", test)):
        if (found := len(ratings[name])) != wanted or bool((ratings[name].values == 0).any()):
            raise DataError(f"{path}: {name} must choose {wanted:,} ratings, none of them 0, but chooses {found:,}")
    return Split(ratings["Otraining"], ratings["Otest"], matrices["M"][matrices["M"] != 0].unique().float())


def _matrices(path: Path, names: tuple[str, ...]) -> dict[str, Tensor]:
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise DataError(f"reading {path} needs h5py, which is not installed: pip install 'headgate[graphs]'") from error
    try:
        with h5py.File(path, "r") as file:
            # MATLAB stores columns first.
            found: dict[str, Any] = {name: torch.from_numpy(file[name][()]).T for name in names}
    except (OSError, KeyError) as error:
        raise DataError(f"{path} is damaged or no file of ratings: {error}") from error
    shapes = {tuple(matrix.shape) for matrix in found.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2:
        raise DataError(f"{path}: {', '.join(names)} must be matrices of one shape, not {sorted(shapes)}")
    return found


def _chosen(matrix: Tensor, where: Tensor) -> Ratings:
    users, items = where.nonzero(as_tuple=True)
    return Ratings(users, items, matrix[users, items].float(), *matrix.shape)
