# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
"""What the gradients of a normalisation need of every row, in one launch with one config.

It belongs to no family: what it reads stays in the cache for the kernel that follows.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=("rows",))
def row_statistics_kernel(
    x_ptr, rstd_ptr, mean_ptr, rows, COLS: tl.constexpr, EPS: tl.constexpr, CENTRED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """rstd[rows] and, where CENTRED, mean[rows] of a contiguous x[rows, COLS], in float32.

    ROWS rows per program, in blocks of BLOCK columns; the variance is that of what is centred.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = (row < rows)[:, None]
    start = row.to(tl.int64)[:, None] * COLS
    cols = tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    mean = tl.zeros((ROWS,), tl.float32)
    if CENTRED:
        for first in range(0, COLS, BLOCK):
            inside = known & (first + cols < COLS)
            total += tl.load(x_ptr + start + first + cols, inside, 0.0).to(tl.float32)
        mean = tl.sum(total, 1) / COLS
        tl.store(mean_ptr + row, mean, row < rows)
        total = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(0, COLS, BLOCK):
        inside = known & (first + cols < COLS)
        x = tl.load(x_ptr + start + first + cols, inside, 0.0).to(tl.float32)
        if CENTRED:
            x = tl.where(inside, x - mean[:, None], 0.0)
        total += x * x
    tl.store(rstd_ptr + row, 1.0 / tl.sqrt(tl.sum(total, 1) / COLS + EPS), row < rows)
