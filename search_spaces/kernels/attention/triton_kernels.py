# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernel of the attention family: blocks of queries against all their keys, online softmax.

The rescaling of partial sums is that of Milakov and Gimelshein (2018); keeping it on chip between
the two products is FlashAttention (Dao et al., 2022; Dao, 2023). The exponential is taken in base
2, as the hardware does, and everything but the operands of the products is float32.
"""

import triton
import triton.language as tl

from search_spaces.kernels.jitted_tiles import multiply_add


@triton.jit
def _load_rows(
    source,
    head,
    start,
    S,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    EVEN: tl.constexpr,
    DESCRIBED: tl.constexpr,
):
    """Rows start .. start + ROWS of one head; beyond the last row come zeros or the last row."""
    if DESCRIBED:
        block = source.load([head, start, 0]).reshape(ROWS, HEAD_DIM)
    else:
        rows = start + tl.arange(0, ROWS)
        if not EVEN:
            rows = tl.minimum(rows, S - 1)
        at = (rows * HEAD_DIM)[:, None] + tl.arange(0, HEAD_DIM)[None, :]
        block = tl.load(source + head.to(tl.int64) * S * HEAD_DIM + at)
    return block


@triton.jit
def _attend(
    q,
    acc,
    total,
    peak,
    k_source,
    v_source,
    head,
    first_row,
    first,
    last,
    S,
    scale,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIAGONAL: tl.constexpr,
    EDGE: tl.constexpr,
    DESCRIBED: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Take in the keys first .. last, a multiple of BLOCK_N apart from the end of the sequence.

    acc, total and peak are the weighted sum of values, the sum of weights and the largest score in
    base 2 of each query so far. DIAGONAL hides keys after the query, EDGE those beyond the last.
    """
    for start in tl.range(first, last, BLOCK_N):
        k = _load_rows(k_source, head, start, S, BLOCK_N, HEAD_DIM, not EDGE, DESCRIBED)
        scores = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        scores = multiply_add(q, tl.trans(k), scores, None, INTERPRETED) * scale
        keys = start + tl.arange(0, BLOCK_N)
        if DIAGONAL:
            queries = first_row + tl.arange(0, BLOCK_M)
            scores = tl.where(queries[:, None] >= keys[None, :], scores, float("-inf"))
        if EDGE:
            scores = tl.where((keys < S)[None, :], scores, float("-inf"))
        # The first block shows every query its first key, so that no peak stays infinite.
        higher = tl.maximum(peak, tl.max(scores, 1))
        shrink = tl.exp2(peak - higher)
        weights = tl.exp2(scores - higher[:, None])
        total = total * shrink + tl.sum(weights, 1)
        v = _load_rows(v_source, head, start, S, BLOCK_N, HEAD_DIM, not EDGE, DESCRIBED)
        acc = multiply_add(weights.to(v.dtype), v, acc * shrink[:, None], None, INTERPRETED)
        peak = higher
    return acc, total, peak


@triton.jit
def attention_kernel(
    q_source,
    k_source,
    v_source,
    out_ptr,
    heads,
    S,
    scale,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CAUSAL: tl.constexpr,
    SPLIT: tl.constexpr,
    HEAD_MAJOR: tl.constexpr,
    EVEN_M: tl.constexpr,
    EVEN_N: tl.constexpr,
    DESCRIBED: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """out = softmax(q @ k.T * scale / log2(e)) @ v, BLOCK_M queries of one head per program.

    q, k, v and out are contiguous [heads, S, HEAD_DIM], given by pointers or, where DESCRIBED, q, k
    and v by descriptors in blocks [1, BLOCK, HEAD_DIM]. With SPLIT, only the blocks of keys on the
    diagonal of a CAUSAL problem are masked. HEAD_MAJOR runs through one head after the other,
    else through one block of queries after the other; the longest come first where CAUSAL.
    """
    blocks = tl.cdiv(S, BLOCK_M)
    program = tl.program_id(0)
    if HEAD_MAJOR:
        head, block = program // blocks, program % blocks
    else:
        head, block = program % heads, program // heads
    if CAUSAL:
        block = blocks - 1 - block
    row = block * BLOCK_M
    q = _load_rows(q_source, head, row, S, BLOCK_M, HEAD_DIM, EVEN_M, DESCRIBED)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    peak = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    # Keys below `whole` are seen by all these queries; `last` is the end of those seen by any.
    if CAUSAL:
        last = tl.minimum(row + BLOCK_M, S)
        whole = row // BLOCK_N * BLOCK_N if SPLIT else 0
    else:
        last = S
        whole = S if EVEN_N else S // BLOCK_N * BLOCK_N
    # fmt: off
    if SPLIT or not CAUSAL:
        acc, total, peak = _attend(
            q, acc, total, peak, k_source, v_source, head, row, 0, whole, S, scale,
            BLOCK_M, BLOCK_N, HEAD_DIM, False, False, DESCRIBED, INTERPRETED)
    if CAUSAL or not EVEN_N:
        acc, total, peak = _attend(
            q, acc, total, peak, k_source, v_source, head, row, whole, last, S, scale,
            BLOCK_M, BLOCK_N, HEAD_DIM, CAUSAL, not EVEN_N, DESCRIBED, INTERPRETED)
    # fmt: on
    rows = row + tl.arange(0, BLOCK_M)
    at = (rows * HEAD_DIM)[:, None] + tl.arange(0, HEAD_DIM)[None, :]
    out_ptrs = out_ptr + head.to(tl.int64) * S * HEAD_DIM + at
    out = (acc * (1.0 / total)[:, None]).to(out_ptr.dtype.element_ty)
    if EVEN_M:
        tl.store(out_ptrs, out)
    else:
        tl.store(out_ptrs, out, (rows < S)[:, None])
