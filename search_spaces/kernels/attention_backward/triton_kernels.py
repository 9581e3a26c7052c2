# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of attention's gradients, which recompute the weights from q, k and lse.

With weights p = exp(scores - lse) and dp = dout @ v.T, the gradient of the scores is
p * (dp - delta), where delta is the sum of dout * out over a row (Dao et al., FlashAttention,
2022).
One launch computes delta, one dk and dv by blocks of keys, one dq by blocks of queries. None needs
atomics, so that results are always the same. All but the operands of products is float32.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def delta_kernel(
    out_ptr, dout_ptr, delta_ptr, rows, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """delta[rows] = the sum over a row of out * dout[rows, HEAD_DIM], BLOCK rows per program."""
    lines = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = lines < rows
    at = lines.to(tl.int64)[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    out = tl.load(out_ptr + at, inside[:, None], 0.0).to(tl.float32)
    dout = tl.load(dout_ptr + at, inside[:, None], 0.0).to(tl.float32)
    tl.store(delta_ptr + lines, tl.sum(out * dout, 1), inside)


@triton.jit
def _rows_of(
    ptr, start, size, HEAD_DIM: tl.constexpr, ROWS: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    """Rows start .. start + ROWS of `size` rows; beyond the last one comes the last one."""
    rows = tl.arange(0, ROWS)
    if not EVEN:
        rows = tl.minimum(rows, size - 1 - start)
    at = tl.cast(start, tl.int64) * HEAD_DIM
    return tl.load(ptr + at + (rows[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]))


@triton.jit
def _values_of(ptr, start, size, other, ROWS: tl.constexpr, EVEN: tl.constexpr):
    """float32 values start .. start + ROWS of `size`, and `other` beyond."""
    at = start + tl.arange(0, ROWS)
    return tl.load(ptr + at) if EVEN else tl.load(ptr + at, at < size, other)


@triton.jit
def _store_rows(
    ptr, value, start, size, HEAD_DIM: tl.constexpr, ROWS: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    rows = tl.arange(0, ROWS)
    at = tl.cast(start, tl.int64) * HEAD_DIM
    ptrs = ptr + at + (rows[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :])
    if EVEN:
        tl.store(ptrs, value.to(ptr.dtype.element_ty))
    else:
        tl.store(ptrs, value.to(ptr.dtype.element_ty), (start + rows < size)[:, None])


@triton.jit
def _take_queries(
    k, v, dk, dv, q_ptr, dout_ptr, lse_ptr, delta_ptr, first_key, first, last, size, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, MASKED: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """Add to dk and dv what the queries first .. last of a head give. MASKED: keys are hidden."""
    for start in tl.range(first, last, BLOCK_M):
        q = _rows_of(q_ptr, start, size, HEAD_DIM, BLOCK_M, EVEN)
        # Queries beyond the last have an infinite sum, so that all their weights are 0.
        lse = _values_of(lse_ptr, start, size, float("inf"), BLOCK_M, EVEN) * LOG2E
        scores = tl.dot(k, tl.trans(q))
        weights = tl.exp2(scores * scale - lse[None, :])
        if MASKED:
            queries = start + tl.arange(0, BLOCK_M)
            keys = first_key + tl.arange(0, BLOCK_N)
            weights = tl.where(queries[None, :] >= keys[:, None], weights, 0.0)
        dout = _rows_of(dout_ptr, start, size, HEAD_DIM, BLOCK_M, EVEN)
        dv = tl.dot(weights.to(dout.dtype), dout, dv)
        delta = _values_of(delta_ptr, start, size, 0.0, BLOCK_M, EVEN)
        slopes = weights * (tl.dot(v, tl.trans(dout)) - delta[None, :])
        dk = tl.dot(slopes.to(q.dtype), q, dk)
    return dk, dv


@triton.jit
def key_gradients_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, size, blocks, scale,
    softmax_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, GROUP: tl.constexpr,
    CAUSAL: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr,
):  # fmt: skip
    """dk and dv of BLOCK_N keys of one head, from all queries of the GROUP heads that it serves.

    q, dout are [heads, size, HEAD_DIM], k, v, dk, dv [heads / GROUP, size, HEAD_DIM]; lse and delta
    are [heads, size]. scale is softmax_scale * log2(e). The first keys, which most queries see
    where CAUSAL, come first.
    """
    head = tl.program_id(0) // blocks
    first_key = tl.program_id(0) % blocks * BLOCK_N
    at_head = head.to(tl.int64) * size * HEAD_DIM
    k = _rows_of(k_ptr + at_head, first_key, size, HEAD_DIM, BLOCK_N, EVEN_N)
    v = _rows_of(v_ptr + at_head, first_key, size, HEAD_DIM, BLOCK_N, EVEN_N)
    dk = tl.zeros((BLOCK_N, HEAD_DIM), dtype=tl.float32)
    dv = tl.zeros((BLOCK_N, HEAD_DIM), dtype=tl.float32)
    # Queries from `whole` on see all these keys.
    first = 0
    whole = 0
    if CAUSAL:
        first = first_key // BLOCK_M * BLOCK_M
        whole = tl.minimum(tl.cdiv(first_key + BLOCK_N - 1, BLOCK_M), tl.cdiv(size, BLOCK_M))
        whole *= BLOCK_M
    # fmt: off
    for member in tl.range(0, GROUP):
        line = (tl.cast(head, tl.int64) * GROUP + member) * size
        q_head, dout_head = q_ptr + line * HEAD_DIM, dout_ptr + line * HEAD_DIM
        lse_head, delta_head = lse_ptr + line, delta_ptr + line
        if CAUSAL:
            dk, dv = _take_queries(
                k, v, dk, dv, q_head, dout_head, lse_head, delta_head, first_key, first, whole,
                size, scale, BLOCK_M, BLOCK_N, HEAD_DIM, True, EVEN_M)
        dk, dv = _take_queries(
            k, v, dk, dv, q_head, dout_head, lse_head, delta_head, first_key, whole, size,
            size, scale, BLOCK_M, BLOCK_N, HEAD_DIM, False, EVEN_M)
    # fmt: on
    _store_rows(dk_ptr + at_head, dk * softmax_scale, first_key, size, HEAD_DIM, BLOCK_N, EVEN_N)
    _store_rows(dv_ptr + at_head, dv, first_key, size, HEAD_DIM, BLOCK_N, EVEN_N)


@triton.jit
def _take_keys(
    q, dout, lse, delta, dq, k_ptr, v_ptr, first_query, first, last, size, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr,
    MASKED: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Add to dq what the keys first .. last of a head give. MASKED: keys are hidden."""
    for start in tl.range(first, last, BLOCK_N):
        k = _rows_of(k_ptr, start, size, HEAD_DIM, BLOCK_N, EVEN)
        weights = tl.exp2(tl.dot(q, tl.trans(k)) * scale - lse[:, None])
        if MASKED:
            keys = start + tl.arange(0, BLOCK_N)
            if CAUSAL:
                queries = first_query + tl.arange(0, BLOCK_M)
                seen = queries[:, None] >= keys[None, :]
            else:
                seen = (keys < size)[None, :]
            weights = tl.where(seen, weights, 0.0)
        v = _rows_of(v_ptr, start, size, HEAD_DIM, BLOCK_N, EVEN)
        slopes = weights * (tl.dot(dout, tl.trans(v)) - delta[:, None])
        dq = tl.dot(slopes.to(k.dtype), k, dq)
    return dq


@triton.jit
def query_gradients_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr, size, blocks, scale, softmax_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, GROUP: tl.constexpr,
    CAUSAL: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr,
):  # fmt: skip
    """dq of BLOCK_M queries of one head, from all keys; shapes are those of `key_gradients_kernel`.

    The last queries, which see most keys where CAUSAL, come first.
    """
    head = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    if CAUSAL:
        block = blocks - 1 - block
    row = block * BLOCK_M
    line = head.to(tl.int64) * size
    k_head = (head // GROUP).to(tl.int64) * size * HEAD_DIM
    q = _rows_of(q_ptr + line * HEAD_DIM, row, size, HEAD_DIM, BLOCK_M, EVEN_M)
    dout = _rows_of(dout_ptr + line * HEAD_DIM, row, size, HEAD_DIM, BLOCK_M, EVEN_M)
    lse = _values_of(lse_ptr + line, row, size, float("inf"), BLOCK_M, EVEN_M) * LOG2E
    delta = _values_of(delta_ptr + line, row, size, 0.0, BLOCK_M, EVEN_M)
    dq = tl.zeros((BLOCK_M, HEAD_DIM), dtype=tl.float32)
    # Keys below `whole` are seen by all these queries, none from `last` on by any.
    last = size
    whole = size // BLOCK_N * BLOCK_N
    if CAUSAL:
        last = tl.minimum(row + BLOCK_M, size)
        whole = (row + 1) // BLOCK_N * BLOCK_N
    # fmt: off
    dq = _take_keys(
        q, dout, lse, delta, dq, k_ptr + k_head, v_ptr + k_head, row, 0, whole, size, scale,
        BLOCK_M, BLOCK_N, HEAD_DIM, CAUSAL, False, True)
    if CAUSAL or not EVEN_N:
        dq = _take_keys(
            q, dout, lse, delta, dq, k_ptr + k_head, v_ptr + k_head, row, whole, last, size, scale,
            BLOCK_M, BLOCK_N, HEAD_DIM, CAUSAL, True, EVEN_N)
    # fmt: on
    dq_head = dq_ptr + line * HEAD_DIM
    _store_rows(dq_head, dq * softmax_scale, row, size, HEAD_DIM, BLOCK_M, EVEN_M)
