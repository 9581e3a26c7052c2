# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernel of a residual addition and the norm of the sum: both matrices are read once.

The sum is rounded to its dtype, as it is stored, before it is normalised in float32. Rows are
centred before they are squared, so that nothing cancels. With LARGEST, the largest code, the result
is quantized by the largest magnitude of its row, as `quantize` does.
"""

import triton
import triton.language as tl

from search_spaces.kernels.quantize.triton_kernels import codes_of, largest_of, scale_of


@triton.jit
def _masked(ptr, at, inside, EVEN: tl.constexpr, POLICY: tl.constexpr):
    if EVEN:
        x = tl.load(ptr + at, eviction_policy=POLICY)
    else:
        x = tl.load(ptr + at, inside, 0.0, eviction_policy=POLICY)
    return x


@triton.jit
def _rows(
    x_ptr, residual_ptr, weight, bias, residual_out_ptr, out_ptr, scale_ptr, group, rows,
    COLS: tl.constexpr, BLOCK: tl.constexpr, ROWS_PER_STEP: tl.constexpr, EVEN: tl.constexpr,
    ALIGN: tl.constexpr, STREAM: tl.constexpr, CENTRED: tl.constexpr, EPS: tl.constexpr,
    LARGEST: tl.constexpr,
):  # fmt: skip
    load_policy: tl.constexpr = "evict_first" if STREAM else ""
    store_policy: tl.constexpr = ".cs" if STREAM else ""
    cols = tl.arange(0, BLOCK)
    row = group * ROWS_PER_STEP + tl.arange(0, ROWS_PER_STEP)
    at = tl.multiple_of(row.to(tl.int64) * COLS, ALIGN)[:, None] + cols[None, :]
    in_row = (cols < COLS)[None, :]
    inside = (row < rows)[:, None] & in_row
    x = _masked(x_ptr, at, inside, EVEN, load_policy).to(tl.float32)
    residual = _masked(residual_ptr, at, inside, EVEN, load_policy).to(tl.float32)
    total = (x + residual).to(residual_out_ptr.dtype.element_ty)
    if EVEN:
        tl.store(residual_out_ptr + at, total, cache_modifier=store_policy)
    else:
        tl.store(residual_out_ptr + at, total, inside, cache_modifier=store_policy)
    value = total.to(tl.float32)
    if CENTRED:
        value -= (tl.sum(value, 1) * (1.0 / COLS))[:, None]
        if COLS != BLOCK:
            value = tl.where(in_row, value, 0.0)
    value = value * tl.rsqrt(tl.sum(value * value, 1) * (1.0 / COLS) + EPS)[:, None]
    value = value * weight[None, :]
    if CENTRED:
        value += bias[None, :]
    if LARGEST > 0:
        # Outside the row, weight and bias are 0.
        scale, reciprocal = scale_of(largest_of(tl.abs(value), 1), LARGEST)
        tl.store(scale_ptr + row, scale, row < rows)
        out = codes_of(value, scale[:, None], reciprocal[:, None], out_ptr)
    else:
        out = value.to(out_ptr.dtype.element_ty)
    if EVEN:
        tl.store(out_ptr + at, out, cache_modifier=store_policy)
    else:
        tl.store(out_ptr + at, out, inside, cache_modifier=store_policy)


@triton.jit
def add_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, residual_out_ptr, out_ptr, scale_ptr, rows,
    COLS: tl.constexpr, BLOCK: tl.constexpr, ROWS_PER_STEP: tl.constexpr, EVEN: tl.constexpr,
    ALIGN: tl.constexpr, STREAM: tl.constexpr, CENTRED: tl.constexpr, EPS: tl.constexpr,
    LARGEST: tl.constexpr, LOOP: tl.constexpr, LOAD_STAGES: tl.constexpr,
):  # fmt: skip
    """One group of ROWS_PER_STEP rows per program or, with LOOP, every group the grid apart.

    All matrices are contiguous. BLOCK is the power of two that holds a row of COLS, which is a
    multiple of ALIGN. EVEN: there is nothing to mask. weight[COLS] and bias[COLS] are read once per
    program. CENTRED subtracts the mean and adds the bias, as LayerNorm does and RMSNorm does not.
    LARGEST is 0 where the result is not quantized; scale[rows] is written otherwise. With STREAM,
    lines are marked to leave the caches first. LOAD_STAGES groups are in flight.
    """
    cols = tl.arange(0, BLOCK)
    weight = _masked(weight_ptr, cols, cols < COLS, COLS == BLOCK, "").to(tl.float32)
    bias = weight
    if CENTRED:
        bias = _masked(bias_ptr, cols, cols < COLS, COLS == BLOCK, "").to(tl.float32)
    # fmt: off
    if LOOP:
        groups = tl.cdiv(rows, ROWS_PER_STEP)
        for group in tl.range(tl.program_id(0), groups, tl.num_programs(0), num_stages=LOAD_STAGES):
            _rows(x_ptr, residual_ptr, weight, bias, residual_out_ptr, out_ptr, scale_ptr, group,
                  rows, COLS, BLOCK, ROWS_PER_STEP, EVEN, ALIGN, STREAM, CENTRED, EPS, LARGEST)
    else:
        _rows(x_ptr, residual_ptr, weight, bias, residual_out_ptr, out_ptr, scale_ptr,
              tl.program_id(0), rows, COLS, BLOCK, ROWS_PER_STEP, EVEN, ALIGN, STREAM, CENTRED, EPS,
              LARGEST)
    # fmt: on
