"""BatchNorm and ReLU together. In training on a GPU, which is where the lab's time goes, Triton kernels compute them.

Forwards they read the images twice and write them once, backwards they read images and gradients twice and write once,
ReLU included. What they compute is what torch computes, up to rounding: `benchmarks/fused_norms.py` records that, and
how long both take. Eight PreResNet-20 side by side learn 1.26 times as fast with them. Six VGG-19 learned 0.89 times as
fast, so that VGG keeps torch's.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import relu

from headgate_lab.models.kernel_images import are_for_kernels, power_of_two

# Numbers that a program has before it at a time, of 16 channels at least and 64 at most.
TILE, FEWEST, MOST = 4096, 16, 64
# Numbers of half precision that a thread reads at once.
READ_AT_ONCE = 8
# Programs that add up: two for each of a GPU's multiprocessors.
PROGRAMS = 256


def norm_relu(norm: nn.Module, x: Tensor) -> Tensor:
    """What the layer makes of images of shape (B, C, H, W), and ReLU of that.

    It need not be a BatchNorm any more: what only fed a branch that was removed has become zeros. Nor need it be
    nothing but a BatchNorm: one that picks its channels from a wider stream has them to pick first.
    """
    if not (isinstance(norm, nn.BatchNorm2d) and norm.training and knows(norm) and is_fast_for(x)):
        return relu(norm(x))
    running = Running(norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.momentum, norm.eps)
    result: Tensor = FewPasses.apply(x, norm.weight, norm.bias, running)  # type: ignore[no-untyped-call]
    return result


def knows(norm: nn.BatchNorm2d) -> bool:
    """Whether the layer has all that the kernels read and write, and does nothing else."""
    plain = type(norm).forward is nn.BatchNorm2d.forward
    kept = plain and norm.momentum is not None and norm.track_running_stats and norm.affine
    return kept and norm.weight.dtype == torch.float32


def is_fast_for(x: Tensor) -> bool:
    """Whether the kernels take these images, which must have more than one pixel."""
    return x.shape[1] < x.numel() and are_for_kernels(x)


class Running(NamedTuple):
    """What a norm keeps of the batches it has seen, and how it follows them."""

    mean: Tensor | None
    variance: Tensor | None
    seen: Tensor | None
    momentum: float | None
    epsilon: float


class Tiles(NamedTuple):
    """How images are divided among programs."""

    rows: int
    channels: int
    tall: int
    wide: int

    @property
    def units(self) -> tuple[int, int]:
        """The channels as a number of units, and what a unit is: what a thread reads at once, if they divide so."""
        unit = 1 if self.channels % READ_AT_ONCE else READ_AT_ONCE
        return self.channels // unit, unit

    @property
    def grid(self) -> tuple[int, int]:
        """A program for every tile."""
        return -(-self.rows // self.tall), -(-self.channels // self.wide)

    @property
    def lines(self) -> int:
        """Programs that share the rows when these are added up."""
        down, across = self.grid
        return min(down, max(1, PROGRAMS // across))


def tiles(x: Tensor) -> Tiles:
    """As narrow as the channels are."""
    channels = x.shape[1]
    wide = min(MOST, max(FEWEST, power_of_two(channels)))
    return Tiles(x.numel() // channels, channels, TILE // wide, wide)


class FewPasses(torch.autograd.Function):
    """Normalises, scales, shifts, and cuts off below zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running: Running) -> Tensor:
        """The running statistics follow."""
        how, run = tiles(x), _kernels()
        down, across = how.grid
        partial = torch.empty((2, how.lines, how.channels), device=x.device)
        mean, inverse = torch.empty((2, how.channels), device=x.device).unbind(0)
        result = torch.empty_like(x)
        units, unit = how.units
        run.add_up[how.lines, across](x, partial, how.rows, units, how.lines, unit, how.tall, how.wide)
        run.finish[(-(-how.channels // FEWEST),)](
            x,
            partial,
            mean,
            inverse,
            running.mean,
            running.variance,
            running.seen,
            how.rows,
            how.channels,
            how.lines,
            running.epsilon,
            running.momentum,
            power_of_two(how.lines),
            FEWEST,
        )
        sizes = (how.rows, units, unit, how.tall, how.wide)
        run.apply[down, across](x, mean, inverse, weight, bias, result, *sizes)
        ctx.save_for_backward(x, mean, inverse, weight, bias)
        ctx.how = how
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Of the images, the weight and the bias."""
        x, mean, inverse, weight, bias = ctx.saved_tensors
        how, run = ctx.how, _kernels()
        down, across = how.grid
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        partial = torch.empty((2, how.lines, how.channels), device=x.device)
        bias_slope, weight_slope = torch.empty((2, how.channels), device=x.device).unbind(0)
        passed = torch.empty_like(x)
        known, (units, unit) = (x, gradient, mean, inverse, weight, bias), how.units
        run.add_up_back[how.lines, across](*known, partial, how.rows, units, how.lines, unit, how.tall, how.wide)
        run.finish_back[(-(-how.channels // FEWEST),)](
            partial, bias_slope, weight_slope, how.channels, how.lines, power_of_two(how.lines), FEWEST
        )
        sizes = (how.rows, units, unit, how.tall, how.wide)
        run.apply_back[down, across](*known, bias_slope, weight_slope, passed, *sizes)
        return passed, weight_slope, bias_slope, None


@cache
def _kernels() -> Any:
    return importlib.import_module("headgate_lab.models.norm_kernels")
