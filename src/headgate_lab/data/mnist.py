"""MNIST: 60,000 and 10,000 handwritten digits of 28 by 28 pixels, from the four official idx files."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from headgate_lab.data.download import Remote, fetch
from headgate_lab.data.images import Bytes, Images, Normalisation
from headgate_lab.data.places import DataError, cache, find

FOLDER = "mnist"
CLASSES = tuple("0123456789")
SIZE = 28
# Of the training images.
NORMALISATION = Normalisation((0.1307,), (0.3081,))

MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
REMOTES = tuple(
    Remote(MIRROR + name, md5)
    for name, md5 in (
        ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
        ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
        ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
    )
)
COUNTS = {"train": 60_000, "t10k": 10_000}

UNSIGNED_BYTES = 8


def mnist(root: str | Path | None = None) -> Images:
    """The images as (N, 1, 28, 28), in the official order.

    Args:
        root: a folder that holds `mnist/*.gz`. Without it HEADGATE_DATA is looked in, then shared/data beside the
            checkout, then the cache, which is filled from the canonical place.

    Raises:
        DataError: a file is missing, damaged, or cannot be fetched.
    """
    folder = find([FOLDER], root)
    if folder is None or folder == cache() / FOLDER:
        folder = download()
    return read(folder)


def download(remotes: tuple[Remote, ...] = REMOTES) -> Path:
    """The cache's folder, with what it lacks of the four files fetched."""
    folder = cache() / FOLDER
    for remote in remotes:
        fetch(remote, folder, f"{FOLDER}/{remote.name}")
    return folder


def read(folder: Path, counts: Mapping[str, int] = COUNTS) -> Images:
    """The four files of a folder, which must have this many images."""
    images, labels = {}, {}
    for part, count in counts.items():
        images[part] = read_idx(folder / f"{part}-images-idx3-ubyte.gz", (count, SIZE, SIZE))
        path = folder / f"{part}-labels-idx1-ubyte.gz"
        labels[part] = read_idx(path, (count,))
        if (highest := labels[part].max()) >= len(CLASSES):
            raise DataError(f"{path} has the label {highest}; labels are 0 to {len(CLASSES) - 1}")
    return Images(
        torch.from_numpy(images["train"]).unsqueeze(1),
        torch.from_numpy(labels["train"]).long(),
        torch.from_numpy(images["t10k"]).unsqueeze(1),
        torch.from_numpy(labels["t10k"]).long(),
        CLASSES,
    )


def read_idx(path: Path, shape: tuple[int, ...]) -> Bytes:
    """The array in a compressed idx file: two zero bytes, type, number of sizes, sizes big-endian, then the values.

    Raises:
        DataError: the file is missing or damaged, or holds something else than bytes of this shape.
    """
    try:
        content = gzip.decompress(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged or cannot be read: {error}") from error
    start = struct.pack(f">HBB{len(shape)}I", 0, UNSIGNED_BYTES, len(shape), *shape)
    if not content.startswith(start):
        found = content[: len(start)].hex(" ")
        raise DataError(f"{path} is no idx file of {shape} bytes: it begins with {found}, not {start.hex(' ')}")
    if len(content) != len(start) + math.prod(shape):
        raise DataError(f"{path} has {len(content) - len(start):,} bytes of values, not {math.prod(shape):,}")
    # A copy, since torch wants memory that may be written.
    return np.frombuffer(content, np.uint8, offset=len(start)).reshape(shape).copy()
