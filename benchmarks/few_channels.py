"""Do the kernels of `headgate_lab.models.convolution` compute on this GPU what torch computes, and are they faster?

Convolutions of many widths on images in bfloat16: results and gradients are compared with float64, beside torch's own
kernels, and a pass forwards and backwards is timed, captured, in turns. Then epochs of gated networks side by side,
with the kernels and without. Writes a record to results/checks/.

    PYTHONPATH=src python -m benchmarks.few_channels
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.beside_torch import Checked, main_of
from headgate_lab.models import convolution
from headgate_lab.models.convolution import convolved

# Images, inputs, outputs, and pixels along each side.
SHAPES = (
    (128, 16, 16, 32),
    (128, 24, 24, 32),
    (128, 8, 16, 32),
    (128, 32, 32, 16),
    (128, 40, 24, 16),
    (128, 64, 64, 8),
    (128, 56, 48, 8),
)
NETWORKS = (("preresnet20", 8), ("preresnet56", 8))


@contextmanager
def as_torch_does() -> Iterator[None]:
    """Inside, the kernels are not used."""
    before, convolution.are_for_kernels = convolution.are_for_kernels, lambda x: False
    try:
        yield
    finally:
        convolution.are_for_kernels = before


def case(shape: tuple[int, ...]) -> tuple[nn.Module, Tensor, Tensor]:
    """A layer, images for it and the gradient of what it makes of them."""
    images, inputs, outputs, side = shape
    x = torch.randn(images, inputs, side, side, device="cuda").to(torch.bfloat16, memory_format=torch.channels_last)
    slopes = torch.randn(images, outputs, side, side, device="cuda")
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert convolution.are_for_kernels(x) and convolution.knows(layer), "the kernels are not used: nothing to compare"
    return layer, x, slopes.to(torch.bfloat16, memory_format=torch.channels_last)


def applied(layer: Any, x: Tensor) -> Tensor:
    """As in a training."""
    with torch.autocast("cuda", torch.bfloat16, enabled=x.dtype == torch.bfloat16, cache_enabled=False):
        return convolved(layer, x)


CHECKED = Checked(
    "few_channels", "convolutions of 3 by 3 between few channels", SHAPES, case, applied, as_torch_does, NETWORKS
)

if __name__ == "__main__":
    sys.exit(main_of(CHECKED, __doc__))
