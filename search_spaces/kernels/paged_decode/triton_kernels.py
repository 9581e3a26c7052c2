# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of decoding over a paged cache: splits of the keys, then their combination.

Splitting the keys of a sequence over programs is Flash-Decoding (Dao et al., 2023), pages are those
of PagedAttention (Kwon et al., 2023). The exponential is taken in base 2, and everything but the
operands of matrix products is float32.
"""

import triton
import triton.language as tl


@triton.jit
def _cached_rows(
    table_ptr, start, length, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """Offsets of the keys start .. start + BLOCK_N of a sequence; those beyond read its last."""
    at = tl.minimum(start + tl.arange(0, BLOCK_N), length - 1)
    if PAGE >= BLOCK_N:
        # A block lies inside a page, since both are powers of two.
        page = tl.load(table_ptr + start // PAGE)
        rows = tl.cast(page, tl.int64) * PAGE + at % PAGE
    else:
        pages = tl.load(table_ptr + at // PAGE)
        rows = pages.to(tl.int64) * PAGE + at % PAGE
    return rows * STRIDE


@triton.jit
def _products(q, k, ALONE: tl.constexpr):
    """q @ k.T, elementwise for the single row of a head that is ALONE in its program."""
    return tl.sum(q * k.to(tl.float32), 1)[None, :] if ALONE else tl.dot(q, tl.trans(k))


@triton.jit
def paged_decode_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, out_ptr, peak_ptr, total_ptr, pages, per_split,
    scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr, LOAD_STAGES: tl.constexpr,
):  # fmt: skip
    """A part of the heads of one sequence over `per_split` keys, a multiple of BLOCK_N.

    q is [sequences, heads, HEAD_DIM], k and v are [pages of all, PAGE, KV_HEADS, HEAD_DIM], table
    is [sequences, pages]. HEADS of the GROUP heads that share keys are in one program: one by
    elementwise products, several as the ROWS of matrix products. With SPLITS > 1, out is the
    float32 sum [sequences, heads, SPLITS, HEAD_DIM], with the largest score in base 2 and the sum
    of weights in `peak` and `total`; a split without keys has a peak of -inf and no sum.
    """
    parts: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    kv_head = tl.program_id(0) // parts
    member = tl.program_id(0) % parts * HEADS + tl.arange(0, ROWS)
    sequence = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(lengths_ptr + sequence)
    first = split * per_split
    last = tl.minimum(first + per_split, length)
    cols = tl.arange(0, BLOCK_D)
    in_dim = cols < HEAD_DIM
    lines = (sequence * KV_HEADS + kv_head).to(tl.int64) * GROUP + member
    mine = (tl.arange(0, ROWS) < HEADS) & (member < GROUP)
    table_ptr += sequence.to(tl.int64) * pages
    k_ptr += kv_head * HEAD_DIM
    v_ptr += kv_head * HEAD_DIM

    q_ptrs = q_ptr + ((lines * HEAD_DIM)[:, None] + cols[None, :])
    q = tl.load(q_ptrs, mine[:, None] & in_dim[None, :], 0.0)
    if HEADS == 1:
        q = q.to(tl.float32)
    acc = tl.zeros((ROWS, BLOCK_D), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    peak = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    for start in tl.range(first, last, BLOCK_N, num_stages=LOAD_STAGES):
        rows = _cached_rows(table_ptr, start, length, PAGE, BLOCK_N, KV_HEADS * HEAD_DIM)
        at = rows[:, None] + cols[None, :]
        if BLOCK_D == HEAD_DIM:
            k = tl.load(k_ptr + at)
            v = tl.load(v_ptr + at)
        else:
            k = tl.load(k_ptr + at, in_dim[None, :], 0.0)
            v = tl.load(v_ptr + at, in_dim[None, :], 0.0)
        scores = _products(q, k, HEADS == 1)
        inside = (start + tl.arange(0, BLOCK_N) < last)[None, :]
        scores = tl.where(inside, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1) * scale)
        shrink = tl.exp2(peak - higher)
        weights = tl.exp2(scores * scale - higher[:, None])
        total = total * shrink + tl.sum(weights, 1)
        if HEADS == 1:
            values = tl.sum(tl.trans(weights) * v.to(tl.float32), 0)[None, :]
            acc = acc * shrink[:, None] + values
        else:
            acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None])
        peak = higher

    if SPLITS == 1:
        out = (acc * (1.0 / total)[:, None]).to(out_ptr.dtype.element_ty)
        out_ptrs = out_ptr + ((lines * HEAD_DIM)[:, None] + cols[None, :])
        tl.store(out_ptrs, out, mine[:, None] & in_dim[None, :])
    else:
        places = lines * SPLITS + split
        tl.store(peak_ptr + places, peak, mine)
        tl.store(total_ptr + places, total, mine)
        stored = mine & (first < last)
        out_ptrs = out_ptr + ((places * HEAD_DIM)[:, None] + cols[None, :])
        tl.store(out_ptrs, acc, stored[:, None] & in_dim[None, :])


@triton.jit
def combine_splits_kernel(
    partial_ptr, peak_ptr, total_ptr, out_ptr,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """out of one head = the sum of its splits' partial sums, each scaled to the largest score."""
    head = tl.program_id(0).to(tl.int64)
    places = head * SPLITS + tl.arange(0, SPLITS)
    cols = tl.arange(0, BLOCK_D)
    peaks = tl.load(peak_ptr + places)
    # The first split of every sequence has keys, so that the largest score is finite.
    shrink = tl.exp2(peaks - tl.max(peaks, 0))
    total = tl.sum(shrink * tl.load(total_ptr + places), 0)
    stored = (peaks > float("-inf"))[:, None] & (cols < HEAD_DIM)[None, :]
    partial_ptrs = partial_ptr + ((places * HEAD_DIM)[:, None] + cols[None, :])
    partial = tl.load(partial_ptrs, stored, 0.0)
    out = tl.sum(partial * shrink[:, None], 0) / total
    tl.store(out_ptr + (head * HEAD_DIM + cols), out.to(out_ptr.dtype.element_ty), cols < HEAD_DIM)
