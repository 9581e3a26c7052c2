# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of the row normalisations: rows held in registers, or streamed in two passes.

All sums are float32. Held rows are centred before they are squared, so that nothing cancels;
streamed ones keep a running mean and sum of squared deviations in every lane (Welford, 1962), which
are merged at the end (Chan, Golub and LeVeque, 1979).
"""

import triton
import triton.language as tl


@triton.jit
def _affine(value, weight, bias, CENTRED: tl.constexpr):
    """value * weight + bias in float32; without a mean there is no bias either."""
    value = value * weight.to(tl.float32)
    return value + bias.to(tl.float32) if CENTRED else value


@triton.jit
def _held_rows(
    x_ptr,
    weight,
    bias,
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
    CENTRED: tl.constexpr,
    EPS: tl.constexpr,
):
    load_policy: tl.constexpr = "evict_first" if STREAM else ""
    store_policy: tl.constexpr = ".cs" if STREAM else ""
    cols = tl.arange(0, BLOCK)
    row = group * ROWS_PER_STEP + tl.arange(0, ROWS_PER_STEP)
    # Rows beyond the last read the last one: what they compute is sound, and is not stored.
    x_row = row if EVEN_ROWS else tl.minimum(row, rows - 1)
    x_at = tl.multiple_of(x_row.to(tl.int64) * x_stride, ALIGN)[:, None] + cols[None, :]
    out_at = tl.multiple_of(row.to(tl.int64) * out_stride, ALIGN)[:, None] + cols[None, :]
    in_row = (cols < COLS)[None, :]
    if COLS == BLOCK:
        x = tl.load(x_ptr + x_at, eviction_policy=load_policy).to(tl.float32)
    else:
        x = tl.load(x_ptr + x_at, in_row, 0.0, eviction_policy=load_policy).to(tl.float32)
    if CENTRED:
        x -= (tl.sum(x, 1) * (1.0 / COLS))[:, None]
        if COLS != BLOCK:
            x = tl.where(in_row, x, 0.0)
    scale = tl.rsqrt(tl.sum(x * x, 1) * (1.0 / COLS) + EPS)
    value = _affine(x * scale[:, None], weight[None, :], bias[None, :], CENTRED)
    out = value.to(out_ptr.dtype.element_ty)
    if EVEN_ROWS and COLS == BLOCK:
        tl.store(out_ptr + out_at, out, cache_modifier=store_policy)
    else:
        mask = (row < rows)[:, None] & in_row
        tl.store(out_ptr + out_at, out, mask, cache_modifier=store_policy)


@triton.jit
def held_norm_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
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
    CENTRED: tl.constexpr,
    EPS: tl.constexpr,
    LOOP: tl.constexpr,
    LOAD_STAGES: tl.constexpr,
):
    """One group of ROWS_PER_STEP rows per program or, with LOOP, every group the grid apart.

    BLOCK is the power of two that holds a row of COLS. weight[COLS] and bias[COLS] are read once
    per program. x_stride and out_stride are elements between rows, multiples of ALIGN. CENTRED
    subtracts the mean and adds the bias, as LayerNorm does and RMSNorm does not. LOAD_STAGES
    groups are in flight through shared memory where the loop is pipelined.
    """
    cols = tl.arange(0, BLOCK)
    if COLS == BLOCK:
        weight = tl.load(weight_ptr + cols)
        bias = tl.load(bias_ptr + cols) if CENTRED else weight
    else:
        weight = tl.load(weight_ptr + cols, cols < COLS, 0.0)
        bias = tl.load(bias_ptr + cols, cols < COLS, 0.0) if CENTRED else weight
    # fmt: off
    if LOOP:
        groups = tl.cdiv(rows, ROWS_PER_STEP)
        for group in tl.range(tl.program_id(0), groups, tl.num_programs(0), num_stages=LOAD_STAGES):
            _held_rows(x_ptr, weight, bias, out_ptr, group, rows, x_stride, out_stride,
                       COLS, BLOCK, ROWS_PER_STEP, EVEN_ROWS, ALIGN, STREAM, CENTRED, EPS)
    else:
        _held_rows(x_ptr, weight, bias, out_ptr, tl.program_id(0), rows, x_stride, out_stride,
                   COLS, BLOCK, ROWS_PER_STEP, EVEN_ROWS, ALIGN, STREAM, CENTRED, EPS)
    # fmt: on


@triton.jit
def _row_block(ptr, start, COLS: tl.constexpr, BLOCK: tl.constexpr, POLICY: tl.constexpr):
    at = start + tl.arange(0, BLOCK)
    if COLS % BLOCK == 0:
        block = tl.load(ptr + at, eviction_policy=POLICY)
    else:
        block = tl.load(ptr + at, at < COLS, 0.0, eviction_policy=POLICY)
    return block


@triton.jit
def _row_moments(
    x_ptr,
    COLS: tl.constexpr,
    BLOCK: tl.constexpr,
    CENTRED: tl.constexpr,
    POLICY: tl.constexpr,
    LOAD_STAGES: tl.constexpr,
):
    """Mean (0 unless CENTRED) and mean squared deviation from it of one row."""
    mean = tl.zeros((BLOCK,), dtype=tl.float32)
    spread = tl.zeros((BLOCK,), dtype=tl.float32)
    blocks = 0.0
    for start in tl.range(0, COLS, BLOCK, num_stages=LOAD_STAGES):
        x = _row_block(x_ptr, start, COLS, BLOCK, POLICY).to(tl.float32)
        blocks += 1.0
        if CENTRED:
            away = x - mean
            if COLS % BLOCK != 0:
                away = tl.where(start + tl.arange(0, BLOCK) < COLS, away, 0.0)
            mean += away * (1.0 / blocks)
            spread += away * (x - mean)
        else:
            spread += x * x
    total = 0.0
    if CENTRED:
        # The last block may have left some lanes with one element fewer, or with none at all.
        seen = (COLS // BLOCK + (tl.arange(0, BLOCK) < COLS % BLOCK).to(tl.int32)).to(tl.float32)
        total = tl.sum(mean * seen, 0) * (1.0 / COLS)
        spread += seen * (mean - total) * (mean - total)
    return total, tl.sum(spread, 0) * (1.0 / COLS)


@triton.jit
def streamed_norm_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    x_stride,
    out_stride,
    COLS: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGN: tl.constexpr,
    STREAM: tl.constexpr,
    CENTRED: tl.constexpr,
    EPS: tl.constexpr,
    LOAD_STAGES: tl.constexpr,
):
    """One row per program, read twice in blocks of BLOCK: for its moments, and to be written.

    Shapes, strides and CENTRED as in `held_norm_kernel`. With STREAM, the first reading asks the
    caches to keep the row and the second lets it go. LOAD_STAGES blocks are in flight.
    """
    keep: tl.constexpr = "evict_last" if STREAM else ""
    drop: tl.constexpr = "evict_first" if STREAM else ""
    store_policy: tl.constexpr = ".cs" if STREAM else ""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += tl.multiple_of(row * x_stride, ALIGN)
    out_ptr += tl.multiple_of(row * out_stride, ALIGN)
    mean, variance = _row_moments(x_ptr, COLS, BLOCK, CENTRED, keep, LOAD_STAGES)
    scale = tl.rsqrt(variance + EPS)
    for start in tl.range(0, COLS, BLOCK, num_stages=LOAD_STAGES):
        x = _row_block(x_ptr, start, COLS, BLOCK, drop).to(tl.float32)
        weight = _row_block(weight_ptr, start, COLS, BLOCK, "")
        bias = _row_block(bias_ptr, start, COLS, BLOCK, "") if CENTRED else weight
        out = _affine((x - mean) * scale, weight, bias, CENTRED).to(out_ptr.dtype.element_ty)
        at = start + tl.arange(0, BLOCK)
        if COLS % BLOCK == 0:
            tl.store(out_ptr + at, out, cache_modifier=store_policy)
        else:
            tl.store(out_ptr + at, out, at < COLS, cache_modifier=store_policy)
