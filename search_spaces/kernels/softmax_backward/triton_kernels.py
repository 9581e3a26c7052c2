# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of the backward pass of softmax and log-softmax, of rows of any length.

With y = softmax(x), dx = y (dy - sum(y dy)); with LOG and y = log_softmax(x),
dx = dy - exp(y) sum(dy). Sums are those of a row, in float32 whatever the dtype.
"""

import triton
import triton.language as tl

from search_spaces.kernels.row_blocks import between, lanes, part_bounds, row_start

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _summand(y, dy, LOG: tl.constexpr):
    return dy if LOG else y * dy


@triton.jit
def _gradient(y, dy, total, LOG: tl.constexpr):
    return dy - tl.exp2(y * LOG2E) * total if LOG else y * (dy - total)


# -- rows in registers -----------------------------------------------------------------------------
@triton.jit
def _held_rows(
    y_ptr, dy_ptr, dx_ptr, group, rows, COLS: tl.constexpr, BLOCK: tl.constexpr,
    ROWS_PER_STEP: tl.constexpr, EVEN_ROWS: tl.constexpr, ALIGN: tl.constexpr,
    STREAM: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    load_policy: tl.constexpr = "evict_first" if STREAM else ""
    store_policy: tl.constexpr = ".cs" if STREAM else ""
    cols = tl.arange(0, BLOCK)
    row = group * ROWS_PER_STEP + tl.arange(0, ROWS_PER_STEP)
    # Rows beyond the last read the last one: what they compute is sound, and is not stored.
    source = row if EVEN_ROWS else tl.minimum(row, rows - 1)
    at = tl.multiple_of(source.to(tl.int64) * COLS, ALIGN)[:, None] + cols[None, :]
    in_row = (cols < COLS)[None, :]
    if COLS == BLOCK:
        y = tl.load(y_ptr + at, eviction_policy=load_policy).to(tl.float32)
        dy = tl.load(dy_ptr + at, eviction_policy=load_policy).to(tl.float32)
    else:
        y = tl.load(y_ptr + at, in_row, 0.0, eviction_policy=load_policy).to(tl.float32)
        dy = tl.load(dy_ptr + at, in_row, 0.0, eviction_policy=load_policy).to(tl.float32)
    total = tl.sum(_summand(y, dy, LOG), 1)
    dx = _gradient(y, dy, total[:, None], LOG).to(dx_ptr.dtype.element_ty)
    if EVEN_ROWS and COLS == BLOCK:
        tl.store(dx_ptr + at, dx, cache_modifier=store_policy)
    else:
        tl.store(dx_ptr + at, dx, (row < rows)[:, None] & in_row, cache_modifier=store_policy)


@triton.jit
def held_softmax_backward_kernel(
    y_ptr, dy_ptr, dx_ptr, rows, COLS: tl.constexpr, BLOCK: tl.constexpr,
    ROWS_PER_STEP: tl.constexpr, EVEN_ROWS: tl.constexpr, ALIGN: tl.constexpr,
    STREAM: tl.constexpr, LOOP: tl.constexpr, LOAD_STAGES: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """One group of ROWS_PER_STEP rows per program or, with LOOP, every group the grid apart.

    y, dy and dx are contiguous. BLOCK is the power of two that holds a row of COLS, which is a
    multiple of ALIGN. With STREAM, lines are marked to leave the caches first. LOAD_STAGES groups
    are in flight.
    """
    # fmt: off
    if LOOP:
        groups = tl.cdiv(rows, ROWS_PER_STEP)
        for group in tl.range(tl.program_id(0), groups, tl.num_programs(0), num_stages=LOAD_STAGES):
            _held_rows(y_ptr, dy_ptr, dx_ptr, group, rows, COLS, BLOCK, ROWS_PER_STEP,
                       EVEN_ROWS, ALIGN, STREAM, LOG)
    else:
        _held_rows(y_ptr, dy_ptr, dx_ptr, tl.program_id(0), rows, COLS, BLOCK, ROWS_PER_STEP,
                   EVEN_ROWS, ALIGN, STREAM, LOG)
    # fmt: on


# -- rows in blocks --------------------------------------------------------------------------------
@triton.jit
def _values(
    ptr, at, low, high, WHOLE: tl.constexpr, HEAD: tl.constexpr, POLICY: tl.constexpr
):  # fmt: skip
    """Values at places of a row, 0 outside [low, high)."""
    if WHOLE:
        values = tl.load(ptr + at, eviction_policy=POLICY)
    else:
        values = tl.load(ptr + at, between(at, low, high, HEAD), 0.0, eviction_policy=POLICY)
    return values.to(tl.float32)


@triton.jit
def _block_sum(
    y_ptr, dy_ptr, at, low, high, WHOLE: tl.constexpr, HEAD: tl.constexpr, LOG: tl.constexpr,
    POLICY: tl.constexpr,
):  # fmt: skip
    """The sums of the words of a block; of log-softmax they need no y."""
    dy = _values(dy_ptr, at, low, high, WHOLE, HEAD, POLICY)
    y = dy if LOG else _values(y_ptr, at, low, high, WHOLE, HEAD, POLICY)
    return tl.sum(_summand(y, dy, LOG), 1)


@triton.jit
def _part_sum(
    y_ptr, dy_ptr, begin, low, high, BLOCK: tl.constexpr, VEC: tl.constexpr, HEAD: tl.constexpr,
    EVEN: tl.constexpr, LOG: tl.constexpr, POLICY: tl.constexpr, LOAD_STAGES: tl.constexpr,
):  # fmt: skip
    at = begin + lanes(BLOCK, VEC)
    total = tl.zeros((BLOCK // VEC,), tl.float32)
    first: tl.constexpr = 1 if HEAD else 0
    whole = tl.cdiv(high - begin, BLOCK) - (0 if EVEN else 1)
    if HEAD:
        total += _block_sum(y_ptr, dy_ptr, at, low, high, False, HEAD, LOG, POLICY)
    for block in tl.range(first, whole, num_stages=LOAD_STAGES):
        here = at + block * BLOCK
        total += _block_sum(y_ptr, dy_ptr, here, low, high, True, HEAD, LOG, POLICY)
    if not EVEN:
        here = at + tl.maximum(whole, first) * BLOCK
        total += _block_sum(y_ptr, dy_ptr, here, low, high, False, HEAD, LOG, POLICY)
    return tl.sum(total, 0)


@triton.jit
def _write_block(
    y_ptr, dy_ptr, dx_ptr, at, low, high, total, WHOLE: tl.constexpr, HEAD: tl.constexpr,
    LOG: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    drop: tl.constexpr = "evict_first" if STREAM else ""
    store_policy: tl.constexpr = ".cs" if STREAM else ""
    y = _values(y_ptr, at, low, high, WHOLE, HEAD, drop)
    dy = _values(dy_ptr, at, low, high, WHOLE, HEAD, drop)
    dx = _gradient(y, dy, total, LOG).to(dx_ptr.dtype.element_ty)
    if WHOLE:
        tl.store(dx_ptr + at, dx, cache_modifier=store_policy)
    else:
        tl.store(dx_ptr + at, dx, between(at, low, high, HEAD), cache_modifier=store_policy)


@triton.jit
def softmax_backward_kernel(
    y_ptr, dy_ptr, dx_ptr, total_ptr, COLS: tl.constexpr, BLOCK: tl.constexpr, VEC: tl.constexpr,
    PART: tl.constexpr, SPLITS: tl.constexpr, EVEN: tl.constexpr, STREAM: tl.constexpr,
    LOAD_STAGES: tl.constexpr, LOG: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    """Program (i, j) has part j of row i, which it reads twice: for its sum, and to be written.

    PHASE `whole` does both; SPLITS is 1. PHASE `sum` leaves the sum of the part in row i of `total`
    [rows, SPLITS], from which PHASE `write` has that of the whole row. With STREAM, the first
    reading asks the caches to keep the row and the second lets it go. LOAD_STAGES blocks are in
    flight. VEC, PART and EVEN (no block needs a mask): see `row_blocks`.
    """
    HEAD: tl.constexpr = COLS % VEC != 0
    keep: tl.constexpr = "evict_last" if STREAM else ""
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = row_start(row, COLS, VEC)
    begin, low, high = part_bounds(row, split, COLS, VEC, PART)
    y_ptr += start
    dy_ptr += start
    dx_ptr += start
    # fmt: off
    if PHASE != "write":
        total = _part_sum(y_ptr, dy_ptr, begin, low, high,
                          BLOCK, VEC, HEAD, EVEN, LOG, keep, LOAD_STAGES)
    if PHASE == "sum":
        tl.store(total_ptr + row * SPLITS + split, total)
    else:
        if PHASE == "write":
            total = tl.sum(tl.load(total_ptr + row * SPLITS + tl.arange(0, SPLITS)), 0)
        at = begin + lanes(BLOCK, VEC)
        first: tl.constexpr = 1 if HEAD else 0
        whole = tl.cdiv(high - begin, BLOCK) - (0 if EVEN else 1)
        if HEAD:
            _write_block(y_ptr, dy_ptr, dx_ptr, at, low, high, total, False, HEAD, LOG, STREAM)
        for block in tl.range(first, whole, num_stages=LOAD_STAGES):
            _write_block(y_ptr, dy_ptr, dx_ptr, at + block * BLOCK, low, high, total,
                         True, HEAD, LOG, STREAM)
        if not EVEN:
            _write_block(y_ptr, dy_ptr, dx_ptr, at + tl.maximum(whole, first) * BLOCK,
                         low, high, total, False, HEAD, LOG, STREAM)
    # fmt: on
