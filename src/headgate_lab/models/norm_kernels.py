"""BatchNorm with the ReLU that follows it, forwards and backwards: Triton kernels for images that lie channels last.

Imported on demand (`headgate_lab.models.norm`), since only a torch for GPUs brings Triton along. Images are a matrix:
a row for every pixel, a column for every channel. Sums over rows are taken in two steps, first by so many programs
(`lines`), each of its own rows, then over programs: no order of execution can change the result. Values are counted
from those of the first row, or others near their mean, so that squares do not swamp a variance. Where many are read,
channels are told as so many units of `UNIT`, so that the compiler knows where a row can be read in larger pieces. What
is no number stays so: Triton's maximum would make zero of it. No annotations but those Triton understands.
"""

import triton
import triton.language as tl


@triton.jit
def add_up(
    x,
    partial,
    rows,
    units,
    lines,
    UNIT: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_CHANNELS: tl.constexpr,
):
    """Each program's sums of values and of their squares, a line each in the two halves of `partial`."""
    channels = units * UNIT
    channel = tl.program_id(1) * TILE_CHANNELS + tl.arange(0, TILE_CHANNELS)
    known = channel < channels
    first = tl.load(x + channel, mask=known, other=0.0).to(tl.float32)
    total = tl.zeros([TILE_ROWS, TILE_CHANNELS], dtype=tl.float32)
    squares = tl.zeros([TILE_ROWS, TILE_CHANNELS], dtype=tl.float32)
    for start in range(tl.program_id(0) * TILE_ROWS, rows, lines * TILE_ROWS):
        row = start + tl.arange(0, TILE_ROWS)
        inside = (row < rows)[:, None] & known[None, :]
        value = tl.load(x + row[:, None] * channels + channel[None, :], mask=inside, other=0.0).to(tl.float32)
        value = tl.where(inside, value - first[None, :], 0.0)
        total += value
        squares += value * value
    line = partial + tl.program_id(0) * channels + channel
    tl.store(line, tl.sum(total, 0), mask=known)
    tl.store(line + lines * channels, tl.sum(squares, 0), mask=known)


@triton.jit
def finish(
    origin,
    partial,
    weight,
    bias,
    mean,
    inverse,
    times,
    plus,
    running_mean,
    running_variance,
    seen,
    rows,
    channels,
    lines,
    epsilon,
    momentum,
    LINES: tl.constexpr,
    TILE_CHANNELS: tl.constexpr,
):
    """Mean and inverse deviation of every channel from the sums, and what the norm multiplies it by and adds.

    `origin` is what values were counted from: those of the first row, or any others near them. The running statistics
    follow, and `seen` counts on.
    """
    channel = tl.program_id(0) * TILE_CHANNELS + tl.arange(0, TILE_CHANNELS)
    known = channel < channels
    line = tl.arange(0, LINES)
    inside = (line < lines)[:, None] & known[None, :]
    at = partial + line[:, None] * channels + channel[None, :]
    total = tl.sum(tl.load(at, mask=inside, other=0.0), 0) / rows
    squares = tl.sum(tl.load(at + lines * channels, mask=inside, other=0.0), 0) / rows
    middle = tl.load(origin + channel, mask=known, other=0.0).to(tl.float32) + total
    variance = tl.maximum(squares - total * total, 0.0, propagate_nan=tl.PropagateNan.ALL)
    by = 1.0 / tl.sqrt(variance + epsilon)
    factor = by * tl.load(weight + channel, mask=known, other=0.0)
    tl.store(mean + channel, middle, mask=known)
    tl.store(inverse + channel, by, mask=known)
    tl.store(times + channel, factor, mask=known)
    tl.store(plus + channel, tl.load(bias + channel, mask=known, other=0.0) - middle * factor, mask=known)
    before = tl.load(running_mean + channel, mask=known, other=0.0)
    tl.store(running_mean + channel, before + momentum * (middle - before), mask=known)
    before = tl.load(running_variance + channel, mask=known, other=0.0)
    unbiased = variance * rows / (rows - 1)
    tl.store(running_variance + channel, before + momentum * (unbiased - before), mask=known)
    if tl.program_id(0) == 0:
        tl.store(seen, tl.load(seen) + 1)


@triton.jit
def apply(
    x,
    times,
    plus,
    result,
    rows,
    units,
    UNIT: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_CHANNELS: tl.constexpr,
):
    """One tile of the result."""
    channels = units * UNIT
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    channel = tl.program_id(1) * TILE_CHANNELS + tl.arange(0, TILE_CHANNELS)
    known = channel < channels
    inside = (row < rows)[:, None] & known[None, :]
    at = row[:, None] * channels + channel[None, :]
    factor = tl.load(times + channel, mask=known, other=0.0)
    shift = tl.load(plus + channel, mask=known, other=0.0)
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value = value * factor[None, :] + shift[None, :]
    value = tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(result + at, value.to(result.dtype.element_ty), mask=inside)


@triton.jit
def add_up_back(
    x,
    gradient,
    mean,
    inverse,
    times,
    plus,
    partial,
    rows,
    units,
    lines,
    UNIT: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_CHANNELS: tl.constexpr,
):
    """Each program's sums of gradients, and of gradients times normalised values, as in `add_up`."""
    channels = units * UNIT
    channel = tl.program_id(1) * TILE_CHANNELS + tl.arange(0, TILE_CHANNELS)
    known = channel < channels
    middle = tl.load(mean + channel, mask=known, other=0.0)
    factor = tl.load(times + channel, mask=known, other=0.0)
    shift = tl.load(plus + channel, mask=known, other=0.0)
    total = tl.zeros([TILE_ROWS, TILE_CHANNELS], dtype=tl.float32)
    products = tl.zeros([TILE_ROWS, TILE_CHANNELS], dtype=tl.float32)
    for start in range(tl.program_id(0) * TILE_ROWS, rows, lines * TILE_ROWS):
        row = start + tl.arange(0, TILE_ROWS)
        inside = (row < rows)[:, None] & known[None, :]
        at = row[:, None] * channels + channel[None, :]
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        slope = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
        slope = tl.where(value * factor[None, :] + shift[None, :] > 0.0, slope, 0.0)
        total += slope
        products += slope * (value - middle[None, :])
    line = partial + tl.program_id(0) * channels + channel
    tl.store(line, tl.sum(total, 0), mask=known)
    by = tl.load(inverse + channel, mask=known, other=0.0)
    tl.store(line + lines * channels, tl.sum(products, 0) * by, mask=known)


@triton.jit
def finish_back(
    partial,
    mean,
    inverse,
    times,
    bias_slope,
    weight_slope,
    along,
    more,
    rows,
    channels,
    lines,
    LINES: tl.constexpr,
    TILE_CHANNELS: tl.constexpr,
):
    """The gradients of bias and weight, which are the sums, and what they add to those of what the norm read.

    These are gradients times `times`, what was read times `along`, and `more`.
    """
    channel = tl.program_id(0) * TILE_CHANNELS + tl.arange(0, TILE_CHANNELS)
    known = channel < channels
    line = tl.arange(0, LINES)
    inside = (line < lines)[:, None] & known[None, :]
    at = partial + line[:, None] * channels + channel[None, :]
    of_bias = tl.sum(tl.load(at, mask=inside, other=0.0), 0)
    of_weight = tl.sum(tl.load(at + lines * channels, mask=inside, other=0.0), 0)
    tl.store(bias_slope + channel, of_bias, mask=known)
    tl.store(weight_slope + channel, of_weight, mask=known)
    factor = tl.load(times + channel, mask=known, other=0.0) / rows
    turn = tl.load(inverse + channel, mask=known, other=0.0) * of_weight
    middle = tl.load(mean + channel, mask=known, other=0.0)
    tl.store(along + channel, -turn * factor, mask=known)
    tl.store(more + channel, (middle * turn - of_bias) * factor, mask=known)


@triton.jit
def apply_back(
    x,
    gradient,
    times,
    plus,
    along,
    more,
    passed,
    rows,
    units,
    UNIT: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_CHANNELS: tl.constexpr,
):
    """One tile of the gradient that is passed on."""
    channels = units * UNIT
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    channel = tl.program_id(1) * TILE_CHANNELS + tl.arange(0, TILE_CHANNELS)
    known = channel < channels
    inside = (row < rows)[:, None] & known[None, :]
    at = row[:, None] * channels + channel[None, :]
    factor = tl.load(times + channel, mask=known, other=0.0)[None, :]
    shift = tl.load(plus + channel, mask=known, other=0.0)[None, :]
    turn = tl.load(along + channel, mask=known, other=0.0)[None, :]
    rest = tl.load(more + channel, mask=known, other=0.0)[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    slope = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
    slope = tl.where(value * factor + shift > 0.0, slope, 0.0)
    slope = slope * factor + value * turn + rest
    tl.store(passed + at, slope.to(passed.dtype.element_ty), mask=inside)
