"""TinyImageNet from a small folder of the published layout."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from headgate_lab.data import tinyimagenet as module
from headgate_lab.data.images import Images
from headgate_lab.data.places import DataError, cache
from headgate_lab.data.tinyimagenet import Counts, download, read, tinyimagenet
from tests.lab.data.tiny_files import remote, write_jpeg, write_tinyimagenet

# Not in the order of their names, as in the published file; twelve images, so that 10 comes after 9 and not after 1.
CLASSES = {"n02": 60, "n01": 120, "n10": 180}
COUNTS = Counts(classes=3, train_each=12, test=4)
TEST = ["n10", "n01", "n02", "n10"]


def assert_shades(images: Tensor, shades: list[int]) -> None:
    """Every pixel of image i has the colour that `write_jpeg` gives shade i, but for what JPEG loses."""
    expected = torch.tensor(shades).view(-1, 1, 1, 1) + torch.tensor([0, 20, 40]).view(1, 3, 1, 1)
    assert images.shape == (len(shades), 3, 64, 64) and images.dtype == torch.uint8
    assert (images.int() - expected).abs().max() <= 3


def assert_written(data: Images) -> None:
    order = ["n01", "n02", "n10"]
    assert data.train_labels.tolist() == [label for label in range(3) for _ in range(12)]
    assert_shades(data.train_images, [CLASSES[wnid] + i for wnid in order for i in range(12)])
    assert data.test_labels.tolist() == [2, 0, 1, 2]
    assert_shades(data.test_images, [CLASSES[wnid] for wnid in TEST])
    assert data.classes == ("the n01, a thing", "the n02, a thing", "the n10, a thing")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tinyimagenet(tmp_path, CLASSES, 12, TEST)


def test_what_is_written_is_read(folder: Path) -> None:
    assert_written(read(folder, COUNTS))


def test_a_grey_image_has_three_equal_planes(folder: Path) -> None:
    write_jpeg(folder / "val" / "images" / "val_0.JPEG", 77, mode="L")
    grey = read(folder, COUNTS).test_images[0]
    assert (grey.int() - 77).abs().max() <= 2 and torch.equal(grey[0], grey[2])


def replaced(path: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / path).write_bytes(content)


def removed(path: str) -> Callable[[Path], object]:
    return lambda folder: (folder / path).unlink()


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (removed("wnids.txt"), "wnids.txt is missing"),
        (removed("words.txt"), "words.txt is missing"),
        (replaced("wnids.txt", b"n01\nn02\n"), "wnids.txt has 2 classes, not 3"),
        (replaced("wnids.txt", b"n01\nn02\nn02\n"), "wnids.txt has 2 classes, not 3"),
        (replaced("wnids.txt", b"n01\nn02\n\xff\n"), "wnids.txt cannot be read"),
        (replaced("wnids.txt", b"n01\nn02\nn11\n"), "n11/images has 0 images named \\*.JPEG, not 12"),
        (removed("train/n01/images/n01_3.JPEG"), "n01/images has 11 images"),
        (replaced("train/n01/images/n01_3.JPEG", b"no picture"), "n01_3.JPEG is damaged or no image"),
        (removed("val/images/val_2.JPEG"), "val_2.JPEG is missing"),
        (removed("val/val_annotations.txt"), "val_annotations.txt is missing"),
        (replaced("val/val_annotations.txt", b"val_0.JPEG\tn01\n"), "val_annotations.txt has 1 lines, not 4"),
        (
            replaced("val/val_annotations.txt", b"val_0.JPEG\tn77\t1\n"),
            "the line 'val_0.JPEG.*names no image and class",
        ),
        (replaced("val/val_annotations.txt", b"../val_0.JPEG\tn01\n"), "names no image and class"),
        (lambda folder: write_jpeg(folder / "val/images/val_1.JPEG", 5, size=32), "val_1.JPEG is 32 by 32 pixels"),
    ],
)
def test_what_is_wrong_is_named(damage: Callable[[Path], object], complaint: str, folder: Path) -> None:
    damage(folder)
    with pytest.raises(DataError, match=complaint):
        read(folder, COUNTS)


def test_a_truncated_image_is_noticed(folder: Path) -> None:
    path = folder / "train" / "n10" / "images" / "n10_11.JPEG"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"n10_11.JPEG is damaged or no image"):
        read(folder, COUNTS)


def test_the_published_numbers_are_demanded(folder: Path) -> None:
    with pytest.raises(DataError, match="has 3 classes, not 200"):
        tinyimagenet(folder.parent)
    with pytest.raises(DataError, match=f"{folder} holds no tiny-imagenet-200"):
        tinyimagenet(folder)


def test_the_archive_is_fetched_once(folder: Path, alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder.parent / "archive.zip"
    (folder / "test" / "images").mkdir(parents=True)
    write_jpeg(folder / "test" / "images" / "test_0.JPEG", 9)
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder.parent))
    shutil.rmtree(folder)
    monkeypatch.setattr(module, "read", lambda found: read(found, COUNTS))
    monkeypatch.setattr(module, "download", lambda: download(remote(path)))
    assert_written(tinyimagenet())
    path.unlink()
    assert_written(tinyimagenet())
    assert [found.name for found in cache().iterdir()] == ["tiny-imagenet-200"]
    # The images without labels are not kept.
    assert not (cache() / "tiny-imagenet-200" / "test").exists()
