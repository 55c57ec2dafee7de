"""BatchNorm with the ReLU that follows it, forwards and backwards: Triton kernels for images that lie channels last.

Imported on demand (`headgate_lab.models.norm`), since only a torch for GPUs brings Triton along. Images are a matrix:
a row for every pixel, a column for every channel. Sums over rows are taken in two steps, first by so many programs
(`lines`), each of its own rows, then over programs: no order of execution can change the result. Values are counted
from those of the first row, so that squares do not swamp a variance. Where many are read, channels are told as so many
units of `UNIT`, so that the compiler knows where a row can be read in larger pieces. No annotations but those Triton
understands.
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
    x,
    partial,
    mean,
    inverse,
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
    """Mean and inverse deviation of every channel from the sums; the running ones follow, and `seen` counts on."""
    channel = tl.program_id(0) * TILE_CHANNELS + tl.arange(0, TILE_CHANNELS)
    known = channel < channels
    line = tl.arange(0, LINES)
    inside = (line < lines)[:, None] & known[None, :]
    at = partial + line[:, None] * channels + channel[None, :]
    total = tl.sum(tl.load(at, mask=inside, other=0.0), 0) / rows
    squares = tl.sum(tl.load(at + lines * channels, mask=inside, other=0.0), 0) / rows
    middle = tl.load(x + channel, mask=known, other=0.0).to(tl.float32) + total
    variance = tl.maximum(squares - total * total, 0.0)
    tl.store(mean + channel, middle, mask=known)
    tl.store(inverse + channel, 1.0 / tl.sqrt(variance + epsilon), mask=known)
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
    mean,
    inverse,
    weight,
    bias,
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
    middle = tl.load(mean + channel, mask=known, other=0.0)
    by = tl.load(inverse + channel, mask=known, other=0.0)
    scale = tl.load(weight + channel, mask=known, other=0.0)
    shift = tl.load(bias + channel, mask=known, other=0.0)
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value = (value - middle[None, :]) * by[None, :] * scale[None, :] + shift[None, :]
    tl.store(result + at, tl.maximum(value, 0.0).to(result.dtype.element_ty), mask=inside)


@triton.jit
def add_up_back(
    x,
    gradient,
    mean,
    inverse,
    weight,
    bias,
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
    by = tl.load(inverse + channel, mask=known, other=0.0)
    scale = tl.load(weight + channel, mask=known, other=0.0)
    shift = tl.load(bias + channel, mask=known, other=0.0)
    total = tl.zeros([TILE_ROWS, TILE_CHANNELS], dtype=tl.float32)
    products = tl.zeros([TILE_ROWS, TILE_CHANNELS], dtype=tl.float32)
    for start in range(tl.program_id(0) * TILE_ROWS, rows, lines * TILE_ROWS):
        row = start + tl.arange(0, TILE_ROWS)
        inside = (row < rows)[:, None] & known[None, :]
        at = row[:, None] * channels + channel[None, :]
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        value = (value - middle[None, :]) * by[None, :]
        slope = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
        slope = tl.where(value * scale[None, :] + shift[None, :] > 0.0, slope, 0.0)
        total += slope
        products += slope * value
    line = partial + tl.program_id(0) * channels + channel
    tl.store(line, tl.sum(total, 0), mask=known)
    tl.store(line + lines * channels, tl.sum(products, 0), mask=known)


@triton.jit
def finish_back(
    partial,
    bias_slope,
    weight_slope,
    channels,
    lines,
    LINES: tl.constexpr,
    TILE_CHANNELS: tl.constexpr,
):
    """The gradients of bias and weight, which are the sums."""
    channel = tl.program_id(0) * TILE_CHANNELS + tl.arange(0, TILE_CHANNELS)
    known = channel < channels
    line = tl.arange(0, LINES)
    inside = (line < lines)[:, None] & known[None, :]
    at = partial + line[:, None] * channels + channel[None, :]
    tl.store(bias_slope + channel, tl.sum(tl.load(at, mask=inside, other=0.0), 0), mask=known)
    products = tl.load(at + lines * channels, mask=inside, other=0.0)
    tl.store(weight_slope + channel, tl.sum(products, 0), mask=known)


@triton.jit
def apply_back(
    x,
    gradient,
    mean,
    inverse,
    weight,
    bias,
    bias_slope,
    weight_slope,
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
    middle = tl.load(mean + channel, mask=known, other=0.0)
    by = tl.load(inverse + channel, mask=known, other=0.0)
    scale = tl.load(weight + channel, mask=known, other=0.0)
    shift = tl.load(bias + channel, mask=known, other=0.0)
    of_bias = tl.load(bias_slope + channel, mask=known, other=0.0) / rows
    of_weight = tl.load(weight_slope + channel, mask=known, other=0.0) / rows
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value = (value - middle[None, :]) * by[None, :]
    slope = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
    slope = tl.where(value * scale[None, :] + shift[None, :] > 0.0, slope, 0.0)
    slope = (slope - of_bias[None, :] - value * of_weight[None, :]) * (scale * by)[None, :]
    tl.store(passed + at, slope.to(passed.dtype.element_ty), mask=inside)
