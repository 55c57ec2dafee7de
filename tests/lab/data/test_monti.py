"""The three datasets of ratings: from tiny files of the same kind, and from the real ones where they are present."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from headgate_lab.data import monti
from headgate_lab.data.places import DataError

RATINGS = np.array([[5.0, 0.0, 2.0], [0.0, 1.0, 2.0]])
TRAIN = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
TEST = np.array([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])


def written(path: Path, **matrices: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, matrix in matrices.items():
            file[name] = matrix.T
    return path


def test_a_file_is_read_as_users_by_items(tmp_path: Path) -> None:
    split = monti.read(written(tmp_path / "a.mat", M=RATINGS, Otraining=TRAIN, Otest=TEST), 3, 1)
    assert (split.train.user_count, split.train.item_count) == (2, 3)
    assert split.train.users.tolist() == [0, 0, 1] and split.train.items.tolist() == [0, 2, 2]
    assert split.train.values.tolist() == [5.0, 2.0, 2.0] and split.test.values.tolist() == [1.0]
    # Of all ratings: a test rating has its rank too, as upstream.
    assert split.levels.tolist() == [1.0, 2.0, 5.0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"Otest": TRAIN}, "a rating is in both parts"),
        ({"Otraining": 1 - TEST}, "Otraining must choose 3 ratings, none of them 0, but chooses 5"),
        ({"Otest": TEST[:1]}, "must be matrices of one shape"),
    ],
)
def test_other_files_are_refused(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.mat", **({"M": RATINGS, "Otraining": TRAIN, "Otest": TEST} | changed))
    with pytest.raises(DataError, match=message):
        monti.read(path, 3, 1)


def test_damaged_and_missing_files(tmp_path: Path, alone: Path) -> None:
    (tmp_path / "a.mat").write_bytes(b"not HDF5")
    with pytest.raises(DataError, match="damaged or no file of ratings"):
        monti.read(tmp_path / "a.mat", 3, 1)
    with pytest.raises(DataError, match="damaged or no file of ratings"):
        monti.read(written(tmp_path / "b.mat", M=RATINGS), 3, 1)
    with pytest.raises(DataError, match=r"holds no igmc/douban/training_test_dataset.mat"):
        monti.load("douban", tmp_path)


def test_without_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.mat", M=RATINGS, Otraining=TRAIN, Otest=TEST)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match=r"needs h5py, which is not installed: pip install 'headgate\[graphs\]'"):
        monti.read(path, 3, 1)


def test_a_download_is_checked(alone: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From a file of this machine in place of the network."""
    monkeypatch.setattr(monti, "MIRROR", f"file://{tmp_path}/mirror")
    written(tmp_path / "mirror" / "yahoo_music" / monti.FILE, M=RATINGS, Otraining=TRAIN, Otest=TEST)
    with pytest.raises(DataError, match=r"has md5 .* so it was not kept"):
        monti.load("yahoo-music")


@pytest.mark.parametrize(
    ("name", "levels", "users", "items"),
    [("flixster", 10, 2341, 2956), ("douban", 5, 2999, 3000), ("yahoo-music", 71, 1357, 1363)],
)
def test_the_real_ones(name: str, levels: int, users: int, items: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monti, "download", lambda source: pytest.skip(f"{source.folder} is not on this machine"))
    split = monti.load(name)
    assert len(split.levels) == levels
    assert len(torch.cat([split.train.users, split.test.users]).unique()) == users
    assert len(torch.cat([split.train.items, split.test.items]).unique()) == items
