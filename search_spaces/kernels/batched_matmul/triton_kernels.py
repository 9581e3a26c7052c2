# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of batched products, tiles by pointers and by tensor descriptors.

Programs take the tiles of one product after another, those of a product in matmul's grouped order,
so that programs running at the same time share its factors in the last-level cache. Sums are in
float32. A transposed factor is read as it stands: tensor cores take either order from shared
memory.
"""

import triton
import triton.language as tl

from search_spaces.kernels.jitted_tiles import store_tile, tile_at


@triton.jit
def _load(ptrs, in_side, in_k, MASK_SIDE: tl.constexpr, MASK_K: tl.constexpr):
    """A tile, with zeros outside; in_side and in_k are along its two dimensions."""
    if MASK_SIDE and MASK_K:
        tile = tl.load(ptrs, in_side & in_k, 0.0)
    elif MASK_SIDE:
        tile = tl.load(ptrs, in_side, 0.0)
    elif MASK_K:
        tile = tl.load(ptrs, in_k, 0.0)
    else:
        tile = tl.load(ptrs)
    return tile


@triton.jit
def batched_matmul_kernel(
    a_ptr, b_ptr, out_ptr, M, N, K, TRANSPOSE_A: tl.constexpr, TRANSPOSE_B: tl.constexpr,
    SHARED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr,
    ALIGN_M: tl.constexpr, ALIGN_N: tl.constexpr, ALIGN_K: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of out[i] = a[i] @ b[i] per program.

    a[batch, M, K], or [batch, K, M] with TRANSPOSE_A, b[batch, K, N], or [batch, N, K] with
    TRANSPOSE_B, and out[batch, M, N] are contiguous. SHARED is `a` or `b` where that factor is one
    matrix. M, N and K are multiples of ALIGN_M, ALIGN_N and ALIGN_K. WIDE: offsets within a matrix
    do not fit into 32 bits.
    """
    # Dividing and multiplying tells the compiler what it cannot see of an argument: its divisors.
    M = M // ALIGN_M * ALIGN_M
    N = N // ALIGN_N * ALIGN_N
    K = K // ALIGN_K * ALIGN_K
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    pid_m, pid_n = tile_at(
        tl.program_id(0) % tiles, tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M
    )
    if SHARED != "a":
        a_ptr += batch * M * K
    if SHARED != "b":
        b_ptr += batch * K * N
    out_ptr += batch * M * N

    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    a_stride = M if TRANSPOSE_A else K
    b_stride = K if TRANSPOSE_B else N
    if WIDE:
        a_stride = tl.cast(a_stride, tl.int64)
        b_stride = tl.cast(b_stride, tl.int64)
    # Along memory, what is outside is masked; across, it reads the last row and is not stored.
    if TRANSPOSE_A:
        a_ptrs = a_ptr + ((ks * a_stride)[None, :] + rows[:, None])
        a_step = BLOCK_K * a_stride
    else:
        a_rows = rows if EVEN_M else tl.minimum(rows, M - 1)
        a_ptrs = a_ptr + ((a_rows * a_stride)[:, None] + ks[None, :])
        a_step = BLOCK_K
    if TRANSPOSE_B:
        b_cols = cols if EVEN_N else tl.minimum(cols, N - 1)
        b_ptrs = b_ptr + ((b_cols * b_stride)[None, :] + ks[:, None])
        b_step = BLOCK_K
    else:
        b_ptrs = b_ptr + ((ks * b_stride)[:, None] + cols[None, :])
        b_step = BLOCK_K * b_stride
    MASK_A: tl.constexpr = TRANSPOSE_A and not EVEN_M
    MASK_B: tl.constexpr = not TRANSPOSE_B and not EVEN_N
    in_m, in_n = (rows < M)[:, None], (cols < N)[None, :]

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in tl.range(tl.cdiv(K, BLOCK_K)):
        in_k = ks < K - step * BLOCK_K
        a = _load(a_ptrs, in_m, in_k[None, :], MASK_A, not EVEN_K)
        b = _load(b_ptrs, in_n, in_k[:, None], MASK_B, not EVEN_K)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        a_ptrs += a_step
        b_ptrs += b_step
    store_tile(out_ptr, acc, rows, cols, M, N, N, EVEN_M and EVEN_N, WIDE)


@triton.jit
def _described(
    desc, batch, side, k, BLOCK_SIDE: tl.constexpr, BLOCK_K: tl.constexpr,
    SIDE_FIRST: tl.constexpr,
):  # fmt: skip
    """The tile of a factor: [side, k], or [k, side] where memory has that order."""
    if SIDE_FIRST:
        tile = desc.load([batch, side, k]).reshape(BLOCK_SIDE, BLOCK_K)
    else:
        tile = desc.load([batch, k, side]).reshape(BLOCK_K, BLOCK_SIDE)
    return tile


@triton.jit
def _descriptor_tile(
    a_desc, b_desc, out_desc, at, M, N, K, TRANSPOSE_A: tl.constexpr, TRANSPOSE_B: tl.constexpr,
    SHARED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    batch = at // tiles
    pid_m, pid_n = tile_at(at % tiles, tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    row, col = pid_m * BLOCK_M, pid_n * BLOCK_N
    a_batch = 0 if SHARED == "a" else batch
    b_batch = 0 if SHARED == "b" else batch
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in tl.range(tl.cdiv(K, BLOCK_K)):
        k = step * BLOCK_K
        a = _described(a_desc, a_batch, row, k, BLOCK_M, BLOCK_K, not TRANSPOSE_A)
        b = _described(b_desc, b_batch, col, k, BLOCK_N, BLOCK_K, TRANSPOSE_B)
        if TRANSPOSE_A:
            a = a.T
        if TRANSPOSE_B:
            b = b.T
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    value = acc.to(out_desc.dtype).reshape(1, BLOCK_M, BLOCK_N)
    out_desc.store([batch, row, col], value)


@triton.jit
def descriptor_batched_matmul_kernel(
    a_desc, b_desc, out_desc, count, M, N, K, TRANSPOSE_A: tl.constexpr,
    TRANSPOSE_B: tl.constexpr, SHARED: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PERSISTENT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same with tiles moved by the tensor memory accelerator, which masks the edges itself.

    The descriptors have blocks [1, BLOCK_M, BLOCK_K], [1, BLOCK_K, BLOCK_N] (the last two in the
    order of memory) and [1, BLOCK_M, BLOCK_N]. PERSISTENT programs walk over the tiles of all
    `count` products, the grid apart, so that one tile's loads overlap with the last one's stores.
    """
    # fmt: off
    if PERSISTENT:
        tiles = count * tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
        for at in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
            _descriptor_tile(a_desc, b_desc, out_desc, at, M, N, K, TRANSPOSE_A, TRANSPOSE_B,
                             SHARED, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, PRECISION)
    else:
        _descriptor_tile(a_desc, b_desc, out_desc, tl.program_id(0), M, N, K, TRANSPOSE_A,
                         TRANSPOSE_B, SHARED, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, PRECISION)
    # fmt: on
