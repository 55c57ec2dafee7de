"""TinyImageNet: 200 classes of ImageNet, 500 and 50 photographs of 64 by 64 pixels each, in the published folders.

`tiny-imagenet-200` holds `wnids.txt` (the classes), `words.txt` (what they are called), `train/WNID/images/*.JPEG`, and
`val/images/*.JPEG` with their classes in `val/val_annotations.txt`. The published test images have no labels: as
everywhere, the validation images are the test.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headgate_lab.data.download import Remote, fetch, unzip
from headgate_lab.data.images import Bytes, Images, Normalisation
from headgate_lab.data.places import DataError, cache, find

FOLDER = "tiny-imagenet-200"
ARCHIVE = Remote("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de")
SIZE = 64
# ImageNet's.
NORMALISATION = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Counts:
    """How many classes there must be, and how many images: training images of each class, test images in all."""

    classes: int = 200
    train_each: int = 500
    test: int = 10_000


def tinyimagenet(root: str | Path | None = None) -> Images:
    """The images as (N, 3, 64, 64), class by class in the order of their wnids, test images in the published order.

    Args:
        root: a folder that holds `tiny-imagenet-200`. Without it HEADGATE_DATA is looked in, then shared/data beside
            the checkout, then the cache, which is filled from the canonical place.

    Raises:
        DataError: a file is missing, damaged, or cannot be fetched.
    """
    return read(find([FOLDER], root) or download())


def download(archive: Remote = ARCHIVE) -> Path:
    """The published folder in the cache, freshly fetched; the archive itself is not kept."""
    fetched = fetch(archive, cache(), f"{FOLDER}/")
    folder = unzip(fetched, FOLDER, ("train/", "val/", "wnids.txt", "words.txt"))
    fetched.unlink(missing_ok=True)
    return folder


def read(folder: Path, counts: Counts = Counts()) -> Images:  # noqa: B008 (frozen)
    """The folder as published, which must have this many classes and images."""
    wnids = sorted(_lines(folder / "wnids.txt"))
    if len(set(wnids)) != len(wnids) or len(wnids) != counts.classes:
        raise DataError(f"{folder / 'wnids.txt'} has {len(set(wnids))} classes, not {counts.classes}")
    train: list[Path] = []
    for wnid in wnids:
        inside = folder / "train" / wnid / "images"
        found = sorted(inside.glob("*.JPEG"), key=_number)
        if len(found) != counts.train_each:
            raise DataError(f"{inside} has {len(found)} images named *.JPEG, not {counts.train_each}")
        train += found
    test, labels = _test(folder / "val", wnids, counts.test)
    known = torch.arange(counts.classes).repeat_interleave(counts.train_each)
    return Images(_decoded(train), known, _decoded(test), labels, _names(folder / "words.txt", wnids))


def decode(path: Path) -> Bytes:
    """One image, (3, 64, 64), red, green, blue; some of the files are grey.

    Raises:
        DataError: it is missing, damaged, or of another size.
    """
    from PIL import Image  # here, since whoever reads other data needs no Pillow

    try:
        with Image.open(path) as image:
            pixels = np.array(image.convert("RGB"), np.uint8)
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path} is damaged or no image: {error}") from error
    if pixels.shape != (SIZE, SIZE, 3):
        raise DataError(f"{path} is {pixels.shape[1]} by {pixels.shape[0]} pixels, not {SIZE} by {SIZE}")
    return pixels.transpose(2, 0, 1)


def _decoded(paths: Sequence[Path]) -> Tensor:
    images = np.empty((len(paths), 3, SIZE, SIZE), np.uint8)

    def fill(index: int) -> None:
        images[index] = decode(paths[index])

    # Pillow lets go of the interpreter while it decodes.
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for _ in pool.map(fill, range(len(paths))):
            pass
    return torch.from_numpy(images)


def _test(folder: Path, wnids: Sequence[str], count: int) -> tuple[list[Path], Tensor]:
    """Paths and labels, in the order of the annotations: a line each, file and class first."""
    path = folder / "val_annotations.txt"
    classes = {wnid: label for label, wnid in enumerate(wnids)}
    paths, labels = [], []
    for line in _lines(path):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in classes or Path(name).name != name:
            raise DataError(f"{path} has the line {line!r}, which names no image and class that wnids.txt knows")
        paths.append(folder / "images" / name)
        labels.append(classes[wnid])
    if len(paths) != count:
        raise DataError(f"{path} has {len(paths)} lines, not {count}")
    return paths, torch.tensor(labels)


def _names(path: Path, wnids: Sequence[str]) -> tuple[str, ...]:
    """What the classes are called; the wnid itself where nobody says."""
    words = dict(line.split("\t", 1) for line in _lines(path) if "\t" in line)
    return tuple(words.get(wnid, wnid) for wnid in wnids)


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _number(path: Path) -> tuple[int, str]:
    """By the number at the end of the name: image 10 comes after image 9."""
    number = re.search(r"(\d+)$", path.stem)
    return (int(number[1]) if number else -1), path.name
