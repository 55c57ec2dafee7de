"""Our lossless copy of the CIFARs, two thirds of the official size.

An .npz of labels (`y_train`, `y_test`) and blocks of images (`train_0`, `train_1`, ..., `test_0`). A block is xz over
bytes of shape (3, N, 32, 32): the planes green, red - green and blue - green, each value minus a prediction, mod 256.
The prediction is the median of left, up and left + up - upper left, where what lies outside counts as 0.
"""

from __future__ import annotations

import lzma
import os
import re
import zipfile
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headgate_lab.data.images import Bytes
from headgate_lab.data.places import DataError

SIZE = 32


def read_packed(path: Path, counts: Mapping[str, int]) -> dict[str, tuple[Bytes, Bytes]]:
    """Images (N, 3, 32, 32), planes red, green, blue, and labels, for each part in `counts`: as many as it says.

    Raises:
        DataError: the file is missing or damaged, or has another number of images.
    """
    try:
        # Without pickles: nothing in the file is executed. Opened here, since numpy leaves a damaged file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            stored = {name: archive[name] for name in archive.files if name.partition("_")[0] in {*counts, "y"}}
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except (OSError, EOFError, ValueError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is damaged or cannot be read: {error}") from error
    parts = {part: (_images(path, stored, part), _labels(path, stored, part)) for part in counts}
    for part, (images, labels) in parts.items():
        if not len(images) == len(labels) == counts[part]:
            raise DataError(f"{path} has {len(images)} {part} images, {len(labels)} labels, not {counts[part]} each")
    return parts


def decode(block: bytes) -> Bytes:
    """One block of images, (N, 3, 32, 32), planes red, green, blue.

    All images take a step together: a pixel's prediction needs its neighbours, but no other image.

    Raises:
        ValueError, lzma.LZMAError: it is damaged.
    """
    stored = np.frombuffer(lzma.decompress(block), np.uint8).reshape(3, -1, SIZE, SIZE)
    residuals = np.ascontiguousarray(stored.transpose(2, 3, 0, 1))
    n = stored.shape[1]
    pixels = np.empty((SIZE, SIZE, 3, n), np.uint8)
    # A row with a border of zeros on its left, as the plane has one above: the median is then the only neighbour.
    above = np.zeros((SIZE + 1, 3, n), np.int16)
    for y in range(SIZE):
        row = np.zeros_like(above)
        for x in range(SIZE):
            row[x + 1] = _planes(residuals[y, x], _prediction(row[x], above[x + 1], above[x]))
            green, red, blue = row[x + 1]
            pixels[y, x, 0], pixels[y, x, 1], pixels[y, x, 2] = red + green, green, blue + green
        above = row
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))


def _prediction(left: NDArray[np.int16], up: NDArray[np.int16], corner: NDArray[np.int16]) -> NDArray[np.int16]:
    """The median of left, up and left + up - corner."""
    median: NDArray[np.int16] = np.clip(left + up - corner, np.minimum(left, up), np.maximum(left, up))
    return median


def _planes(residual: Bytes, prediction: NDArray[np.int16]) -> NDArray[np.int16]:
    """Green, red - green and blue - green of one pixel of every image, the differences from -255 to 255."""
    planes = (residual + prediction) & 255
    # The differences are known mod 256; that red and blue are bytes says which of the two it is.
    green = planes[0]
    planes[1:] = ((planes[1:] + green) & 255) - green
    return planes


def _images(path: Path, stored: Mapping[str, NDArray[np.generic]], part: str) -> Bytes:
    names = [name for name in stored if re.fullmatch(rf"{part}_\d+", name)]
    names.sort(key=lambda name: int(name.partition("_")[2]))
    if not names:
        raise DataError(f"{path} has no images named {part}_0, {part}_1, ...")
    # xz and numpy let go of the interpreter, so threads decode side by side; each needs about 100 MB.
    with ThreadPoolExecutor(min(len(names), os.cpu_count() or 1)) as pool:
        return np.concatenate(list(pool.map(partial(_block, path, stored), names)))


def _block(path: Path, stored: Mapping[str, NDArray[np.generic]], name: str) -> Bytes:
    try:
        return decode(stored[name].tobytes())
    except (lzma.LZMAError, ValueError) as error:
        raise DataError(f"{path} is damaged: {name}: {error}") from error


def _labels(path: Path, stored: Mapping[str, NDArray[np.generic]], part: str) -> Bytes:
    labels = stored.get(f"y_{part}")
    if labels is None or labels.dtype != np.uint8 or labels.ndim != 1:
        raise DataError(f"{path} has no labels y_{part} of type uint8")
    return labels.astype(np.uint8)
