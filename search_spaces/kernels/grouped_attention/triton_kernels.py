# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernel of attention of heads in groups: a block of queries against the keys they see.

The rescaling of partial sums is that of Milakov and Gimelshein (2018); keeping it on chip between
the two products is FlashAttention (Dao et al., 2022; Dao, 2023). The exponential is taken in base
2, as the hardware does, and everything but the operands of the products is float32.

The heads of a group may share a block, whose row r is then query r // PACKED of head r % PACKED
(Ainslie et al., GQA, 2023, name the groups): few queries fill a block, and a block of a sliding
window spans fewer keys. A head dim of 96 or 192 is multiplied in two parts, each a power of two.
"""

import triton
import triton.language as tl


@triton.jit
def _rows_of(
    source, row0, col0, start, size, FROM: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr, EVEN: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """Rows start .. start + ROWS of one head's `size` rows, COLS columns from FROM on.

    The head is at [row0, col0] of a matrix of STRIDE columns, given by a pointer or, where
    DESCRIBED, by a descriptor. Beyond the last row come other finite values.
    """
    if DESCRIBED:
        block = source.load([row0 + start, col0 + FROM])
    else:
        rows = tl.arange(0, ROWS)
        if not EVEN:
            rows = tl.minimum(rows, size - 1 - start)
        at = tl.cast(row0 + start, tl.int64) * STRIDE + (col0 + FROM)
        block = tl.load(source + at + (rows[:, None] * STRIDE + tl.arange(0, COLS)[None, :]))
    return block


@triton.jit
def _attend(
    q, q_rest, acc, acc_rest, total, peak, places, k_source, k_rest, v_source, v_rest,
    row0, k_col, v_col, first, last, keys, scale,
    BLOCK_N: tl.constexpr, K_STRIDE: tl.constexpr, V_STRIDE: tl.constexpr, K_MAIN: tl.constexpr,
    K_REST: tl.constexpr, V_MAIN: tl.constexpr, V_REST: tl.constexpr, MASKED: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, EVEN: tl.constexpr, DESCRIBED: tl.constexpr,
    SPECIALIZED: tl.constexpr,
):  # fmt: skip
    """Take in the keys first .. last, blocks of BLOCK_N from `first` on.

    acc, total and peak are the weighted sum of values, the sum of weights and the largest score in
    base 2 of each query so far. MASKED: a query at `places` may not see all of these keys.
    """
    # fmt: off
    for start in tl.range(first, last, BLOCK_N, warp_specialize=SPECIALIZED):
        k = _rows_of(k_source, row0, k_col, start, keys, 0, K_STRIDE, BLOCK_N, K_MAIN,
                     EVEN, DESCRIBED)
        scores = tl.dot(q, tl.trans(k))
        if K_REST > 0:
            more = _rows_of(k_rest, row0, k_col, start, keys, K_MAIN, K_STRIDE, BLOCK_N, K_REST,
                            EVEN, DESCRIBED)
            scores = tl.dot(q_rest, tl.trans(more), scores)
        if MASKED:
            at = start + tl.arange(0, BLOCK_N)
            if CAUSAL:
                seen = at[None, :] <= places[:, None]
                if WINDOW > 0:
                    seen = seen & (at[None, :] > places[:, None] - WINDOW)
            else:
                seen = (at < keys)[None, :]
            scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1) * scale)
        base = higher
        if MASKED and WINDOW > 0:
            # The first keys of a block's window are hidden from its last queries.
            base = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp2(peak - base)
        weights = tl.exp2(scores * scale - base[:, None])
        total = total * shrink + tl.sum(weights, 1)
        v = _rows_of(v_source, row0, v_col, start, keys, 0, V_STRIDE, BLOCK_N, V_MAIN,
                     EVEN, DESCRIBED)
        weights = weights.to(v.dtype)
        acc = tl.dot(weights, v, acc * shrink[:, None])
        if V_REST > 0:
            more_v = _rows_of(v_rest, row0, v_col, start, keys, V_MAIN, V_STRIDE, BLOCK_N, V_REST,
                              EVEN, DESCRIBED)
            acc_rest = tl.dot(weights, more_v, acc_rest * shrink[:, None])
        peak = higher
    # fmt: on
    return acc, acc_rest, total, peak


@triton.jit
def _attend_seen(
    q, q_rest, acc, acc_rest, total, peak, places, k_source, k_rest, v_source, v_rest,
    row0, k_col, v_col, lowest, highest, keys, scale,
    BLOCK_N: tl.constexpr, K_STRIDE: tl.constexpr, V_STRIDE: tl.constexpr, K_MAIN: tl.constexpr,
    K_REST: tl.constexpr, V_MAIN: tl.constexpr, V_REST: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, SPLIT: tl.constexpr, EVEN_N: tl.constexpr, DESCRIBED: tl.constexpr,
    SPECIALIZED: tl.constexpr,
):  # fmt: skip
    """Take in the blocks of keys that any query sees; the queries are at lowest .. highest."""
    # fmt: off
    if CAUSAL:
        begin = 0
        if WINDOW > 0:
            begin = tl.maximum(lowest - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
        if SPLIT:
            # Keys begin .. whole are hidden from some of these queries, whole .. end from none.
            end = (lowest + 1) // BLOCK_N * BLOCK_N
            if WINDOW > 0:
                whole = tl.cdiv(tl.maximum(highest - WINDOW + 1, 0), BLOCK_N) * BLOCK_N
                acc, acc_rest, total, peak = _attend(
                    q, q_rest, acc, acc_rest, total, peak, places, k_source, k_rest, v_source,
                    v_rest, row0, k_col, v_col, begin, whole, keys, scale, BLOCK_N, K_STRIDE,
                    V_STRIDE, K_MAIN, K_REST, V_MAIN, V_REST, True, CAUSAL, WINDOW, EVEN_N,
                    DESCRIBED, SPECIALIZED)
                begin = whole
                end = tl.maximum(end, whole)
            acc, acc_rest, total, peak = _attend(
                q, q_rest, acc, acc_rest, total, peak, places, k_source, k_rest, v_source,
                v_rest, row0, k_col, v_col, begin, end, keys, scale, BLOCK_N, K_STRIDE,
                V_STRIDE, K_MAIN, K_REST, V_MAIN, V_REST, False, CAUSAL, WINDOW, True,
                DESCRIBED, SPECIALIZED)
            begin = end
        acc, acc_rest, total, peak = _attend(
            q, q_rest, acc, acc_rest, total, peak, places, k_source, k_rest, v_source,
            v_rest, row0, k_col, v_col, begin, highest + 1, keys, scale, BLOCK_N, K_STRIDE,
            V_STRIDE, K_MAIN, K_REST, V_MAIN, V_REST, True, CAUSAL, WINDOW, EVEN_N,
            DESCRIBED, SPECIALIZED)
    else:
        end = keys if EVEN_N else keys // BLOCK_N * BLOCK_N
        acc, acc_rest, total, peak = _attend(
            q, q_rest, acc, acc_rest, total, peak, places, k_source, k_rest, v_source,
            v_rest, row0, k_col, v_col, 0, end, keys, scale, BLOCK_N, K_STRIDE,
            V_STRIDE, K_MAIN, K_REST, V_MAIN, V_REST, False, CAUSAL, WINDOW, True,
            DESCRIBED, SPECIALIZED)
        if not EVEN_N:
            acc, acc_rest, total, peak = _attend(
                q, q_rest, acc, acc_rest, total, peak, places, k_source, k_rest, v_source,
                v_rest, row0, k_col, v_col, end, keys, keys, scale, BLOCK_N, K_STRIDE,
                V_STRIDE, K_MAIN, K_REST, V_MAIN, V_REST, True, CAUSAL, WINDOW, False,
                DESCRIBED, SPECIALIZED)
    # fmt: on
    return acc, acc_rest, total, peak


@triton.jit
def grouped_attention_kernel(
    q_ptr, k_source, k_rest, v_source, v_rest, out_ptr, bounds_ptr, queries, keys, owners, tiles,
    scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, Q_HEADS: tl.constexpr, GROUP: tl.constexpr,
    PACKED: tl.constexpr, K_MAIN: tl.constexpr, K_REST: tl.constexpr, V_MAIN: tl.constexpr,
    V_REST: tl.constexpr, SEQUENCES: tl.constexpr, SEQUENCE_BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SPLIT: tl.constexpr, HEAD_MAJOR: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, DESCRIBED: tl.constexpr, SPECIALIZED: tl.constexpr,
):  # fmt: skip
    """out = softmax(q @ k.T * scale / log2(e)) @ v, BLOCK_M rows of PACKED heads per program.

    Without SEQUENCES, q and out are [batch, heads, queries, dim], k and v [batch, heads, keys,
    dim]. With SEQUENCES, all are [tokens, heads, dim], and sequence i has the tokens bounds[i] ..
    bounds[i + 1]. PACKED is 1 or GROUP, the heads of q that share one of k and v. There are
    `owners` sets of PACKED heads, with `tiles` blocks of rows each: HEAD_MAJOR runs through one
    set after the other, else through one block after the other, the longest first where CAUSAL.
    With SPLIT, only blocks of keys that a query does not see whole are masked. The REST columns
    of k and v have descriptors of their own.
    """
    k_dim: tl.constexpr = K_MAIN + K_REST
    v_dim: tl.constexpr = V_MAIN + V_REST
    program = tl.program_id(0)
    if HEAD_MAJOR:
        owner, tile = program // tiles, program % tiles
    else:
        owner, tile = program % owners, program // owners
    first_head = owner * PACKED
    kv_head = first_head // GROUP
    if SEQUENCES > 0:
        # Sequence i has the tiles from (its first row) // BLOCK_M + i on, at least as many as it
        # needs; vLLM's unified attention numbers its blocks so.
        at = tl.arange(0, SEQUENCE_BLOCK)
        starts = tl.load(bounds_ptr + at, at < SEQUENCES, 0)
        before = (at < SEQUENCES) & (starts * PACKED // BLOCK_M + at <= tile)
        sequence = tl.sum(before.to(tl.int32)) - 1
        row0 = tl.load(bounds_ptr + sequence)
        queries = tl.load(bounds_ptr + sequence + 1) - row0
        keys = queries
        tile -= row0 * PACKED // BLOCK_M + sequence
        k_stride: tl.constexpr = Q_HEADS // GROUP * k_dim
        v_stride: tl.constexpr = Q_HEADS // GROUP * v_dim
        k_col = kv_head * k_dim
        v_col = kv_head * v_dim
        if tile * BLOCK_M >= queries * PACKED:
            return
    else:
        row0 = kv_head * keys
        k_stride: tl.constexpr = k_dim
        v_stride: tl.constexpr = v_dim
        k_col = 0
        v_col = 0
    rows_of_all = queries * PACKED
    if CAUSAL:
        tile = tl.cdiv(rows_of_all, BLOCK_M) - 1 - tile
    first_row = tile * BLOCK_M
    rows = first_row + tl.arange(0, BLOCK_M)
    held = rows if EVEN_M else tl.minimum(rows, rows_of_all - 1)
    query = held // PACKED
    head = first_head + held % PACKED
    if SEQUENCES > 0:
        lines = (row0 + query).to(tl.int64) * Q_HEADS + head
    else:
        lines = head.to(tl.int64) * queries + query
    places = query + (keys - queries)
    lowest = first_row // PACKED + (keys - queries)
    highest = tl.minimum(first_row + BLOCK_M, rows_of_all) - 1
    highest = highest // PACKED + (keys - queries)

    main = tl.arange(0, K_MAIN)
    q = tl.load(q_ptr + ((lines * k_dim)[:, None] + main[None, :]))
    q_rest = q
    if K_REST > 0:
        rest = K_MAIN + tl.arange(0, K_REST)
        q_rest = tl.load(q_ptr + ((lines * k_dim)[:, None] + rest[None, :]))
    acc = tl.zeros((BLOCK_M, V_MAIN), dtype=tl.float32)
    acc_rest = acc
    if V_REST > 0:
        acc_rest = tl.zeros((BLOCK_M, V_REST), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    peak = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    # fmt: off
    acc, acc_rest, total, peak = _attend_seen(
        q, q_rest, acc, acc_rest, total, peak, places, k_source, k_rest, v_source, v_rest, row0,
        k_col, v_col, lowest, highest, keys, scale, BLOCK_N, k_stride, v_stride, K_MAIN, K_REST,
        V_MAIN, V_REST, CAUSAL, WINDOW, SPLIT, EVEN_N, DESCRIBED, SPECIALIZED)
    # fmt: on
    share = (1.0 / total)[:, None]
    inside = (rows < rows_of_all)[:, None]
    dtype = out_ptr.dtype.element_ty
    out_ptrs = out_ptr + ((lines * v_dim)[:, None] + tl.arange(0, V_MAIN)[None, :])
    _store(out_ptrs, (acc * share).to(dtype), inside, EVEN_M)
    if V_REST > 0:
        rest_ptrs = out_ptr + ((lines * v_dim)[:, None] + (V_MAIN + tl.arange(0, V_REST))[None, :])
        _store(rest_ptrs, (acc_rest * share).to(dtype), inside, EVEN_M)


@triton.jit
def _store(ptrs, value, inside, EVEN: tl.constexpr):
    if EVEN:
        tl.store(ptrs, value)
    else:
        tl.store(ptrs, value, inside)
