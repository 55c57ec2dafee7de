"""The inside of a pre-activation bottleneck as few kernels, where the lab's time goes: in training on a GPU.

Norm, ReLU and convolution three times, and the stream added, is what `headgate_lab.models.preresnet` says. Layer by
layer they read and write the stream, which has four times the channels of the images inside, again and again. Here it
is read three times and written once forwards; what lies between a norm and a convolution of one pixel is computed where
it is needed; gradients of weights and norms are added up on the way. What comes out is the same up to rounding.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headgate_lab.models import convolution, norm
from headgate_lab.models.convolution import EIGHT, FEWEST
from headgate_lab.models.kernel_images import (
    COUNTABLE,
    does_nothing_else,
    power_of_two,
    without_second_derivative,
)
from headgate_lab.models.norm import Back, Running, Statistics, learned_by, running_of
from headgate_lab.models.rows import RowsConv2d

# Channels of inner images and of the stream that programs can have before them; and how many they write at a time.
INNER, WIDEST, MOST = 64, 256, 64
FEWEST_ROWS, WARPS = 16, 4
# Programs that share the rows where gradients of weights are added up: so many that what they write is about so many
# numbers, and that each has so many rows.
FEWEST_ADDING, MOST_ADDING, ADDED, ROWS_ADDED = 64, 256, 2**20, 128


class Work(NamedTuple):
    """How a kernel's work is divided: as was fastest with five networks side by side (of some eighty ways, on an H200).

    Attributes:
        numbers: that a program has before it, if it has neither fewer than the fewest nor more than the most rows.
        most_rows: as it says.
        ahead: steps that a program reads ahead.
        programs: that share the rows; what adds up gradients of weights has its own number.
    """

    numbers: int
    most_rows: int
    ahead: int
    programs: int = 0


CONVOLVE, END = Work(8192, 128, 2, 256), Work(2048, 128, 1, 512)
# Back through the third convolution; through the first, from at most so many channels and from more.
BACK_THIRD, BACK_FIRST, BACK_FIRST_WIDE = Work(8192, 64, 1), Work(2048, 32, 2), Work(4096, 64, 1)
NARROW = 32


def is_fast_for(block: Any, x: Tensor) -> bool:
    """Whether the kernels compute what a `headgate_lab.models.preresnet.Bottleneck` makes of these images.

    Any of its parts may have been exchanged for another, or be watched from outside; then they do not.
    """
    if not norm.is_fast_for(x) or type(block.shortcut) is not nn.Identity or not does_nothing_else(block.shortcut):
        return False
    norms, layers = (block.bn1, block.bn2, block.bn3), (block.conv1, block.conv2, block.conv3)
    return (
        all(isinstance(one, nn.BatchNorm2d) and norm.knows(one) for one in norms)
        and all(_knows(layer, side) for layer, side in zip(layers, (1, 3, 1), strict=True))
        and all(layer.out_channels <= INNER for layer in layers[:2])
        and x.shape[1] <= WIDEST
        and x[:, 0].numel() * INNER < COUNTABLE
        and _fit(x, norms, layers)
    )


def _knows(layer: nn.Module, side: int) -> bool:
    """Whether it is a plain convolution of so many pixels along each side, of eights of channels."""
    plain = (nn.Conv2d.forward, RowsConv2d.forward)
    if not isinstance(layer, nn.Conv2d) or type(layer).forward not in plain or not does_nothing_else(layer):
        return False
    shape = layer.kernel_size, layer.stride, layer.padding, layer.dilation
    simple = layer.bias is None and layer.groups == 1 and layer.padding_mode == "zeros"
    eights = layer.in_channels % EIGHT == 0 == layer.out_channels % EIGHT
    return simple and eights and shape == ((side, side), (1, 1), (side // 2, side // 2), (1, 1))


def _weight(layer: nn.Conv2d) -> Tensor:
    return layer.masked() if isinstance(layer, RowsConv2d) else layer.weight


def _fit(x: Tensor, norms: Sequence[nn.BatchNorm2d], layers: Sequence[nn.Conv2d]) -> bool:
    """Whether each reads as many channels as there are; the last writes as many as the stream has."""
    widths = [x.shape[1], *(layer.out_channels for layer in layers)]
    read = [(one.num_features, layer.in_channels) for one, layer in zip(norms, layers, strict=True)]
    return read == [(width, width) for width in widths[:-1]] and widths[-1] == widths[0]


def computed(block: Any, x: Tensor) -> Tensor:
    """What the block makes of images of shape (B, C, H, W); its running statistics follow."""
    norms, layers = (block.bn1, block.bn2, block.bn3), (block.conv1, block.conv2, block.conv3)
    learned = [parameter for one in norms for parameter in learned_by(one)] + [_weight(one) for one in layers]
    result: Tensor = FewKernels.apply(x, [running_of(one) for one in norms], *learned)  # type: ignore[no-untyped-call]
    return result


class Normed(NamedTuple):
    """Images that a norm reads, and what it makes of them."""

    images: Tensor
    known: Statistics


class FewKernels(torch.autograd.Function):
    """The images, how the norms follow them, the norms' weights and biases, and the convolutions' weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, running: Sequence[Running], *learned: Tensor) -> Tensor:
        """The result; the running statistics follow."""
        (weight1, bias1, weight2, bias2, weight3, bias3), (layer1, layer2, layer3) = learned[:6], learned[6:]
        first = Normed(x, norm.statistics(x, weight1, bias1, running[0]))
        # Sums are counted from something near the mean, which must be known before there is anything to count.
        inner, partial = _convolved(first, layer1, running[1].mean)
        known = norm.finished(running[1].mean, partial, inner[:, 0].numel(), weight2, bias2, running[1])
        second, active = Normed(inner, known), norm.applied(inner, known)
        turned = layer2.to(x.dtype, memory_format=torch.channels_last)
        inner = convolution.product(active, turned)
        third = Normed(inner, norm.statistics(inner, weight3, bias3, running[2]))
        result, _ = _convolved(third, layer3, None, stream=x)
        saved = [tensor for one in (first, second, third) for tensor in (one.images, *one.known)]
        ctx.save_for_backward(*saved, active, layer1, turned, layer3)
        ctx.dtype = layer2.dtype
        return result

    @staticmethod
    @without_second_derivative
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Of everything that is learned, and of the images."""
        saved = ctx.saved_tensors
        first, second, third = (Normed(saved[at], Statistics(*saved[at + 1 : at + 5])) for at in (0, 5, 10))
        active, layer1, layer2, layer3 = saved[15:]
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        sums = WeightSums((layer1, layer3), gradient)
        passed, back3 = _gone_back(gradient, layer3, third, sums.part(1), writes=True)
        passed = norm.passed_on(third.images, passed, third.known, back3)
        slopes2 = convolution.slopes(active, passed).to(ctx.dtype)
        passed = convolution.product(passed, layer2, turned=True)
        back2 = norm.gone_back(second.images, passed, second.known)
        passed = norm.passed_on(second.images, passed, second.known, back2)
        _, back1 = _gone_back(passed, layer1, first, sums.part(0), writes=False)
        passed = _ended(passed, layer1, first, back1, gradient)
        of_norms = [part for back in (back1, back2, back3) for part in (back.weight, back.bias)]
        slopes1, slopes3 = sums.slopes()
        return passed, None, *of_norms, slopes1, slopes2, slopes3


class Part(NamedTuple):
    """Of every line, what lies from `start` on."""

    lines: Tensor
    start: int

    @property
    def steps(self) -> tuple[int, int]:
        """From line to line, and to where the part begins."""
        return self.lines.shape[1], self.start


class WeightSums:
    """What adds up to the gradients of several weights: a line for each program, a part of it for each weight.

    In a part there are the inputs of every output.
    """

    def __init__(self, weights: Sequence[Tensor], images: Tensor) -> None:
        self.weights, self.sizes = weights, [weight.numel() for weight in weights]
        rows = -(-images[:, 0].numel() // ROWS_ADDED)
        lines = max(1, min(rows, MOST_ADDING, max(FEWEST_ADDING, ADDED // sum(self.sizes))))
        self.lines = torch.empty((lines, sum(self.sizes)), device=images.device)

    def part(self, number: int) -> Part:
        """That of a weight."""
        return Part(self.lines, sum(self.sizes[:number]))

    def slopes(self) -> list[Tensor]:
        """The gradients, when all lines are written."""
        total, dtypes = self.lines.sum(0), {weight.dtype for weight in self.weights}
        if len(dtypes) == 1:  # as most often: all are cast together
            total = total.to(dtypes.pop())
        parts = zip(total.split(self.sizes), self.weights, strict=True)
        return [one.view_as(weight).to(weight.dtype) for one, weight in parts]


class Shape(NamedTuple):
    """What kernels are told of rows and channels, and of a weight's places in memory."""

    rows: int
    inputs: int
    outputs: int
    steps: tuple[int, int]

    @property
    def told(self) -> tuple[int, ...]:
        """With channels in eights."""
        return self.rows, self.inputs // EIGHT, self.outputs // EIGHT, *self.steps


class Tiles(NamedTuple):
    """What a program has before it: all channels that are read and some of those that are written, of some rows."""

    tall: int
    read: int
    written: int
    down: int
    across: int

    def lines(self, programs: int) -> int:
        """Programs that share the rows, if there are so many in all."""
        return max(1, min(self.down, programs // self.across))


def _shape(x: Tensor, weight: Tensor) -> Shape:
    outputs, inputs = weight.shape[:2]
    return Shape(x[:, 0].numel(), inputs, outputs, (weight.stride(0), weight.stride(1)))


def _tiles(work: Work, rows: int, read: int, written: int) -> Tiles:
    wide, part = max(FEWEST, power_of_two(read)), min(MOST, max(FEWEST, power_of_two(written)))
    tall = min(work.most_rows, max(FEWEST_ROWS, work.numbers // max(wide, part)))
    return Tiles(tall, wide, part, -(-rows // tall), -(-written // part))


def _convolved(
    read: Normed, weight: Tensor, origin: Tensor | None, stream: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Images, and the sums of their channels, counted from `origin`, unless the stream is added."""
    x, how = read.images, _shape(read.images, weight)
    tiles = _tiles(CONVOLVE, how.rows, how.inputs, how.outputs)
    lines = tiles.lines(CONVOLVE.programs)
    result = _images(x, how.outputs)
    partial = torch.empty((2, lines, how.outputs), device=x.device)
    _kernels().convolve[lines, tiles.across](
        x, read.known.times, read.known.plus, weight, x if stream is None else stream, result,
        partial if origin is None else origin, partial, *how.told, lines, stream is not None,
        tiles.tall, tiles.read, tiles.written, num_warps=WARPS, num_stages=CONVOLVE.ahead,
    )  # fmt: skip
    return result, partial


def _gone_back(gradient: Tensor, weight: Tensor, read: Normed, sums: Part, *, writes: bool) -> tuple[Tensor, Back]:
    """The gradients of what a norm wrote and of what it learned; that of the weight behind it is left in `sums`.

    The first stands for nothing if it is not written.
    """
    x, how = read.images, _shape(read.images, weight)
    passed = torch.empty_like(x) if writes else x
    work = BACK_THIRD if writes else BACK_FIRST if how.outputs <= NARROW else BACK_FIRST_WIDE
    tiles, lines = _tiles(work, how.rows, how.outputs, how.inputs), len(sums.lines)
    partial = torch.empty((2, lines, how.inputs), device=x.device)
    _kernels().go_back[lines, tiles.across](
        gradient, weight, x, *read.known, passed, partial, sums.lines, *how.told, lines, *sums.steps, writes,
        tiles.tall, tiles.written, tiles.read, num_warps=WARPS, num_stages=work.ahead,
    )  # fmt: skip
    return passed, norm.finished_back(partial, read.known, how.rows)


def _ended(gradient: Tensor, weight: Tensor, read: Normed, back: Back, stream: Tensor) -> Tensor:
    """The gradient of what the first norm read, and of the stream."""
    x, known, how = read.images, read.known, _shape(read.images, weight)
    passed, tiles = torch.empty_like(x), _tiles(END, how.rows, how.outputs, how.inputs)
    lines = tiles.lines(END.programs)
    _kernels().end[lines, tiles.across](
        gradient, weight, x, known.times, known.plus, back.along, back.more, stream, passed, *how.told, lines,
        tiles.tall, tiles.written, tiles.read, num_warps=WARPS, num_stages=END.ahead,
    )  # fmt: skip
    return passed


def _images(x: Tensor, channels: int) -> Tensor:
    """Room for images of as many pixels."""
    images, _, height, width = x.shape
    return torch.empty(
        (images, channels, height, width), dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )


@cache
def _kernels() -> Any:
    return importlib.import_module("headgate_lab.models.bottleneck_kernels")
