"""MNIST from tiny files in the official format."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from headgate_lab.data import mnist as module
from headgate_lab.data.mnist import download, mnist, read, read_idx
from headgate_lab.data.places import DataError, cache
from tests.lab.data.tiny_files import remote, write_idx, write_mnist

COUNTS = {"train": 5, "t10k": 2}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    parts = write_mnist(tmp_path, 5, 2)
    data = read(tmp_path / "mnist", COUNTS)
    assert data.train_images.shape == (5, 1, 28, 28) and data.test_images.shape == (2, 1, 28, 28)
    assert data.train_images.dtype == torch.uint8 and data.train_labels.dtype == torch.int64
    assert np.array_equal(data.train_images[:, 0], parts["train"][0])
    assert data.train_labels.tolist() == parts["train"][1].tolist()
    assert np.array_equal(data.test_images[:, 0], parts["t10k"][0])
    assert data.test_labels.tolist() == parts["t10k"][1].tolist()
    assert data.classes[3] == "3"


def test_the_official_number_of_images_is_demanded(tmp_path: Path) -> None:
    write_mnist(tmp_path, 5, 2)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz is no idx file of \(60000, 28, 28\) bytes"):
        mnist(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_mnist(tmp_path, 5, 2)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte.gz is missing"):
        read(tmp_path / "mnist", COUNTS)
    with pytest.raises(DataError, match=f"{tmp_path}/mnist holds no mnist"):
        mnist(tmp_path / "mnist")


def test_a_label_that_is_no_digit_is_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path, 5, 2)
    write_idx(tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz", np.array([9, 10], np.uint8))
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte.gz has the label 10; labels are 0 to 9"):
        read(tmp_path / "mnist", COUNTS)


HEADER = bytes([0, 0, 8, 1, 0, 0, 0, 4])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "begins with"),
        (HEADER[:6], "begins with"),
        (bytes([0, 0, 13, 1, 0, 0, 0, 4]) + b"abcd", "begins with 00 00 0d 01"),
        (bytes([0, 0, 8, 2, 0, 0, 0, 4]) + b"abcd", "begins with 00 00 08 02"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 5]) + b"abcde", "begins with 00 00 08 01 00 00 00 05"),
        (HEADER + b"abc", "has 3 bytes of values, not 4"),
        (HEADER + b"abcde", "has 5 bytes of values, not 4"),
    ],
)
def test_what_is_no_such_array_is_refused(content: bytes, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=f"labels.gz .*{complaint}"):
        read_idx(path, (4,))


def test_every_truncation_and_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "labels.gz"
    write_idx(path, np.arange(4, dtype=np.uint8))
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"labels.gz"):
            read_idx(path, (4,))
    for place in range(10, len(whole)):  # before that stand the time and the system, which no checksum covers
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DataError, match=r"labels.gz"):
            read_idx(path, (4,))


def test_what_the_cache_lacks_is_fetched(alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = write_mnist(tmp_path, 5, 2)
    files = sorted((tmp_path / "mnist").iterdir())
    monkeypatch.setattr(module, "read", lambda folder: read(folder, COUNTS))
    monkeypatch.setattr(module, "download", lambda: download(tuple(map(remote, files))))
    mnist()
    (cache() / "mnist" / files[0].name).unlink()
    assert mnist().train_labels.tolist() == parts["train"][1].tolist()
    assert sorted(path.name for path in (cache() / "mnist").iterdir()) == [path.name for path in files]
