# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of the matmul family: tiles by pointers, tiles by tensor descriptors, a reduction.

All accumulate in float32 and visit tiles in groups of GROUP_M tile rows, so that programs running
at the same time share tiles of both operands in the last-level cache.
"""

import triton
import triton.language as tl

from search_spaces.kernels.jitted_tiles import multiply_add, store_tile, tile_at


@triton.jit
def matmul_kernel(
    a_ptr,
    b_ptr,
    out_ptr,
    M,
    N,
    K,
    a_stride,
    b_stride,
    out_stride,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr,
    EVEN_M: tl.constexpr,
    EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    ALIGN_K: tl.constexpr,
    ALIGN_N: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """One tile of out = a @ b per program; the second grid axis splits K into SPLIT_K parts.

    a[M, K], b[K, N] and out[M, N] are row-major with the given strides, in elements; K and a_stride
    are multiples of ALIGN_K, N, b_stride and out_stride of ALIGN_N. With SPLIT_K > 1, out is
    float32 [SPLIT_K, M, N] of partial sums. WIDE: offsets do not fit into 32 bits.
    """
    # Dividing and multiplying tells the compiler what it cannot see of an argument: its divisors.
    N = N // ALIGN_N * ALIGN_N
    K = K // ALIGN_K * ALIGN_K
    a_stride = a_stride // ALIGN_K * ALIGN_K
    b_stride = b_stride // ALIGN_N * ALIGN_N
    out_stride = out_stride // ALIGN_N * ALIGN_N
    pid_m, pid_n = tile_at(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    split = tl.program_id(1)
    steps = tl.cdiv(K, BLOCK_K)
    per_split = tl.cdiv(steps, SPLIT_K)
    first = split * per_split
    last = tl.minimum(first + per_split, steps)

    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = first * BLOCK_K + tl.arange(0, BLOCK_K)
    # Rows beyond the last read the last one: what they compute is not stored.
    a_rows = rows if EVEN_M else tl.minimum(rows, M - 1)
    b_rows = ks
    if WIDE:
        a_rows = a_rows.to(tl.int64)
        b_rows = b_rows.to(tl.int64)
        b_stride = tl.cast(b_stride, tl.int64)
    a_ptrs = a_ptr + ((a_rows * a_stride)[:, None] + ks[None, :])
    b_ptrs = b_ptr + ((b_rows * b_stride)[:, None] + cols[None, :])
    in_n = (cols < N)[None, :]

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in tl.range(first, last):
        if EVEN_K:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs) if EVEN_N else tl.load(b_ptrs, in_n, 0.0)
        else:
            in_k = tl.arange(0, BLOCK_K) < K - step * BLOCK_K
            a = tl.load(a_ptrs, in_k[None, :], 0.0)
            b = tl.load(b_ptrs, in_k[:, None] & in_n, 0.0)
        acc = multiply_add(a, b, acc, PRECISION, INTERPRETED)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * b_stride

    if SPLIT_K > 1:
        out_ptr += split.to(tl.int64) * M * N
    store_tile(out_ptr, acc, rows, cols, M, N, out_stride, EVEN_M and EVEN_N, WIDE)


@triton.jit
def _descriptor_tile(
    a_desc,
    b_desc,
    out_desc,
    tile,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    pid_m, pid_n = tile_at(tile, tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    row, col = pid_m * BLOCK_M, pid_n * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in tl.range(tl.cdiv(K, BLOCK_K)):
        a = a_desc.load([row, step * BLOCK_K])
        b = b_desc.load([step * BLOCK_K, col])
        acc = multiply_add(a, b, acc, PRECISION, INTERPRETED)
    out_desc.store([row, col], acc.to(out_desc.dtype))


@triton.jit
def descriptor_matmul_kernel(
    a_desc,
    b_desc,
    out_desc,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PERSISTENT: tl.constexpr,
    PRECISION: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """out = a @ b with tiles moved by the tensor memory accelerator, which masks the edges itself.

    a_desc, b_desc and out_desc describe row-major a[M, K], b[K, N] and out[M, N] in blocks of
    [BLOCK_M, BLOCK_K], [BLOCK_K, BLOCK_N] and [BLOCK_M, BLOCK_N]. PERSISTENT programs walk over the
    tiles, the grid apart, so that one tile's loads overlap with the last one's stores.
    """
    # fmt: off
    if PERSISTENT:
        tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
        for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
            _descriptor_tile(a_desc, b_desc, out_desc, tile, M, N, K,
                             BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, PRECISION, INTERPRETED)
    else:
        _descriptor_tile(a_desc, b_desc, out_desc, tl.program_id(0), M, N, K,
                         BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, PRECISION, INTERPRETED)
    # fmt: on


@triton.jit
def sum_splits_kernel(
    partial_ptr,
    out_ptr,
    elements,
    SPLIT_K: tl.constexpr,
    BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
):
    """out = the sum of SPLIT_K partial results of `elements` float32 each, always in one order."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for _ in tl.static_range(SPLIT_K):
        if EVEN:
            acc += tl.load(partial_ptr + at)
        else:
            acc += tl.load(partial_ptr + at, at < elements, 0.0)
        partial_ptr += elements
    value = acc.to(out_ptr.dtype.element_ty)
    if EVEN:
        tl.store(out_ptr + at, value)
    else:
        tl.store(out_ptr + at, value, at < elements)
