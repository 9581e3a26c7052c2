# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of the softmax of rows of any length, held in registers or read twice in blocks.

A row in blocks has a running maximum and a sum of exponentials for every word of 16 bytes of a
block (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018), which are merged at
the end. The exponential is taken in base 2, as the hardware does, in float32 whatever the dtype.

MASK is `none`, `causal` (row r sees its first r % COLS + 1 elements) or `boolean` (mask[r, c] says
whether row r sees element c). LOG gives the logarithm of the softmax.
"""

import triton
import triton.language as tl

from search_spaces.kernels.row_blocks import between, lanes, part_bounds, row_skip, row_start

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _finite(top):
    """A maximum to subtract: 0 where nothing was seen, so that no difference is NaN."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def _norm(total, LOG: tl.constexpr):
    """What `_normalised` needs of a row's sum of exponentials."""
    return tl.log2(total) * LN2 if LOG else 1.0 / total


@triton.jit
def _normalised(away, norm, LOG: tl.constexpr):
    """The result from a row's distances to its maximum."""
    return away - norm if LOG else tl.exp2(away * LOG2E) * norm


# -- rows in registers -----------------------------------------------------------------------------
@triton.jit
def _held_rows(
    x_ptr, mask_ptr, out_ptr, group, rows, COLS: tl.constexpr, BLOCK: tl.constexpr,
    ROWS_PER_STEP: tl.constexpr, EVEN_ROWS: tl.constexpr, ALIGN: tl.constexpr,
    STREAM: tl.constexpr, MASK: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    load_policy: tl.constexpr = "evict_first" if STREAM else ""
    store_policy: tl.constexpr = ".cs" if STREAM else ""
    cols = tl.arange(0, BLOCK)
    row = group * ROWS_PER_STEP + tl.arange(0, ROWS_PER_STEP)
    # Rows beyond the last read the last one: what they compute is sound, and is not stored.
    source = row if EVEN_ROWS else tl.minimum(row, rows - 1)
    at = tl.multiple_of(source.to(tl.int64) * COLS, ALIGN)[:, None] + cols[None, :]
    in_row = (cols < COLS)[None, :]
    if MASK == "causal":
        last = (source % COLS)[:, None]
        # Whole words are read or left out, so that the loads stay wide.
        reached = in_row & ((cols // ALIGN * ALIGN)[None, :] <= last)
        x = tl.load(x_ptr + at, reached, float("-inf"), eviction_policy=load_policy)
        x = tl.where(cols[None, :] <= last, x.to(tl.float32), float("-inf"))
    elif COLS == BLOCK:
        x = tl.load(x_ptr + at, eviction_policy=load_policy).to(tl.float32)
    else:
        x = tl.load(x_ptr + at, in_row, float("-inf"), eviction_policy=load_policy).to(tl.float32)
    if MASK == "boolean":
        seen = tl.load(mask_ptr + at, in_row, 0, eviction_policy=load_policy)
        x = tl.where(seen, x, float("-inf"))
    away = x - _finite(tl.max(x, 1))[:, None]
    total = tl.sum(tl.exp2(away * LOG2E), 1)
    out = _normalised(away, _norm(total, LOG)[:, None], LOG).to(out_ptr.dtype.element_ty)
    if EVEN_ROWS and COLS == BLOCK:
        tl.store(out_ptr + at, out, cache_modifier=store_policy)
    else:
        tl.store(out_ptr + at, out, (row < rows)[:, None] & in_row, cache_modifier=store_policy)


@triton.jit
def held_softmax_kernel(
    x_ptr, mask_ptr, out_ptr, rows, COLS: tl.constexpr, BLOCK: tl.constexpr,
    ROWS_PER_STEP: tl.constexpr, EVEN_ROWS: tl.constexpr, ALIGN: tl.constexpr,
    STREAM: tl.constexpr, LOOP: tl.constexpr, LOAD_STAGES: tl.constexpr, MASK: tl.constexpr,
    LOG: tl.constexpr,
):  # fmt: skip
    """One group of ROWS_PER_STEP rows per program or, with LOOP, every group the grid apart.

    x, mask and out are contiguous. BLOCK is the power of two that holds a row of COLS, which is a
    multiple of ALIGN. With STREAM, lines are marked to leave the caches first. LOAD_STAGES groups
    are in flight.
    """
    # fmt: off
    if LOOP:
        groups = tl.cdiv(rows, ROWS_PER_STEP)
        for group in tl.range(tl.program_id(0), groups, tl.num_programs(0), num_stages=LOAD_STAGES):
            _held_rows(x_ptr, mask_ptr, out_ptr, group, rows, COLS, BLOCK, ROWS_PER_STEP,
                       EVEN_ROWS, ALIGN, STREAM, MASK, LOG)
    else:
        _held_rows(x_ptr, mask_ptr, out_ptr, tl.program_id(0), rows, COLS, BLOCK, ROWS_PER_STEP,
                   EVEN_ROWS, ALIGN, STREAM, MASK, LOG)
    # fmt: on


# -- rows in blocks --------------------------------------------------------------------------------
@triton.jit
def _logits(
    x_ptr, mask_ptr, at, low, seen, WHOLE: tl.constexpr, HEAD: tl.constexpr, VEC: tl.constexpr,
    MASK: tl.constexpr, POLICY: tl.constexpr,
):  # fmt: skip
    """Logits at places of a row; minus infinity where hidden, and outside [low, seen)."""
    if WHOLE:
        x = tl.load(x_ptr + at, eviction_policy=POLICY).to(tl.float32)
    else:
        inside = between(at, low, seen, HEAD)
        # Whole words are read, so that the loads stay wide where a causal row ends within one.
        reached = at // VEC * VEC < seen if MASK == "causal" and not HEAD else inside
        x = tl.load(x_ptr + at, reached, float("-inf"), eviction_policy=POLICY).to(tl.float32)
        if MASK == "causal" and not HEAD:
            x = tl.where(inside, x, float("-inf"))
    if MASK == "boolean":
        shown = tl.load(mask_ptr + at) if WHOLE else tl.load(mask_ptr + at, inside, 0)
        x = tl.where(shown, x, float("-inf"))
    return x


@triton.jit
def _absorbed(x, top, total):
    """Maxima and sums of exponentials of the words of a block, with another block added."""
    higher = tl.maximum(top, tl.max(x, 1))
    base = _finite(higher)
    added = tl.sum(tl.exp2((x - base[:, None]) * LOG2E), 1)
    return higher, total * tl.exp2((top - base) * LOG2E) + added


@triton.jit
def _merged(top, total):
    """The maximum and the sum of exponentials of all words, or of all parts of a row."""
    highest = tl.max(top, 0)
    return highest, tl.sum(total * tl.exp2((top - _finite(highest)) * LOG2E), 0)


@triton.jit
def part_statistics(
    x_ptr, mask_ptr, begin, low, seen, BLOCK: tl.constexpr, VEC: tl.constexpr,
    HEAD: tl.constexpr, EVEN: tl.constexpr, MASK: tl.constexpr, POLICY: tl.constexpr,
    LOAD_STAGES: tl.constexpr,
):  # fmt: skip
    """The maximum and the sum of exponentials of a part of a row, whose places end at `seen`."""
    at = begin + lanes(BLOCK, VEC)
    top = tl.full((BLOCK // VEC,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK // VEC,), tl.float32)
    first: tl.constexpr = 1 if HEAD else 0
    whole = tl.cdiv(seen - begin, BLOCK) - (0 if EVEN else 1)
    if HEAD:
        x = _logits(x_ptr, mask_ptr, at, low, seen, False, HEAD, VEC, MASK, POLICY)
        top, total = _absorbed(x, top, total)
    for block in tl.range(first, whole, num_stages=LOAD_STAGES):
        here = at + block * BLOCK
        x = _logits(x_ptr, mask_ptr, here, low, seen, True, HEAD, VEC, MASK, POLICY)
        top, total = _absorbed(x, top, total)
    if not EVEN:
        here = at + tl.maximum(whole, first) * BLOCK
        x = _logits(x_ptr, mask_ptr, here, low, seen, False, HEAD, VEC, MASK, POLICY)
        top, total = _absorbed(x, top, total)
    return _merged(top, total)


@triton.jit
def _write_block(
    x_ptr, mask_ptr, out_ptr, at, low, seen, high, top, norm, WHOLE: tl.constexpr,
    HEAD: tl.constexpr, VEC: tl.constexpr, MASK: tl.constexpr, LOG: tl.constexpr,
    STREAM: tl.constexpr,
):  # fmt: skip
    drop: tl.constexpr = "evict_first" if STREAM else ""
    store_policy: tl.constexpr = ".cs" if STREAM else ""
    x = _logits(x_ptr, mask_ptr, at, low, seen, WHOLE, HEAD, VEC, MASK, drop)
    out = _normalised(x - top, norm, LOG).to(out_ptr.dtype.element_ty)
    if WHOLE:
        tl.store(out_ptr + at, out, cache_modifier=store_policy)
    else:
        tl.store(out_ptr + at, out, between(at, low, high, HEAD), cache_modifier=store_policy)


@triton.jit
def _write_part(
    x_ptr, mask_ptr, out_ptr, begin, low, seen, high, top, norm, BLOCK: tl.constexpr,
    VEC: tl.constexpr, HEAD: tl.constexpr, EVEN: tl.constexpr, MASK: tl.constexpr,
    LOG: tl.constexpr, STREAM: tl.constexpr, LOAD_STAGES: tl.constexpr,
):  # fmt: skip
    """Write a part of a row; places from `seen` up to `high` are hidden and become 0."""
    at = begin + lanes(BLOCK, VEC)
    first: tl.constexpr = 1 if HEAD else 0
    whole = tl.cdiv(seen - begin, BLOCK) - (0 if EVEN else 1)
    # fmt: off
    if HEAD:
        _write_block(x_ptr, mask_ptr, out_ptr, at, low, seen, high, top, norm,
                     False, HEAD, VEC, MASK, LOG, STREAM)
    for block in tl.range(first, whole, num_stages=LOAD_STAGES):
        _write_block(x_ptr, mask_ptr, out_ptr, at + block * BLOCK, low, seen, high, top, norm,
                     True, HEAD, VEC, MASK, LOG, STREAM)
    if not EVEN:
        last = tl.maximum(whole, first)
        _write_block(x_ptr, mask_ptr, out_ptr, at + last * BLOCK, low, seen, high, top, norm,
                     False, HEAD, VEC, MASK, LOG, STREAM)
        if MASK == "causal":
            nothing = tl.zeros((BLOCK // VEC, VEC), out_ptr.dtype.element_ty)
            for block in tl.range(last + 1, tl.cdiv(high - begin, BLOCK)):
                hidden = at + block * BLOCK
                tl.store(out_ptr + hidden, nothing, between(hidden, low, high, HEAD))
    # fmt: on


@triton.jit
def online_softmax_kernel(
    x_ptr, mask_ptr, out_ptr, top_ptr, total_ptr, COLS: tl.constexpr, BLOCK: tl.constexpr,
    VEC: tl.constexpr, PART: tl.constexpr, SPLITS: tl.constexpr, EVEN: tl.constexpr,
    STREAM: tl.constexpr, LOAD_STAGES: tl.constexpr, MASK: tl.constexpr, LOG: tl.constexpr,
    PHASE: tl.constexpr,
):  # fmt: skip
    """Program (i, j) has part j of row i, which it reads twice: for its sum, and to be written.

    PHASE `whole` does both; SPLITS is 1. PHASE `sum` leaves maximum and sum of the part in row i of
    `top` and `total`, each [rows, SPLITS], from which PHASE `write` has them of the whole row. With
    STREAM, the first reading asks the caches to keep the row and the second lets it go. LOAD_STAGES
    blocks are in flight. VEC, PART and EVEN (no block needs a mask): see `row_blocks`.
    """
    HEAD: tl.constexpr = COLS % VEC != 0
    keep: tl.constexpr = "evict_last" if STREAM else ""
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = row_start(row, COLS, VEC)
    begin, low, high = part_bounds(row, split, COLS, VEC, PART)
    seen = high
    if MASK == "causal":
        seen = tl.minimum(high, (row % COLS).to(tl.int32) + 1)
        if HEAD:
            seen = tl.minimum(high, row_skip(row, COLS, VEC) + (row % COLS).to(tl.int32) + 1)
    x_ptr += start
    if MASK == "boolean":
        mask_ptr += start
    # fmt: off
    if PHASE != "write":
        top, total = part_statistics(x_ptr, mask_ptr, begin, low, seen,
                                      BLOCK, VEC, HEAD, EVEN, MASK, keep, LOAD_STAGES)
    if PHASE == "sum":
        tl.store(top_ptr + row * SPLITS + split, top)
        tl.store(total_ptr + row * SPLITS + split, total)
    else:
        if PHASE == "write":
            parts = row * SPLITS + tl.arange(0, SPLITS)
            top, total = _merged(tl.load(top_ptr + parts), tl.load(total_ptr + parts))
        _write_part(x_ptr, mask_ptr, out_ptr + start, begin, low, seen, high, _finite(top),
                    _norm(total, LOG), BLOCK, VEC, HEAD, EVEN, MASK, LOG, STREAM, LOAD_STAGES)
    # fmt: on
