"""One large weight times its masks, and the way back, each in a single pass over memory: two small Triton kernels.

Imported on demand (`headgate.fused`), since only a torch for GPUs brings Triton along. A weight is seen as a matrix:
rows are its first axis, columns all others as they lie in memory. A mask along the first axis has one entry per row;
one along another axis has `size` entries, each repeated for `inner` neighbouring columns, over and over.
Without a mask along the rows or the columns, `by_row` or `by_column` is not read. No annotations but those that Triton
itself understands.
"""

import triton
import triton.language as tl


@triton.jit
def multiply(
    weight,
    by_row,
    by_column,
    result,
    rows,
    columns,
    size,
    inner,
    HAS_ROW: tl.constexpr,
    HAS_COLUMN: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
):
    """One tile of: result = weight times masks, in the result's dtype."""
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    column = tl.program_id(1) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    value = tl.load(weight + at, mask=inside, other=0.0)
    if HAS_ROW:
        value = value * tl.load(by_row + row, mask=row < rows, other=0.0)[:, None]
    if HAS_COLUMN:
        value = value * tl.load(by_column + (column // inner) % size)[None, :]
    tl.store(result + at, value.to(result.dtype.element_ty), mask=inside)


@triton.jit
def go_back(
    gradient,
    weight,
    by_row,
    by_column,
    passed,
    row_sums,
    column_sums,
    rows,
    columns,
    size,
    inner,
    HAS_ROW: tl.constexpr,
    HAS_COLUMN: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
):
    """One tile of: passed = gradient times masks; and its sums of gradient times weight, times the other mask.

    Each tile writes the sums over its own columns to a line of `row_sums` and over its own rows to a line of
    `column_sums`. Adding these up is left to a second pass: no order of execution can change the result.
    """
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    column = tl.program_id(1) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    received = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
    slope = received * tl.load(weight + at, mask=inside, other=0.0)
    along_rows, along_columns = slope, slope
    if HAS_ROW:
        mask = tl.load(by_row + row, mask=row < rows, other=0.0)[:, None]
        received = received * mask
        along_columns = slope * mask
    if HAS_COLUMN:
        mask = tl.load(by_column + (column // inner) % size)[None, :]
        received = received * mask
        along_rows = slope * mask
        line = column_sums + tl.program_id(0) * columns
        tl.store(line + column, tl.sum(along_columns, 0), mask=column < columns)
    if HAS_ROW:
        line = row_sums + tl.program_id(1) * rows
        tl.store(line + row, tl.sum(along_rows, 1), mask=row < rows)
    tl.store(passed + at, received, mask=inside)
