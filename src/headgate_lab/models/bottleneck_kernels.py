"""Convolutions of one pixel and the norms around them, both ways: Triton kernels for images that lie channels last.

Imported on demand (`headgate_lab.models.bottleneck`), since only a torch for GPUs brings Triton along. Images are a
matrix: a row for every pixel, a column for every channel. What a convolution reads is normalised and cut off below
zero on its way in, and what it writes is added up on its way out for the norm behind it, so that nothing between a
norm and its convolution is ever written. All channels that are read are before a program at once. Programs are
numbered by the rows they take (every `lines`-th tile) and by the channels they write; sums over rows are written a line
for each program and added up later: no order of execution can change them. Channels are told in eights, so that the
compiler knows in what pieces a row can be read.

A norm multiplies what it reads by `times` and adds `plus`; the gradient of what it reads is that of what it writes
times `times`, what it read times `along`, and `more` (`headgate_lab.models.norm_kernels`). No annotations but those
Triton understands.
"""

import triton
import triton.language as tl


@triton.jit
def convolve(
    x,
    times,
    plus,
    weight,
    stream,
    result,
    origin,
    partial,
    rows,
    input_eights,
    output_eights,
    output_step,
    input_step,
    lines,
    ADDS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """Norm, ReLU and convolution. `ADDS`: the stream is added. Otherwise the result's sums, counted from `origin`."""
    inputs, outputs = input_eights * 8, output_eights * 8
    read = tl.arange(0, INPUTS)
    written = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    known, wanted = read < inputs, written < outputs
    factor = tl.load(times + read, mask=known, other=0.0)
    shift = tl.load(plus + read, mask=known, other=0.0)
    factors = weight + written[None, :] * output_step + read[:, None] * input_step
    taken = tl.load(factors, mask=known[:, None] & wanted[None, :], other=0.0).to(result.dtype.element_ty)
    zero = tl.load(origin + written, mask=wanted, other=0.0)
    total = tl.zeros([TILE_ROWS, OUTPUTS], dtype=tl.float32)
    squares = tl.zeros([TILE_ROWS, OUTPUTS], dtype=tl.float32)
    for start in range(tl.program_id(0) * TILE_ROWS, rows, lines * TILE_ROWS):
        row = start + tl.arange(0, TILE_ROWS)
        there = (row < rows)[:, None] & known[None, :]
        value = tl.load(x + row[:, None] * inputs + read[None, :], mask=there, other=0.0).to(tl.float32)
        value = tl.maximum(value * factor[None, :] + shift[None, :], 0.0, propagate_nan=tl.PropagateNan.ALL)
        product = tl.dot(value.to(result.dtype.element_ty), taken)
        at = row[:, None] * outputs + written[None, :]
        inside = (row < rows)[:, None] & wanted[None, :]
        if ADDS:
            product += tl.load(stream + at, mask=inside, other=0.0).to(tl.float32)
        rounded = product.to(result.dtype.element_ty)
        tl.store(result + at, rounded, mask=inside)
        if not ADDS:
            away = tl.where(inside, rounded.to(tl.float32) - zero[None, :], 0.0)
            total += away
            squares += away * away
    if not ADDS:
        line = partial + tl.program_id(0) * outputs + written
        tl.store(line, tl.sum(total, 0), mask=wanted)
        tl.store(line + lines * outputs, tl.sum(squares, 0), mask=wanted)


@triton.jit
def go_back(
    gradient,
    weight,
    x,
    mean,
    inverse,
    times,
    plus,
    passed,
    partial,
    weight_partial,
    rows,
    input_eights,
    output_eights,
    output_step,
    input_step,
    lines,
    line_step,
    line_start,
    WRITES: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """From the gradient of what a convolution wrote to that of what the norm before it wrote, before the ReLU.

    It is added up for the gradients of the norm's weight and bias and, if `WRITES`, written. A line of `weight_partial`
    is the gradient of the convolution's weight from the program's rows: outputs, and inputs of each.
    """
    inputs, outputs = input_eights * 8, output_eights * 8
    read = tl.arange(0, OUTPUTS)
    written = tl.program_id(1) * INPUTS + tl.arange(0, INPUTS)
    known, wanted = read < outputs, written < inputs
    factor = tl.load(times + written, mask=wanted, other=0.0)
    shift = tl.load(plus + written, mask=wanted, other=0.0)
    middle = tl.load(mean + written, mask=wanted, other=0.0)
    factors = weight + read[:, None] * output_step + written[None, :] * input_step
    taken = tl.load(factors, mask=known[:, None] & wanted[None, :], other=0.0).to(passed.dtype.element_ty)
    total = tl.zeros([TILE_ROWS, INPUTS], dtype=tl.float32)
    products = tl.zeros([TILE_ROWS, INPUTS], dtype=tl.float32)
    of_weight = tl.zeros([OUTPUTS, INPUTS], dtype=tl.float32)
    for start in range(tl.program_id(0) * TILE_ROWS, rows, lines * TILE_ROWS):
        row = start + tl.arange(0, TILE_ROWS)
        there = (row < rows)[:, None] & known[None, :]
        value = tl.load(gradient + row[:, None] * outputs + read[None, :], mask=there, other=0.0)
        place = row[:, None] * inputs + written[None, :]
        mine = (row < rows)[:, None] & wanted[None, :]
        seen = tl.load(x + place, mask=mine, other=0.0).to(tl.float32)
        level = tl.maximum(seen * factor[None, :] + shift[None, :], 0.0, propagate_nan=tl.PropagateNan.ALL)
        of_weight = tl.dot(tl.trans(value), level.to(passed.dtype.element_ty), of_weight)
        slope = tl.where(level > 0.0, tl.dot(value, taken), 0.0)
        if WRITES:
            rounded = slope.to(passed.dtype.element_ty)
            tl.store(passed + place, rounded, mask=mine)
            slope = rounded.to(tl.float32)
        total += slope
        products += slope * (seen - middle[None, :])
    line = partial + tl.program_id(0) * inputs + written
    tl.store(line, tl.sum(total, 0), mask=wanted)
    by = tl.load(inverse + written, mask=wanted, other=0.0)
    tl.store(line + lines * inputs, tl.sum(products, 0) * by, mask=wanted)
    at = tl.program_id(0) * line_step + line_start + read[:, None] * inputs + written[None, :]
    tl.store(weight_partial + at, of_weight, mask=known[:, None] & wanted[None, :])


@triton.jit
def end(
    gradient,
    weight,
    x,
    times,
    plus,
    along,
    more,
    stream,
    passed,
    rows,
    input_eights,
    output_eights,
    output_step,
    input_step,
    lines,
    TILE_ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """As `go_back`, and on to the gradient of what the norm read, that of the stream added."""
    inputs, outputs = input_eights * 8, output_eights * 8
    read = tl.arange(0, OUTPUTS)
    written = tl.program_id(1) * INPUTS + tl.arange(0, INPUTS)
    known, wanted = read < outputs, written < inputs
    factor = tl.load(times + written, mask=wanted, other=0.0)
    shift = tl.load(plus + written, mask=wanted, other=0.0)
    turn = tl.load(along + written, mask=wanted, other=0.0)
    rest = tl.load(more + written, mask=wanted, other=0.0)
    factors = weight + read[:, None] * output_step + written[None, :] * input_step
    taken = tl.load(factors, mask=known[:, None] & wanted[None, :], other=0.0).to(passed.dtype.element_ty)
    for start in range(tl.program_id(0) * TILE_ROWS, rows, lines * TILE_ROWS):
        row = start + tl.arange(0, TILE_ROWS)
        there = (row < rows)[:, None] & known[None, :]
        value = tl.load(gradient + row[:, None] * outputs + read[None, :], mask=there, other=0.0)
        place = row[:, None] * inputs + written[None, :]
        mine = (row < rows)[:, None] & wanted[None, :]
        seen = tl.load(x + place, mask=mine, other=0.0).to(tl.float32)
        slope = tl.where(seen * factor[None, :] + shift[None, :] > 0.0, tl.dot(value, taken), 0.0)
        slope = slope * factor[None, :] + seen * turn[None, :] + rest[None, :]
        slope += tl.load(stream + place, mask=mine, other=0.0).to(tl.float32)
        tl.store(passed + place, slope.to(passed.dtype.element_ty), mask=mine)
