"""The real datasets, where they are present: HEADGATE_DATA, or shared/data beside the checkout."""

from __future__ import annotations

from hashlib import sha256

import pytest
import torch
from torch import Tensor

from headgate_lab.data import cifar, mnist, places, tinyimagenet
from headgate_lab.data.images import Images, Normalisation


@pytest.fixture(autouse=True)
def _no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist, "download", lambda: pytest.skip("MNIST is not on this machine"))
    monkeypatch.setattr(cifar, "download", lambda layout: pytest.skip(f"{layout.folder} is not on this machine"))
    monkeypatch.setattr(tinyimagenet, "download", lambda: pytest.skip("TinyImageNet is not on this machine"))


def assert_official(data: Images, shape: tuple[int, ...], counts: tuple[int, int]) -> None:
    for images, labels, count in zip(
        (data.train_images, data.test_images), (data.train_labels, data.test_labels), counts, strict=True
    ):
        assert images.shape == (count, *shape) and images.dtype == torch.uint8 and images.is_contiguous()
        assert labels.shape == (count,) and labels.dtype == torch.int64


def assert_even(labels: Tensor, classes: int) -> None:
    assert labels.bincount().tolist() == [len(labels) // classes] * classes


def assert_normalises(normalisation: Normalisation, images: Tensor) -> None:
    """The constants are the exact mean and deviation of each channel, rounded to four digits."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    for channel, mean, std in zip(images.unbind(1), normalisation.mean, normalisation.std, strict=True):
        share = channel.flatten().bincount(minlength=256) / channel.numel()
        exact = (share * levels).sum()
        assert abs(exact - mean) < 1e-4 and abs((share * (levels - exact) ** 2).sum().sqrt() - std) < 1e-4


def digest(images: Tensor) -> str:
    return sha256(images.numpy()).hexdigest()


def test_mnist() -> None:
    data = mnist.mnist()
    assert_official(data, (1, 28, 28), (60_000, 10_000))
    assert data.train_labels[:5].tolist() == [5, 0, 4, 1, 9] and data.test_labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert data.train_labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.test_labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    # The upper edge of the first five, as it is printed everywhere.
    assert data.train_images[0, 0, 5, 12:18].tolist() == [3, 18, 18, 18, 126, 136]
    assert_normalises(mnist.NORMALISATION, data.train_images)


def test_cifar10() -> None:
    data = cifar.cifar10()
    assert_official(data, (3, 32, 32), (50_000, 10_000))
    assert_even(data.train_labels, 10)
    assert_even(data.test_labels, 10)
    # data_batch_1.bin begins with 06 3b 2b 32 44 62: a frog.
    assert data.classes[int(data.train_labels[0])] == "frog"
    assert data.train_images[0, 0, 0, :5].tolist() == [59, 43, 50, 68, 98]
    # Of the pixels in the official files, in their order.
    assert digest(data.train_images) == "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111"
    assert digest(data.test_images) == "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56"
    assert_normalises(cifar.NORMALISATION, data.train_images)


def test_cifar100() -> None:
    data = cifar.cifar100()
    assert_official(data, (3, 32, 32), (50_000, 10_000))
    assert_even(data.train_labels, 100)
    assert_even(data.test_labels, 100)
    # The order is the official one only in the official files, so these do not depend on it.
    assert data.train_images.long().sum((0, 2, 3)).tolist() == [6620373279, 6352382090, 5756623363]
    assert data.test_images.long().sum((0, 2, 3)).tolist() == [1328569193, 1272680636, 1153999502]


def test_places_are_the_machines_own() -> None:
    assert (places.CHECKOUT / "pyproject.toml").exists()


def test_tinyimagenet() -> None:
    data = tinyimagenet.tinyimagenet()
    assert_official(data, (3, 64, 64), (100_000, 10_000))
    assert_even(data.train_labels, 200)
    assert_even(data.test_labels, 200)
    assert data.classes[0].startswith("goldfish")  # n01443537
