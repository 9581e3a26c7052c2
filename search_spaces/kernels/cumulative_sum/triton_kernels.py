# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of cumulative sums, in float32 whatever the dtype.

A program scans one block of columns after the other and carries the sum of what it has passed. Few
long rows are split: a first launch writes the sum of every span of columns, and in the second, each
program begins with the sums of the spans before its own (reduce-then-scan; Blelloch, Prefix Sums
and Their Applications, 1990). Both launches may take one panel of spans after the other, so that
the second finds the panel in the last-level cache.
"""

import triton
import triton.language as tl


@triton.jit
def _block(
    x_ptr, at, cols, inside_rows, COLS: tl.constexpr, EVEN: tl.constexpr, POLICY: tl.constexpr
):  # fmt: skip
    """Columns of rows whose offsets are `at`, in float32; zeros outside of the matrix."""
    if EVEN:
        x = tl.load(x_ptr + (at[:, None] + cols[None, :]), eviction_policy=POLICY)
    else:
        inside = inside_rows[:, None] & (cols < COLS)[None, :]
        x = tl.load(x_ptr + (at[:, None] + cols[None, :]), inside, 0.0, eviction_policy=POLICY)
    return x.to(tl.float32)


@triton.jit
def span_sums_kernel(
    x_ptr, sum_ptr, rows, first_span, COLS: tl.constexpr, SPAN: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, EVEN: tl.constexpr,
    LOAD_STAGES: tl.constexpr,
):  # fmt: skip
    """sum[r, s] = the sum of columns s SPAN to (s + 1) SPAN of row r; sum is [rows, SPLITS].

    The second axis of the grid has the spans of a panel, of which the first is `first_span`.
    """
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    span = first_span + tl.program_id(1)
    at = row.to(tl.int64) * COLS
    total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    last = tl.minimum((span + 1) * SPAN, COLS)
    for start in tl.range(span * SPAN, last, BLOCK_C, num_stages=LOAD_STAGES):
        cols = start + tl.arange(0, BLOCK_C)
        total += _block(x_ptr, at, cols, row < rows, COLS, EVEN, "")
    tl.store(sum_ptr + row.to(tl.int64) * SPLITS + span, tl.sum(total, 1), row < rows)


@triton.jit
def cumulative_sum_kernel(
    x_ptr, sum_ptr, out_ptr, rows, first_span, COLS: tl.constexpr, SPAN: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, EVEN: tl.constexpr,
    BACKWARDS: tl.constexpr, STREAM: tl.constexpr, LOAD_STAGES: tl.constexpr,
):  # fmt: skip
    """out[r, c] = x[r, 0] + ... + x[r, c] of contiguous matrices, for SPAN columns of BLOCK_R rows.

    The second axis of the grid has the spans of a panel, of which the first is `first_span`; with
    BACKWARDS the last comes first, whose columns the launch before has read most recently. SPAN is
    a multiple of BLOCK_C. With STREAM, lines are marked to leave the caches first.
    """
    load_policy: tl.constexpr = "evict_first" if STREAM else ""
    store_policy: tl.constexpr = ".cs" if STREAM else ""
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = row < rows
    at = row.to(tl.int64) * COLS
    place = tl.num_programs(1) - 1 - tl.program_id(1) if BACKWARDS else tl.program_id(1)
    span = first_span + place
    if SPLITS > 1:
        spans = tl.arange(0, SPLITS)
        before = inside[:, None] & (spans < span)[None, :]
        before_at = row.to(tl.int64)[:, None] * SPLITS + spans[None, :]
        carried = tl.sum(tl.load(sum_ptr + before_at, before, 0.0), 1)
    else:
        carried = tl.zeros((BLOCK_R,), tl.float32)
    last = tl.minimum((span + 1) * SPAN, COLS)
    for start in tl.range(span * SPAN, last, BLOCK_C, num_stages=LOAD_STAGES):
        cols = start + tl.arange(0, BLOCK_C)
        x = _block(x_ptr, at, cols, inside, COLS, EVEN, load_policy)
        sums = tl.cumsum(x, 1) + carried[:, None]
        out = sums.to(out_ptr.dtype.element_ty)
        out_at = out_ptr + (at[:, None] + cols[None, :])
        if EVEN:
            tl.store(out_at, out, cache_modifier=store_policy)
        else:
            written = inside[:, None] & (cols < COLS)[None, :]
            tl.store(out_at, out, written, cache_modifier=store_policy)
        # The last sum of each row. Triton 3.7 cannot compile an accumulated `tl.sum(x, 1)` here.
        carried = tl.sum(tl.where((tl.arange(0, BLOCK_C) == BLOCK_C - 1)[None, :], sums, 0.0), 1)
