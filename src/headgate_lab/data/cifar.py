"""CIFAR-10 and CIFAR-100: 50,000 and 10,000 photographs of 32 by 32 pixels, from the official binary version."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from headgate_lab.data.cifar_classes import CIFAR10_CLASSES, CIFAR100_CLASSES
from headgate_lab.data.cifar_packed import read_packed
from headgate_lab.data.download import Remote, extract, fetch
from headgate_lab.data.images import Bytes, Images, Normalisation
from headgate_lab.data.places import DataError, cache, find

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
# CIFAR-10's, which the paper's code uses for both.
NORMALISATION = Normalisation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


@dataclass(frozen=True)
class Layout:
    """How one of the two is stored.

    A record is `label_bytes` bytes, of which the last one is the label, then the red, green and blue plane.
    """

    folder: str
    train: tuple[str, ...]
    test: str
    packed: str
    train_records: int
    test_records: int
    label_bytes: int
    classes: tuple[str, ...]
    archive: Remote


CIFAR10 = Layout(
    folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test="test_batch.bin",
    packed="cifar/cifar10.npz",
    train_records=50_000,
    test_records=10_000,
    label_bytes=1,
    classes=CIFAR10_CLASSES,
    archive=Remote("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
)
CIFAR100 = Layout(
    folder="cifar-100-binary",
    train=("train.bin",),
    test="test.bin",
    packed="cifar/cifar100.npz",
    train_records=50_000,
    test_records=10_000,
    label_bytes=2,
    classes=CIFAR100_CLASSES,
    archive=Remote("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
)


def cifar10(root: str | Path | None = None) -> Images:
    """The images as (N, 3, 32, 32), planes red, green, blue, in the official order.

    Args:
        root: a folder that holds `cifar-10-batches-bin/*.bin` or `cifar/cifar10.npz`. Without it HEADGATE_DATA is
            looked in, then shared/data beside the checkout, then the cache, which is filled from the canonical place.

    Raises:
        DataError: a file is missing, damaged, or cannot be fetched.
    """
    return load(CIFAR10, root)


def cifar100(root: str | Path | None = None) -> Images:
    """As `cifar10`, with the 100 fine labels, from `cifar-100-binary/{train,test}.bin` or `cifar/cifar100.npz`.

    The packed copy has the official split, but an order of its own within each part.
    """
    return load(CIFAR100, root)


def load(layout: Layout, root: str | Path | None) -> Images:
    """Reads what `layout` describes from the first place that has it."""
    found = find([layout.folder, layout.packed], root) or download(layout)
    if found.suffix == ".npz":
        counts = {"train": layout.train_records, "test": layout.test_records}
        parts = read_packed(found, counts)
    else:
        parts = {
            "train": read_binary([found / name for name in layout.train], layout.train_records, layout.label_bytes),
            "test": read_binary([found / layout.test], layout.test_records, layout.label_bytes),
        }
    for part, (_, labels) in parts.items():
        if (highest := labels.max()) >= len(layout.classes):
            raise DataError(f"{found} has the {part} label {highest}; labels are 0 to {len(layout.classes) - 1}")
    tensors = [(torch.from_numpy(images), torch.from_numpy(labels).long()) for images, labels in parts.values()]
    return Images(*tensors[0], *tensors[1], layout.classes)


def download(layout: Layout) -> Path:
    """The folder of the official files in the cache, freshly fetched; the archive itself is not kept."""
    archive = fetch(layout.archive, cache(), f"{layout.folder}/")
    folder = extract(archive, layout.folder, [*layout.train, layout.test])
    archive.unlink(missing_ok=True)
    return folder


def read_binary(paths: list[Path], records: int, label_bytes: int) -> tuple[Bytes, Bytes]:
    """Images and labels of `records` records, which the files hold in equal shares.

    Raises:
        DataError: a file is missing or has another size.
    """
    shape = (records // len(paths), label_bytes + PIXELS)
    images = np.empty((len(paths), shape[0], PIXELS), np.uint8)
    labels = np.empty((len(paths), shape[0]), np.uint8)
    for index, path in enumerate(paths):
        content = _content(path)
        if content.size != shape[0] * shape[1]:
            raise DataError(
                f"{path} has {content.size:,} bytes; {shape[0]:,} records of {shape[1]:,} bytes are "
                f"{shape[0] * shape[1]:,}"
            )
        table = content.reshape(shape)
        labels[index], images[index] = table[:, label_bytes - 1], table[:, label_bytes:]
    return images.reshape(records, *SHAPE), labels.reshape(records)


def _content(path: Path) -> Bytes:
    try:
        return np.fromfile(path, np.uint8)
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
