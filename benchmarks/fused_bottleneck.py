"""Do the kernels of `headgate_lab.models.bottleneck` compute on this GPU what torch computes, and are they faster?

Bottlenecks of many widths on images in bfloat16: results, gradients and running statistics are compared with float64,
beside the layers one by one (torch's, with the lab's own kernels for norms and for convolutions of 3 by 3, which is
called "torch" in the record), and a pass forwards and backwards is timed, captured, in turns. Then epochs of gated
networks side by side, with the kernels and without. Writes a record to results/checks/.

    PYTHONPATH=src python -m benchmarks.fused_bottleneck
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.beside_torch import Checked, main_of
from headgate_lab.models import bottleneck
from headgate_lab.models.preresnet import Bottleneck

# Images, channels of the stream, inner channels, and pixels along each side.
SHAPES = ((128, 64, 16, 32), (128, 128, 32, 16), (128, 256, 64, 8), (128, 104, 24, 16), (32, 56, 8, 32))
NETWORKS = (("preresnet164", 4),)


@contextmanager
def layer_by_layer() -> Iterator[None]:
    """Inside, the kernels are not used."""
    before, bottleneck.is_fast_for = bottleneck.is_fast_for, lambda block, x: False
    try:
        yield
    finally:
        bottleneck.is_fast_for = before


def case(shape: tuple[int, ...]) -> tuple[nn.Module, Tensor, Tensor]:
    """A block, images for it and the gradient of what it makes of them."""
    images, stream, inner, side = shape
    block = Bottleneck(stream, stream // 4)
    block.conv1, block.bn2 = nn.Conv2d(stream, inner, 1, bias=False), nn.BatchNorm2d(inner)
    block.conv2, block.bn3 = nn.Conv2d(inner, inner, 3, padding=1, bias=False), nn.BatchNorm2d(inner)
    block.conv3 = nn.Conv2d(inner, stream, 1, bias=False)
    block.cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x, slopes = torch.randn(2, images, stream, side, side, device="cuda").to(torch.bfloat16).unbind(0)
    x, slopes = (one.contiguous(memory_format=torch.channels_last) for one in (x, slopes))
    assert bottleneck.is_fast_for(block, x), "the kernels are not used: nothing to compare"
    return block, x, slopes


def applied(block: Any, x: Tensor) -> Tensor:
    """As in a training."""
    with torch.autocast("cuda", torch.bfloat16, enabled=x.dtype == torch.bfloat16, cache_enabled=False):
        result: Tensor = block(x)
        return result


def apart(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference, relative: where a ReLU opens by a rounding, a single gradient is another one."""
    return float((found.double() - expected).norm() / expected.norm())


CHECKED = Checked(
    "fused_bottleneck", "bottlenecks as few kernels", SHAPES, case, applied, layer_by_layer, NETWORKS, apart
)

if __name__ == "__main__":
    sys.exit(main_of(CHECKED, __doc__))
