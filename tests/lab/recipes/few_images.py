"""Random images in the place of a dataset: enough to run a recipe for a few steps."""

from __future__ import annotations

import torch

from headgate_lab.data.images import Images


def few_images(channels: int, pixels: int, count: int) -> Images:
    """`count` training images with their labels, the first 20 of which are the test images too."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, channels, pixels, pixels), dtype=torch.uint8, generator=generator)
    labels = torch.arange(count) % 10
    return Images(images, labels, images[:20], labels[:20], tuple("0123456789"))
