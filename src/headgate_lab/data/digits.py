"""Handwritten digits that come with scikit-learn: 1,797 images of 8 by 8 pixels, no download."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import Tensor

# The file's last images are the test set. The split is fixed: a seed must not choose the exam.
TEST_IMAGES = 500


@dataclass(frozen=True)
class Digits:
    """Images, float32 of shape (N, 1, 8, 8) with values from 0 to 1, and labels, int64 of shape (N,)."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def digits() -> Digits:
    """The first 1,297 images for training, the last 500 for testing, in the order of the file.

    Example:
        >>> data = digits()
        >>> data.train_images.shape, data.test_images.shape
        (torch.Size([1297, 1, 8, 8]), torch.Size([500, 1, 8, 8]))
    """
    stored = load_digits()
    images = torch.from_numpy(stored.images).float().div(16).unsqueeze(1)
    labels = torch.from_numpy(stored.target).long()
    split = len(images) - TEST_IMAGES
    return Digits(images[:split], labels[:split], images[split:], labels[split:])
