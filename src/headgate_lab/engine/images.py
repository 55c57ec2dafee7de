"""Images that stay on the device: a whole epoch is shuffled, augmented and normalised there at once."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor

from headgate_lab.data.images import Normalisation

# How many images are augmented at once: more needs more memory for a moment, and is not faster.
CHUNK = 10_000


@dataclass(frozen=True)
class Resident:
    """Images, uint8 of shape (N, C, H, W), and labels, int64 of shape (N,), on one device."""

    images: Tensor
    labels: Tensor
    normalisation: Normalisation

    def to(self, device: torch.device) -> Resident:
        """The same on another device."""
        return Resident(self.images.to(device), self.labels.to(device), self.normalisation)

    def normalised(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """Some of the images as a network wants them: in `dtype`, channels last."""
        return self.normalisation(images).to(dtype).contiguous(memory_format=torch.channels_last)


class Batches:
    """One job's batches, epoch after epoch, from a generator of its own.

    `next` reads its place from the device and moves it on there, so that it can be captured in a CUDA graph. The last
    batch of an epoch is filled up with images from the epoch's beginning.
    """

    def __init__(self, data: Resident, size: int, seed: int, *, pad: int, flip: bool, dtype: torch.dtype) -> None:
        self.data, self.size, self.pad, self.flip = data, size, pad, flip
        device = data.images.device
        self.steps = ceil(len(data.images) / size)
        self.generator = torch.Generator(device).manual_seed(seed)
        shape = data.images.shape
        self.images = torch.empty(shape, dtype=dtype, device=device, memory_format=torch.channels_last)
        self.labels = torch.empty_like(data.labels)
        self.place = torch.zeros((), dtype=torch.int64, device=device)
        self.within = torch.arange(size, device=device)

    def shuffle_(self) -> None:
        """Begins an epoch: a new order, new crops, new flips, written where `next` looks."""
        device = self.data.images.device
        order = torch.randperm(len(self.data.images), generator=self.generator, device=device)
        for start in range(0, len(order), CHUNK):
            images = self.data.images.index_select(0, order[start : start + CHUNK])
            if self.pad:
                images = cropped(images, self.pad, self.generator)
            if self.flip:
                images = flipped(images, self.generator)
            self.images[start : start + CHUNK] = self.data.normalised(images, self.images.dtype)
        self.labels.copy_(self.data.labels.index_select(0, order))
        self.place.zero_()

    def next(self) -> tuple[Tensor, Tensor]:
        """The next batch of images and labels."""
        chosen = (self.place + self.within) % len(self.images)
        self.place.add_(self.size)
        return self.images.index_select(0, chosen), self.labels.index_select(0, chosen)

    def state_dict(self) -> dict[str, Any]:
        """Between epochs the generator is all there is."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        self.generator.set_state(state["generator"].cpu())


def cropped(images: Tensor, pad: int, generator: torch.Generator) -> Tensor:
    """Each image moved by up to `pad` pixels in both directions, zeros (black) coming in."""
    count, channels, height, width = images.shape
    device = images.device
    padded = torch.nn.functional.pad(images, (pad, pad, pad, pad))
    corner = torch.randint(0, 2 * pad + 1, (2, count, 1), generator=generator, device=device)
    rows = corner[0] + torch.arange(height, device=device)
    columns = corner[1] + torch.arange(width, device=device)
    padded = padded.gather(2, rows.view(count, 1, height, 1).expand(-1, channels, -1, padded.shape[3]))
    return padded.gather(3, columns.view(count, 1, 1, width).expand(-1, channels, height, -1))


def flipped(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image mirrored left to right with probability one half."""
    mirrored = torch.rand(len(images), generator=generator, device=images.device) < 0.5
    return torch.where(mirrored.view(-1, 1, 1, 1), images.flip(3), images)
