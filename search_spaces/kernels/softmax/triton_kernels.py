# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernel of the row softmax: each row is read once, kept in registers and written once.

The exponential is taken in base 2, as the hardware does, in float32 whatever the dtype.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _softmax_rows(
    x_ptr,
    out_ptr,
    group,
    rows,
    x_stride,
    out_stride,
    COLS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS_PER_STEP: tl.constexpr,
    EVEN_ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    STREAM: tl.constexpr,
):
    load_policy: tl.constexpr = "evict_first" if STREAM else ""
    store_policy: tl.constexpr = ".cs" if STREAM else ""
    cols = tl.arange(0, BLOCK)
    row = group * ROWS_PER_STEP + tl.arange(0, ROWS_PER_STEP)
    # Rows beyond the last read the last one: what they compute is sound, and is not stored.
    x_row = row if EVEN_ROWS else tl.minimum(row, rows - 1)
    # A large matrix has more than 2**31 elements; the alignment of its rows is only known here.
    x_at = tl.multiple_of(x_row.to(tl.int64) * x_stride, ALIGN)[:, None] + cols[None, :]
    out_at = tl.multiple_of(row.to(tl.int64) * out_stride, ALIGN)[:, None] + cols[None, :]
    if COLS == BLOCK:
        x = tl.load(x_ptr + x_at, eviction_policy=load_policy)
    else:
        x = tl.load(
            x_ptr + x_at, (cols < COLS)[None, :], float("-inf"), eviction_policy=load_policy
        )
    x = x.to(tl.float32)
    # Scaled after the subtraction: the product of a largest number and log2(e) is infinite.
    powers = tl.exp2((x - tl.max(x, 1)[:, None]) * LOG2E)
    out = (powers * (1.0 / tl.sum(powers, 1))[:, None]).to(out_ptr.dtype.element_ty)
    if EVEN_ROWS and COLS == BLOCK:
        tl.store(out_ptr + out_at, out, cache_modifier=store_policy)
    else:
        mask = (row < rows)[:, None] & (cols < COLS)[None, :]
        tl.store(out_ptr + out_at, out, mask, cache_modifier=store_policy)


@triton.jit
def softmax_kernel(
    x_ptr,
    out_ptr,
    rows,
    x_stride,
    out_stride,
    COLS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS_PER_STEP: tl.constexpr,
    EVEN_ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    STREAM: tl.constexpr,
    LOOP: tl.constexpr,
    LOAD_STAGES: tl.constexpr,
):
    """One group of ROWS_PER_STEP rows per program or, with LOOP, every group the grid apart.

    BLOCK is the power of two that holds a row of COLS. x_stride and out_stride are elements between
    rows, multiples of ALIGN. With STREAM, lines are marked to leave the caches first. LOAD_STAGES
    groups are in flight through shared memory where the loop is pipelined.
    """
    # fmt: off
    if LOOP:
        groups = tl.cdiv(rows, ROWS_PER_STEP)
        for group in tl.range(tl.program_id(0), groups, tl.num_programs(0), num_stages=LOAD_STAGES):
            _softmax_rows(x_ptr, out_ptr, group, rows, x_stride, out_stride,
                          COLS, BLOCK, ROWS_PER_STEP, EVEN_ROWS, ALIGN, STREAM)
    else:
        _softmax_rows(x_ptr, out_ptr, tl.program_id(0), rows, x_stride, out_stride,
                      COLS, BLOCK, ROWS_PER_STEP, EVEN_ROWS, ALIGN, STREAM)
    # fmt: on
