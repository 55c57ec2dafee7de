"""Convolutions of 3 by 3 between few channels, as the narrow networks for CIFAR have them, by Triton kernels on a GPU.

With 16 or 32 channels torch's take many times as long as reading and writing the images does, above all for the
gradient of the weight. What these compute is the same up to rounding: `benchmarks/few_channels.py` records that, and
how long both take. On an H200 a pass both ways takes 44 µs in place of 102 with 16 channels (32 pixels), 32 in place of
79 with 32 (16 pixels), 28 in place of 45 with 64 (8 pixels).
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from headgate_lab.models.kernel_images import (
    are_for_kernels,
    does_nothing_else,
    power_of_two,
    without_second_derivative,
)

# Channels that a program can have before it, the fewest that Triton multiplies, and what they must be a multiple of.
MOST, FEWEST, EIGHT = 64, 16, 8
# Pixels that a program has before it at a time, where channels are up to 32 and where they are more. Twice as many
# where a result is written, where channels are few.
TALL, SHORT = 128, 64
# Programs for each three taps that add up the gradient of a weight, times the channels that they write; and how many
# steps they read ahead.
LINES, AHEAD = 2048, 2


def convolved(layer: nn.Module, x: Tensor) -> Tensor:
    """What the layer makes of images of shape (B, C, H, W). It need not be a convolution any more."""
    result: Tensor
    if isinstance(layer, nn.Conv2d) and layer.in_channels == x.shape[1] and knows(layer) and are_for_kernels(x):
        result = FewChannels.apply(x, layer.weight)  # type: ignore[no-untyped-call]
    else:
        result = layer(x)
    return result


def knows(layer: nn.Conv2d) -> bool:
    """Whether it is what the kernels compute, and nothing more happens when it is called."""
    plain = type(layer).forward is nn.Conv2d.forward and does_nothing_else(layer)
    shape = (layer.kernel_size, layer.stride, layer.padding, layer.dilation) == ((3, 3), (1, 1), (1, 1), (1, 1))
    simple = layer.bias is None and layer.groups == 1 and layer.padding_mode == "zeros"
    few = all(count <= MOST and count % EIGHT == 0 for count in (layer.in_channels, layer.out_channels))
    return plain and shape and simple and few


class FewChannels(torch.autograd.Function):
    """Images and a weight of shape (outputs, inputs, 3, 3), in any precision, to images of as many pixels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """A border of zeros is taken to be around the images."""
        ctx.dtype, weight = weight.dtype, weight.to(x.dtype, memory_format=torch.channels_last)
        ctx.save_for_backward(x, weight)
        return product(x, weight)

    @staticmethod
    @without_second_derivative
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Of the images and of the weight, those that are asked for."""
        x, weight = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        wants_images, wants_weight = ctx.needs_input_grad
        return (
            product(gradient, weight, turned=True) if wants_images else None,
            slopes(x, gradient).to(ctx.dtype) if wants_weight else None,
        )


def product(x: Tensor, weight: Tensor, *, turned: bool = False) -> Tensor:
    """Images times a weight that lies as they do or, if turned, the gradient of the result times it: the images'."""
    images, _, height, width = x.shape
    outputs = weight.shape[1 if turned else 0]
    result = torch.empty(
        (images, outputs, height, width), dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )
    sizes, (tall, *wide) = _sizes(x, outputs)
    tall = 2 * tall if tall == TALL else tall
    _kernels().convolve[(-(-sizes[0] // tall),)](x, weight, result, *sizes, turned, tall, *wide)
    return result


def slopes(x: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of the weight, added up in two steps: no order of execution can change it."""
    inputs, outputs = x.shape[1], gradient.shape[1]
    sizes, tiles = _sizes(x, outputs)
    lines = min(LINES // tiles[2], -(-sizes[0] // tiles[0]))
    partial = torch.empty((lines, outputs, 3, 3, inputs), device=x.device)
    _kernels().slopes[lines, 3](x, gradient, partial, *sizes, lines, *tiles, num_stages=AHEAD)
    return partial.sum(0).permute(0, 3, 1, 2)


def _sizes(x: Tensor, outputs: int) -> tuple[tuple[int, ...], tuple[int, int, int]]:
    """What the kernels are told of images and channels, and what a program has before it: rows, inputs, outputs."""
    images, inputs, height, width = x.shape
    read, written = (max(FEWEST, power_of_two(count)) for count in (inputs, outputs))
    tall = TALL if max(read, written) <= 32 else SHORT
    return (images * height * width, height, width, inputs // EIGHT, outputs // EIGHT), (tall, read, written)


@cache
def _kernels() -> Any:
    return importlib.import_module("headgate_lab.models.convolution_kernels")
