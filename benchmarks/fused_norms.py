"""Do the kernels of `headgate_lab.models.norm` compute on this GPU what torch computes, and are they faster?

Images of many shapes in bfloat16: results, gradients and running statistics are compared with float64, beside torch's
own kernels, and a pass forwards and backwards is timed, captured, in turns. Then epochs of gated networks side by
side, with the kernels and without. Writes a record to results/checks/.

    PYTHONPATH=src python -m benchmarks.fused_norms
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from benchmarks.beside_torch import Checked, main_of
from headgate_lab.models import norm
from headgate_lab.models.norm import norm_relu

SHAPES = (
    (128, 16, 32, 32),
    (128, 64, 32, 32),
    (128, 37, 32, 32),
    (128, 24, 32, 32),
    (128, 128, 16, 16),
    (128, 256, 8, 8),
    (128, 512, 2, 2),
)
NETWORKS = (("preresnet20", 8), ("preresnet164", 4))


@contextmanager
def as_torch_does() -> Iterator[None]:
    """Inside, the kernels are not used."""
    before, norm.is_fast_for = norm.is_fast_for, lambda x: False
    try:
        yield
    finally:
        norm.is_fast_for = before


def case(shape: tuple[int, ...]) -> tuple[nn.Module, Tensor, Tensor]:
    """A layer, images for it and the gradient of what it makes of them."""
    x = (3 * torch.randn(shape, device="cuda") + 2).to(torch.bfloat16, memory_format=torch.channels_last)
    slopes = torch.randn(shape, device="cuda").to(torch.bfloat16, memory_format=torch.channels_last)
    layer = nn.BatchNorm2d(shape[1]).cuda()
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    assert norm.is_fast_for(x), "the kernels are not used: nothing to compare"
    return layer, x, slopes


CHECKED = Checked("fused_norms", "BatchNorm and ReLU in few passes", SHAPES, case, norm_relu, as_torch_does, NETWORKS)

if __name__ == "__main__":
    sys.exit(main_of(CHECKED, __doc__))
