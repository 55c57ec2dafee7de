"""What every set of labelled images has in common: tensors, a fixed validation split, normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Bytes = NDArray[np.uint8]

# The split of the paper's code: results are comparable only on the same one, so no seed of ours chooses it.
SPLIT_SEED = 43


@dataclass(frozen=True, eq=False)
class Images:
    """Images, uint8 of shape (N, C, H, W); labels, int64 of shape (N,), each the index of its class's name."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]


class Split(NamedTuple):
    """Two disjoint sets of indices, int64, which together are all."""

    train: Tensor
    validation: Tensor


def split(n: int = 50_000, validation: int = 5_000) -> Split:
    """The fixed split of `n` training images: the same for every run, and for CIFAR's 50,000 the paper's own.

    Args:
        n: number of training images; 60,000 for MNIST.
        validation: how many of them are set aside. They are the first ones of a fixed permutation.

    Example:
        >>> parts = split()
        >>> len(parts.train), len(parts.validation)
        (45000, 5000)
        >>> len(split(60_000).train)
        55000
    """
    if not 0 <= validation <= n:
        raise ValueError(f"validation={validation} must lie between 0 and the {n} images")
    order = torch.from_numpy(np.random.RandomState(SPLIT_SEED).permutation(n)).long()
    return Split(order[validation:], order[:validation])


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of each channel, for values from 0 to 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """Float32 on the same device: (images / 255 - mean) / std, for uint8 images of shape (N, C, H, W).

        Example:
            >>> Normalisation((0.5,), (0.25,))(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)).flatten()
            tensor([-2.,  2.])
        """
        shape = (1, -1, 1, 1)
        mean = torch.tensor(self.mean, device=images.device).view(shape)
        std = torch.tensor(self.std, device=images.device).view(shape)
        return images.float().div_(255).sub_(mean).div_(std)
