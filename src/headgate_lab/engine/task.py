"""What networks learn to do with images: a loss, and a share from 0 to 1 of each image that is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor
from torch.nn.functional import cross_entropy

Judge: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Task:
    """Each judge takes outputs, images and labels, and gives a number for every image.

    Attributes:
        measure: what a percentage of shares is called among metrics.
        loss: what is to be small.
        share: how much of an image is done; below 0 where nothing would have been better.
    """

    measure: str
    loss: Judge
    share: Judge


def _cross_entropy(outputs: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(outputs, labels, reduction="none")


def _right(outputs: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    return outputs.argmax(1) == labels


def _squared_error(outputs: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    return (outputs - images).square().flatten(1).mean(1)


def _explained(outputs: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """Of what the normalised image differs from the mean of all pixels, zero."""
    return 1 - _squared_error(outputs, images, labels) / images.float().square().flatten(1).mean(1)


CLASSIFY = Task("accuracy", _cross_entropy, _right)
RECONSTRUCT = Task("explained", _squared_error, _explained)
