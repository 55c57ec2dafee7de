"""Convolutions of 3 by 3 pixels between few channels, forwards and backwards: Triton kernels for images channels last.

Imported on demand (`headgate_lab.models.convolution`), since only a torch for GPUs brings Triton along. Images are a
matrix: a row for every pixel, a column for every channel. A *tap* is one of the nine pixels that a pixel of the result
is made of, and beyond the border of its image a tap is zero. All inputs and all outputs are before a program at once,
so that there must be few. Both are told in eights: so the compiler knows that a row can be read in pieces of 16 bytes.
A weight lies output by output, tap by tap, input by input. No annotations but those Triton understands.
"""

import triton
import triton.language as tl


@triton.jit
def convolve(
    x,
    weight,
    result,
    rows,
    height,
    width,
    input_eights,
    output_eights,
    TURNED: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """Some pixels of the result; `TURNED`, of the images' gradient, where the weight's outputs are what is read."""
    inputs, outputs = input_eights * 8, output_eights * 8
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    down, right = (row // width) % height, row % width
    read = tl.arange(0, INPUTS)
    written = tl.arange(0, OUTPUTS)
    known = (read < inputs)[:, None] & (written < outputs)[None, :]
    if TURNED:
        factors = weight + read[:, None] * (9 * outputs) + written[None, :]
    else:
        factors = weight + written[None, :] * (9 * inputs) + read[:, None]
    total = tl.zeros([TILE_ROWS, OUTPUTS], dtype=tl.float32)
    for tap in range(9):
        below, beside = down + (tap // 3 - 1), right + (tap % 3 - 1)
        inside = (row < rows) & (below >= 0) & (below < height) & (beside >= 0) & (beside < width)
        at = (row + (tap // 3 - 1) * width + (tap % 3 - 1))[:, None] * inputs + read[None, :]
        value = tl.load(x + at, mask=inside[:, None] & (read < inputs)[None, :], other=0.0)
        turn = (8 - tap) * outputs if TURNED else tap * inputs
        factor = tl.load(factors + turn, mask=known, other=0.0)
        total = tl.dot(value, factor, total)
    at = row[:, None] * outputs + written[None, :]
    tl.store(result + at, total.to(result.dtype.element_ty), mask=(row < rows)[:, None] & (written < outputs)[None, :])


@triton.jit
def slopes(
    x,
    gradient,
    partial,
    rows,
    height,
    width,
    input_eights,
    output_eights,
    lines,
    TILE_ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """The gradient of three taps side by side from one program's rows: `partial` is (lines, outputs, taps, inputs)."""
    inputs, outputs = input_eights * 8, output_eights * 8
    below = tl.program_id(1) - 1
    read = tl.arange(0, INPUTS)
    written = tl.arange(0, OUTPUTS)
    known, wanted = (read < inputs)[None, :], (written < outputs)[:, None]
    of_left = tl.zeros([OUTPUTS, INPUTS], dtype=tl.float32)
    of_middle = tl.zeros([OUTPUTS, INPUTS], dtype=tl.float32)
    of_right = tl.zeros([OUTPUTS, INPUTS], dtype=tl.float32)
    for start in range(tl.program_id(0) * TILE_ROWS, rows, lines * TILE_ROWS):
        row = start + tl.arange(0, TILE_ROWS)
        down, right = (row // width) % height + below, row % width
        inside = (row < rows) & (down >= 0) & (down < height)
        at = written[:, None] + row[None, :] * outputs
        slope = tl.load(gradient + at, mask=wanted & (row < rows)[None, :], other=0.0)
        at = x + (row + below * width)[:, None] * inputs + read[None, :]
        value = tl.load(at - inputs, mask=(inside & (right > 0))[:, None] & known, other=0.0)
        of_left = tl.dot(slope, value, of_left)
        value = tl.load(at, mask=inside[:, None] & known, other=0.0)
        of_middle = tl.dot(slope, value, of_middle)
        value = tl.load(at + inputs, mask=(inside & (right < width - 1))[:, None] & known, other=0.0)
        of_right = tl.dot(slope, value, of_right)
    first = (tl.program_id(0) * outputs + written[:, None]) * 9 + 3 * tl.program_id(1)
    at = partial + first * inputs + read[None, :]
    tl.store(at, of_left, mask=wanted & known)
    tl.store(at + inputs, of_middle, mask=wanted & known)
    tl.store(at + 2 * inputs, of_right, mask=wanted & known)
