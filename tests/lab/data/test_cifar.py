"""CIFAR from tiny files: the official binary version, our packed copy, and the download."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from headgate_lab.data.cifar import CIFAR10, CIFAR100, Layout, cifar10, load
from headgate_lab.data.cifar_packed import decode
from headgate_lab.data.images import Images
from headgate_lab.data.places import DataError, cache
from tests.lab.data.tiny_files import Part, pack, tiny, write_archive, write_cifar, write_packed

TEN, HUNDRED = tiny(CIFAR10), tiny(CIFAR100)
both = pytest.mark.parametrize("layout", [TEN, HUNDRED], ids=["cifar10", "cifar100"])


def assert_same(data: Images, parts: dict[str, Part]) -> None:
    assert data.train_images.dtype == torch.uint8 and data.train_labels.dtype == torch.int64
    assert data.train_images.shape == (10, 3, 32, 32) and data.test_images.shape == (3, 3, 32, 32)
    assert np.array_equal(data.train_images, parts["train"][0]) and np.array_equal(data.test_images, parts["test"][0])
    assert data.train_labels.tolist() == parts["train"][1].tolist()
    assert data.test_labels.tolist() == parts["test"][1].tolist()


@both
def test_the_official_files_are_read(layout: Layout, tmp_path: Path) -> None:
    parts = write_cifar(tmp_path, layout)
    data = load(layout, tmp_path)
    assert_same(data, parts)
    assert data.classes == layout.classes


@both
def test_the_packed_copy_is_read(layout: Layout, tmp_path: Path) -> None:
    parts = write_packed(tmp_path, layout)
    assert_same(load(layout, tmp_path), parts)


def test_the_official_files_come_first(tmp_path: Path) -> None:
    write_packed(tmp_path, TEN)
    parts = write_cifar(tmp_path, TEN)
    assert_same(load(TEN, tmp_path), parts)


@pytest.mark.parametrize("levels", [2, 3, 17, 256])
def test_packing_loses_nothing(levels: int) -> None:
    """Few levels, spread from 0 to 255: differences of the whole range, where they wrap around."""
    values = np.linspace(0, 255, levels).astype(np.uint8)
    images = np.random.default_rng(levels).choice(values, (2, 3, 32, 32))
    assert np.array_equal(decode(pack(images)), images)


@pytest.mark.parametrize("change", [-1, 1, -3073])
def test_a_file_of_another_size_is_named(change: int, tmp_path: Path) -> None:
    write_cifar(tmp_path, TEN)
    path = tmp_path / TEN.folder / "data_batch_4.bin"
    content = path.read_bytes()
    path.write_bytes(content + b"x" if change > 0 else content[:change])
    with pytest.raises(DataError, match=rf"data_batch_4.bin has {6146 + change:,} bytes; 2 records of 3,073 .* 6,146"):
        load(TEN, tmp_path)


def test_the_official_number_of_images_is_demanded(tmp_path: Path) -> None:
    write_cifar(tmp_path, TEN)
    with pytest.raises(DataError, match=r"data_batch_1.bin has 6,146 bytes; 10,000 records"):
        cifar10(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds neither cifar-10-batches-bin nor cifar/cifar10.npz"):
        load(TEN, tmp_path)
    write_cifar(tmp_path, TEN)
    (tmp_path / TEN.folder / "test_batch.bin").unlink()
    with pytest.raises(DataError, match=r"test_batch.bin is missing"):
        load(TEN, tmp_path)


def test_a_label_out_of_range_is_refused(tmp_path: Path) -> None:
    write_cifar(tmp_path, TEN)
    path = tmp_path / TEN.folder / "test_batch.bin"
    path.write_bytes(b"\x0a" + path.read_bytes()[1:])
    with pytest.raises(DataError, match="has the test label 10; labels are 0 to 9"):
        load(TEN, tmp_path)


@pytest.mark.parametrize(
    ("instead", "complaint"),
    [
        ({"train_1": None}, "has 6 train images, 10 labels, not 10 each"),
        ({"test_0": None}, "has no images named test_0"),
        ({"y_test": None}, "has no labels y_test"),
        ({"y_test": np.zeros(3)}, "has no labels y_test of type uint8"),
        ({"y_test": np.zeros(2, np.uint8)}, "has 3 test images, 2 labels, not 3 each"),
        ({"train_1": np.zeros(9, np.uint8)}, "is damaged: train_1"),
        ({"train_1": np.array([{}], object)}, "allow_pickle=False"),
    ],
)
def test_a_damaged_packed_copy_is_refused(instead: dict[str, object], complaint: str, tmp_path: Path) -> None:
    write_packed(tmp_path, TEN, **instead)
    with pytest.raises(DataError, match=f"cifar10.npz .*{complaint}"):
        load(TEN, tmp_path)


def test_a_bare_array_is_no_packed_copy(tmp_path: Path) -> None:
    path = tmp_path / TEN.packed
    path.parent.mkdir()
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match=r"cifar10.npz is damaged or cannot be read"):
        load(TEN, tmp_path)


@pytest.mark.parametrize("keep", [0, 3, 1000, -1])
def test_a_truncated_packed_copy_is_refused(keep: int, tmp_path: Path) -> None:
    write_packed(tmp_path, TEN)
    path = tmp_path / TEN.packed
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"cifar10.npz is damaged or cannot be read"):
        load(TEN, tmp_path)


@both
def test_the_archive_is_fetched_once(layout: Layout, alone: Path, tmp_path: Path) -> None:
    parts = write_cifar(tmp_path, layout)
    archive = tmp_path / "archive.tar.gz"
    layout = write_archive(archive, layout, tmp_path)
    assert_same(load(layout, None), parts)
    archive.unlink()
    assert_same(load(layout, None), parts)
    assert [path.name for path in cache().iterdir()] == [layout.folder]


def test_an_archive_put_into_the_cache_by_hand_is_used(alone: Path, tmp_path: Path) -> None:
    parts = write_cifar(tmp_path, TEN)
    archive = tmp_path / "archive.tar.gz"
    layout = write_archive(archive, TEN, tmp_path)
    cache().mkdir(parents=True)
    archive.rename(cache() / archive.name)
    assert_same(load(layout, None), parts)
