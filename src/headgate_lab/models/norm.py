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
from torch.nn.functional import relu

from headgate_lab.models.kernel_images import (
    are_for_kernels,
    does_nothing_else,
    power_of_two,
    without_second_derivative,
)

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
    if isinstance(norm, nn.BatchNorm2d) and norm.num_features == x.shape[1] and knows(norm) and is_fast_for(x):
        result: Tensor = FewPasses.apply(x, *learned_by(norm), running_of(norm))  # type: ignore[no-untyped-call]
        return result
    return relu(norm(x))


def knows(norm: nn.BatchNorm2d) -> bool:
    """Whether the layer learns, has all that the kernels read and write, and does nothing else."""
    plain = norm.training and type(norm).forward is nn.BatchNorm2d.forward and does_nothing_else(norm)
    kept = plain and norm.momentum is not None and norm.track_running_stats and norm.affine
    return kept and norm.weight.dtype == torch.float32


def is_fast_for(x: Tensor) -> bool:
    """Whether the kernels take these images, which must have more than one pixel."""
    return x.shape[1] < x.numel() and are_for_kernels(x)


class Running(NamedTuple):
    """What a norm keeps of the batches it has seen, and how it follows them."""

    mean: Tensor
    variance: Tensor
    seen: Tensor
    momentum: float
    epsilon: float


def running_of(norm: nn.BatchNorm2d) -> Running:
    """Of a norm that the kernels know."""
    mean, variance, seen, momentum = norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.momentum
    assert mean is not None and variance is not None and seen is not None and momentum is not None
    return Running(mean, variance, seen, momentum, norm.eps)


def learned_by(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Weight and bias, one number after the other in memory, also where they are computed from others."""
    return norm.weight.contiguous(), norm.bias.contiguous()


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


class Statistics(NamedTuple):
    """Of every channel of a batch: mean, inverse deviation, what the norm multiplies it by, and what it adds then."""

    mean: Tensor
    inverse: Tensor
    times: Tensor
    plus: Tensor


class Back(NamedTuple):
    """The gradients of a norm's bias and weight, and what they add to that of what it read.

    That is: `along` times what was read, and `more`.
    """

    bias: Tensor
    weight: Tensor
    along: Tensor
    more: Tensor


class FewPasses(torch.autograd.Function):
    """Normalises, scales, shifts, and cuts off below zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running: Running) -> Tensor:
        """The running statistics follow."""
        known = statistics(x, weight, bias, running)
        ctx.save_for_backward(x, *known)
        return applied(x, known)

    @staticmethod
    @without_second_derivative
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Of the images, the weight and the bias."""
        x, known = ctx.saved_tensors[0], Statistics(*ctx.saved_tensors[1:])
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        back = gone_back(x, gradient, known)
        return passed_on(x, gradient, known, back), back.weight, back.bias, None


def applied(x: Tensor, known: Statistics) -> Tensor:
    """What a norm makes of images, and ReLU of that."""
    how, result = tiles(x), torch.empty_like(x)
    units, unit = how.units
    _kernels().apply[how.grid](x, known.times, known.plus, result, how.rows, units, unit, how.tall, how.wide)
    return result


def gone_back(x: Tensor, gradient: Tensor, known: Statistics) -> Back:
    """What the gradient of what `applied` gives adds up to."""
    how = tiles(x)
    units, unit = how.units
    partial = torch.empty((2, how.lines, how.channels), device=x.device)
    _kernels().add_up_back[how.lines, how.grid[1]](
        x, gradient, *known, partial, how.rows, units, how.lines, unit, how.tall, how.wide
    )
    return finished_back(partial, known, how.rows)


def passed_on(x: Tensor, gradient: Tensor, known: Statistics, back: Back) -> Tensor:
    """The gradient of the images, from that of what `applied` makes of them and what it adds up to."""
    how, passed = tiles(x), torch.empty_like(x)
    units, unit = how.units
    _kernels().apply_back[how.grid](
        x, gradient, known.times, known.plus, back.along, back.more, passed, how.rows, units, unit, how.tall, how.wide
    )
    return passed


def statistics(x: Tensor, weight: Tensor, bias: Tensor, running: Running) -> Statistics:
    """Of images, for a norm of this weight and bias; the running ones follow."""
    how = tiles(x)
    units, unit = how.units
    partial = torch.empty((2, how.lines, how.channels), device=x.device)
    _kernels().add_up[how.lines, how.grid[1]](x, partial, how.rows, units, how.lines, unit, how.tall, how.wide)
    return finished(x, partial, how.rows, weight, bias, running)


def finished(origin: Tensor, partial: Tensor, rows: int, weight: Tensor, bias: Tensor, running: Running) -> Statistics:
    """The same from sums of so many rows and of their squares, counted from what `origin` begins with."""
    _, lines, channels = partial.shape
    found = Statistics(*torch.empty((4, channels), device=partial.device).unbind(0))
    _kernels().finish[(-(-channels // FEWEST),)](
        origin,
        partial,
        weight,
        bias,
        *found,
        running.mean,
        running.variance,
        running.seen,
        rows,
        channels,
        lines,
        running.epsilon,
        running.momentum,
        power_of_two(lines),
        FEWEST,
    )
    return found


def finished_back(partial: Tensor, known: Statistics, rows: int) -> Back:
    """From sums over so many rows of gradients, and of gradients times normalised values."""
    _, lines, channels = partial.shape
    found = Back(*torch.empty((4, channels), device=partial.device).unbind(0))
    _kernels().finish_back[(-(-channels // FEWEST),)](
        partial, *known[:3], *found, rows, channels, lines, power_of_two(lines), FEWEST
    )
    return found


@cache
def _kernels() -> Any:
    return importlib.import_module("headgate_lab.models.norm_kernels")
