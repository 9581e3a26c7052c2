# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of out[M, N] = x[M, K] @ w[N, K]^T for few rows of x; sums are in float32.

A program has BLOCK_N rows of w and, with SPLIT_K parts of K, one part: it then writes partial sums,
which a second launch adds.
"""

import triton
import triton.language as tl

from search_spaces.kernels.linear.triton_kernels import part_of_k


@triton.jit
def _widened(stride, WIDE: tl.constexpr):
    return tl.cast(stride, tl.int64) if WIDE else stride


@triton.jit
def _weight_rows(cols, N, w_stride, EVEN_N: tl.constexpr, WIDE: tl.constexpr):
    """Places of the rows of w; rows beyond the last read the last one and are not stored."""
    w_rows = cols if EVEN_N else tl.minimum(cols, N - 1)
    if WIDE:
        w_rows = w_rows.to(tl.int64)
    return w_rows * w_stride


@triton.jit
def _weights(w_ptrs, in_k, EVEN_K: tl.constexpr):
    # Each weight is read once: its lines leave the caches first, and those of x stay.
    if EVEN_K:
        w = tl.load(w_ptrs, eviction_policy="evict_first")
    else:
        w = tl.load(w_ptrs, in_k[None, :], 0.0, eviction_policy="evict_first")
    return w


@triton.jit
def _products(w, x_ptr, ks, in_k, EVEN_K: tl.constexpr):
    """w[BLOCK_N, BLOCK_K] times the same part of a row of x."""
    x = tl.load(x_ptr + ks) if EVEN_K else tl.load(x_ptr + ks, in_k, 0.0)
    return w * x.to(tl.float32)[None, :]


@triton.jit
def _store_row(out_ptr, row, acc, cols, N, out_stride):
    value = tl.sum(acc, 1).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * out_stride + cols, value, cols < N)


@triton.jit
def gemv_kernel(
    x_ptr, w_ptr, out_ptr, N, K, x_stride, w_stride, out_stride, M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr, EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr, ALIGN_K: tl.constexpr, WIDE: tl.constexpr, LOAD_STAGES: tl.constexpr,
):  # fmt: skip
    """Products lane by lane for M of 1 to 4 rows; lanes of a row of w are added at the end.

    x[M, K], w[N, K] and out[M, N] are row-major with the given strides, in elements; K, x_stride
    and w_stride are multiples of ALIGN_K. With SPLIT_K > 1, out is float32 [SPLIT_K, M, N] of
    partial sums. LOAD_STAGES blocks are in flight. WIDE: offsets do not fit into 32 bits.
    """
    K = K // ALIGN_K * ALIGN_K
    x_stride = x_stride // ALIGN_K * ALIGN_K
    w_stride = w_stride // ALIGN_K * ALIGN_K
    x_stride, out_stride = _widened(x_stride, WIDE), _widened(out_stride, WIDE)
    first, last = part_of_k(K, BLOCK_K, SPLIT_K)
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    lanes = tl.arange(0, BLOCK_K)
    rows_at = _weight_rows(cols, N, w_stride, EVEN_N, WIDE)
    w_ptrs = w_ptr + (rows_at[:, None] + lanes[None, :])

    acc0 = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    if M > 1:
        acc1 = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    if M > 2:
        acc2 = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    if M > 3:
        acc3 = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for step in tl.range(first, last, num_stages=LOAD_STAGES):
        ks = step * BLOCK_K + lanes
        in_k = ks < K
        w = _weights(w_ptrs + step * BLOCK_K, in_k, EVEN_K).to(tl.float32)
        acc0 += _products(w, x_ptr, ks, in_k, EVEN_K)
        if M > 1:
            acc1 += _products(w, x_ptr + x_stride, ks, in_k, EVEN_K)
        if M > 2:
            acc2 += _products(w, x_ptr + 2 * x_stride, ks, in_k, EVEN_K)
        if M > 3:
            acc3 += _products(w, x_ptr + 3 * x_stride, ks, in_k, EVEN_K)

    if SPLIT_K > 1:
        out_ptr += tl.program_id(1).to(tl.int64) * M * N
    _store_row(out_ptr, 0, acc0, cols, N, out_stride)
    if M > 1:
        _store_row(out_ptr, 1, acc1, cols, N, out_stride)
    if M > 2:
        _store_row(out_ptr, 2, acc2, cols, N, out_stride)
    if M > 3:
        _store_row(out_ptr, 3, acc3, cols, N, out_stride)


@triton.jit
def gemv_dot_kernel(
    x_ptr, w_ptr, out_ptr, N, K, x_stride, w_stride, out_stride, M: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
    EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, ALIGN_K: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Products by tensor cores: w[BLOCK_N, K] @ x^T[K, ROWS], where the last row of x is repeated.

    The arguments are those of `gemv_kernel`. Weights are the first factor, whose rows fill whole
    instructions; x pads the smaller side of an instruction.
    """
    K = K // ALIGN_K * ALIGN_K
    x_stride = x_stride // ALIGN_K * ALIGN_K
    w_stride = w_stride // ALIGN_K * ALIGN_K
    x_stride, out_stride = _widened(x_stride, WIDE), _widened(out_stride, WIDE)
    first, last = part_of_k(K, BLOCK_K, SPLIT_K)
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.arange(0, ROWS)
    lanes = tl.arange(0, BLOCK_K)
    ks = first * BLOCK_K + lanes
    rows_at = _weight_rows(cols, N, w_stride, EVEN_N, WIDE)
    w_ptrs = w_ptr + (rows_at[:, None] + ks[None, :])
    x_ptrs = x_ptr + ((tl.minimum(rows, M - 1) * x_stride)[None, :] + ks[:, None])

    acc = tl.zeros((BLOCK_N, ROWS), tl.float32)
    for step in tl.range(first, last):
        in_k = lanes < K - step * BLOCK_K
        w = _weights(w_ptrs, in_k, EVEN_K)
        x = tl.load(x_ptrs) if EVEN_K else tl.load(x_ptrs, in_k[:, None], 0.0)
        acc = tl.dot(w, x, acc, input_precision="ieee")
        w_ptrs += BLOCK_K
        x_ptrs += BLOCK_K

    if SPLIT_K > 1:
        out_ptr += tl.program_id(1).to(tl.int64) * M * N
    out_ptrs = out_ptr + ((rows * out_stride)[None, :] + cols[:, None])
    value = acc.to(out_ptr.dtype.element_ty)
    tl.store(out_ptrs, value, (rows < M)[None, :] & (cols < N)[:, None])
