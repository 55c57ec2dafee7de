"""Datasets of a few random images, written in the official formats and in our packed one by the plainest code."""

from __future__ import annotations

import gzip
import lzma
import struct
import tarfile
from dataclasses import replace
from hashlib import md5
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image

from headgate_lab.data.cifar import Layout
from headgate_lab.data.download import Remote
from headgate_lab.data.images import Bytes

Part = tuple[Bytes, Bytes]


def write_idx(path: Path, values: Bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, values.ndim]) + b"".join(struct.pack(">I", size) for size in values.shape)
    path.write_bytes(gzip.compress(header + values.tobytes(), compresslevel=1))


def write_mnist(root: Path, train: int, test: int) -> dict[str, Part]:
    numbers = np.random.default_rng(0)
    parts = {}
    for name, count in (("train", train), ("t10k", test)):
        images = numbers.integers(0, 256, (count, 28, 28), np.uint8)
        labels = numbers.integers(0, 10, count, np.uint8)
        write_idx(root / "mnist" / f"{name}-images-idx3-ubyte.gz", images)
        write_idx(root / "mnist" / f"{name}-labels-idx1-ubyte.gz", labels)
        parts[name] = images, labels
    return parts


def tiny(layout: Layout) -> Layout:
    """The same layout for ten training and three test images."""
    return replace(layout, train_records=10, test_records=3)


def random_part(layout: Layout, count: int, seed: int) -> Part:
    numbers = np.random.default_rng(seed)
    labels = numbers.integers(0, len(layout.classes), count, np.uint8)
    return numbers.integers(0, 256, (count, 3, 32, 32), np.uint8), labels


def write_cifar(root: Path, layout: Layout) -> dict[str, Part]:
    """Coarse labels, where there are any, are 255: whoever reads them as labels is refused."""
    parts = {
        "train": random_part(layout, layout.train_records, 1),
        "test": random_part(layout, layout.test_records, 2),
    }
    folder = root / layout.folder
    folder.mkdir(parents=True)
    share = layout.train_records // len(layout.train)
    for index, name in enumerate(layout.train):
        images, labels = (values[index * share : (index + 1) * share] for values in parts["train"])
        (folder / name).write_bytes(records(images, labels, layout.label_bytes))
    (folder / layout.test).write_bytes(records(*parts["test"], layout.label_bytes))
    return parts


def records(images: Bytes, labels: Bytes, label_bytes: int) -> bytes:
    coarse = b"\xff" * (label_bytes - 1)
    return b"".join(coarse + bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True))


def pack(images: Bytes) -> bytes:
    """One block of the packed copy, pixel by pixel."""
    residuals = np.empty((3, len(images), 32, 32), np.uint8)
    for index, (red, green, blue) in enumerate(images.astype(int)):
        for plane, values in enumerate((green, red - green, blue - green)):
            for y in range(32):
                for x in range(32):
                    left = int(values[y, x - 1]) if x else 0
                    up = int(values[y - 1, x]) if y else 0
                    corner = int(values[y - 1, x - 1]) if x and y else 0
                    guess = median([left, up, left + up - corner])
                    residuals[plane, index, y, x] = (int(values[y, x]) - int(guess)) % 256
    return lzma.compress(residuals.tobytes())


def write_packed(root: Path, layout: Layout, **instead: object) -> dict[str, Part]:
    """`instead` replaces arrays of the file; None leaves one out."""
    train, test = random_part(layout, layout.train_records, 3), random_part(layout, layout.test_records, 4)
    arrays = {
        "train_0": np.frombuffer(pack(train[0][:6]), np.uint8),
        "train_1": np.frombuffer(pack(train[0][6:]), np.uint8),
        "test_0": np.frombuffer(pack(test[0]), np.uint8),
        "y_train": train[1],
        "y_test": test[1],
        "yc_test": np.full(3, 255, np.uint8),
    } | instead
    path = root / layout.packed
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{name: values for name, values in arrays.items() if values is not None})
    return {"train": train, "test": test}


def write_archive(path: Path, layout: Layout, source: Path) -> Layout:
    """The official archive of what lies in `source`, and the layout that says where it is."""
    with tarfile.open(path, "w:gz") as tar:
        tar.add(source / layout.folder, layout.folder)
    return replace(layout, archive=remote(path))


def write_tinyimagenet(root: Path, classes: dict[str, int], each: int, test: list[str]) -> Path:
    """As published. `classes` gives each wnid, in the order of wnids.txt, a shade; image i of it is i levels brighter.

    `test` is the class of every test image, whose shade is that of the class.
    """
    folder = root / "tiny-imagenet-200"
    for wnid, shade in classes.items():
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(
            "".join(f"{wnid}_{i}.JPEG\t0\t0\t9\t9\n" for i in range(each))
        )
        for i in range(each):
            write_jpeg(images / f"{wnid}_{i}.JPEG", shade + i)
    (folder / "val" / "images").mkdir(parents=True)
    for i, wnid in enumerate(test):
        write_jpeg(folder / "val" / "images" / f"val_{i}.JPEG", classes[wnid])
    lines = [f"val_{i}.JPEG\t{wnid}\t0\t32\t44\t62\n" for i, wnid in enumerate(test)]
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in classes))
    (folder / "words.txt").write_text("".join(f"{wnid}\tthe {wnid}, a thing\n" for wnid in ("n9", *classes)))
    return folder


def write_jpeg(path: Path, shade: int, size: int = 64, mode: str = "RGB") -> None:
    """One colour: red as bright as `shade`, green 20 and blue 40 levels brighter; or plain grey."""
    colour = (shade, shade + 20, shade + 40) if mode == "RGB" else shade
    Image.new(mode, (size, size), colour).save(path, "JPEG", quality=95)


def remote(path: Path) -> Remote:
    return Remote(path.as_uri(), md5(path.read_bytes()).hexdigest())
