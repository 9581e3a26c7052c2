# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernel of out = (a @ b^T) of codes of one byte, with scales.

Tiles come by pointers or by tensor descriptors, whole or split along K.

a[M, K] and b[N, K] are row-major, so both operands have K contiguous, as tensor cores for one byte
need them. Products of float8 are summed in float32, those of int8 in int32.
"""

import triton
import triton.language as tl

from search_spaces.kernels.float8 import HALF_SCALE, scaled_halves

#: Elements of K, and columns of the output, that share a scale by blocks.
_GROUP = tl.constexpr(128)


@triton.jit
def tile_at(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Row and column of a tile, in groups of GROUP_M tile rows that share tiles in the caches."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    group = tile // (GROUP_M * tiles_n)
    height = tl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    return group * GROUP_M + within % height, within // height


@triton.jit
def _product(a, b, acc, DOT: tl.constexpr, SWAP: tl.constexpr, PROMOTE: tl.constexpr):
    """acc + a @ b^T or, with SWAP, acc + b @ a^T, for tiles a[BLOCK_M, BLOCK_K], b[BLOCK_N, ...].

    PROMOTE: elements of K after which Hopper's tensor cores, which keep 14 bits of a sum of float8
    products, hand it over to float32; 0 for never.
    """
    if DOT == "float16":
        a = scaled_halves(a)
        b = scaled_halves(b)
    if SWAP:
        left, right = b, tl.trans(a)
    else:
        left, right = a, tl.trans(b)
    if DOT == "int8":
        acc = tl.dot(left, right, acc, out_dtype=tl.int32)
    elif DOT == "float8" and PROMOTE > 0:
        acc = tl.dot(left, right, acc, max_num_imprecise_acc=PROMOTE)
    else:
        acc = tl.dot(left, right, acc)
    return acc


@triton.jit
def _block_scales(
    a_scale_ptr, b_scale_ptr, step, a_rows, col, b_rows, M, K, BLOCK_N: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """The scales of the rows and of the columns of a tile for block `step` of K; `col` is the
    first column, and a tile of one block of columns has one scale for all of them."""
    start = step.to(tl.int64) * M if WIDE else step * M
    a_scale = tl.load(a_scale_ptr + start + a_rows)
    blocks = tl.cdiv(K, _GROUP)
    groups = col // _GROUP if BLOCK_N <= _GROUP else b_rows // _GROUP
    return a_scale, tl.load(b_scale_ptr + groups * blocks + step)


@triton.jit
def _add_scaled(
    a, b, acc, a_scale, b_scale, BLOCK_N: tl.constexpr, DOT: tl.constexpr, SWAP: tl.constexpr
):
    """acc and the scaled product of one block of K, which the tensor cores hand over to float32."""
    partial = _product(a, b, tl.zeros_like(acc), DOT, SWAP, 0)
    if BLOCK_N <= _GROUP:
        scale = a_scale * b_scale
        acc += partial * (scale[None, :] if SWAP else scale[:, None])
    elif SWAP:
        acc += partial * a_scale[None, :] * b_scale[:, None]
    else:
        acc += partial * a_scale[:, None] * b_scale[None, :]
    return acc


@triton.jit
def _store_tile(
    out_ptr, a_scale_ptr, b_scale_ptr, acc, rows, cols, a_rows, b_rows, split, M, N, out_stride,
    SPLIT_K: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr, SCALES: tl.constexpr,
    DOT: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    value = acc.to(tl.float32)
    if DOT == "float16":
        value *= HALF_SCALE * HALF_SCALE
    if SWAP:
        value = tl.trans(value)
    if SCALES == "tensor":
        value *= tl.load(a_scale_ptr) * tl.load(b_scale_ptr)
    elif SCALES == "row":
        value *= tl.load(a_scale_ptr + a_rows)[:, None]
        value *= tl.load(b_scale_ptr + b_rows)[None, :]
    if SPLIT_K > 1:
        out_ptr += split.to(tl.int64) * M * N
    at_rows = rows.to(tl.int64) if WIDE else rows
    out_ptrs = out_ptr + ((at_rows * out_stride)[:, None] + cols[None, :])
    value = value.to(out_ptr.dtype.element_ty)
    if EVEN:
        tl.store(out_ptrs, value)
    else:
        tl.store(out_ptrs, value, (rows < M)[:, None] & (cols < N)[None, :])


@triton.jit
def _scaled_tile(
    a_ptr, b_ptr, a_scale_ptr, b_scale_ptr, out_ptr, tile, split, M, N, K, a_stride, b_stride,
    out_stride, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr, WIDE: tl.constexpr, SCALES: tl.constexpr, DOT: tl.constexpr,
    PROMOTE: tl.constexpr, SWAP: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    # fmt: off
    pid_m, pid_n = tile_at(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    steps = tl.cdiv(K, BLOCK_K)
    per_split = tl.cdiv(steps, SPLIT_K)
    first = split * per_split
    last = tl.minimum(first + per_split, steps)
    row, col = pid_m * BLOCK_M, pid_n * BLOCK_N
    rows = row + tl.arange(0, BLOCK_M)
    cols = col + tl.arange(0, BLOCK_N)
    # Rows and columns beyond the last read the last one: what they compute is not stored.
    a_rows = rows if EVEN_M else tl.minimum(rows, M - 1)
    b_rows = cols if EVEN_N else tl.minimum(cols, N - 1)
    ks = first * BLOCK_K + tl.arange(0, BLOCK_K)
    if not DESCRIPTORS:
        at_a = a_rows.to(tl.int64) if WIDE else a_rows
        at_b = b_rows.to(tl.int64) if WIDE else b_rows
        a_ptrs = a_ptr + ((at_a * a_stride)[:, None] + ks[None, :])
        b_ptrs = b_ptr + ((at_b * b_stride)[:, None] + ks[None, :])

    sums: tl.constexpr = tl.int32 if DOT == "int8" else tl.float32
    shape: tl.constexpr = (BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N)
    acc = tl.zeros(shape, dtype=sums)
    if SCALES == "block128":
        a_next, b_next = _block_scales(a_scale_ptr, b_scale_ptr, tl.minimum(first, steps - 1),
                                       a_rows, col, b_rows, M, K, BLOCK_N, WIDE)
    for step in tl.range(first, last):
        if DESCRIPTORS:
            a = a_ptr.load([row, step * BLOCK_K])
            b = b_ptr.load([col, step * BLOCK_K])
        else:
            if EVEN_K:
                a = tl.load(a_ptrs)
                b = tl.load(b_ptrs)
            else:
                in_k = (tl.arange(0, BLOCK_K) < K - step * BLOCK_K)[None, :]
                a = tl.load(a_ptrs, in_k, 0.0)
                b = tl.load(b_ptrs, in_k, 0.0)
            a_ptrs += BLOCK_K
            b_ptrs += BLOCK_K
        if SCALES == "block128":
            a_scale, b_scale = a_next, b_next
            # The next step's scales are on their way while this step is multiplied.
            a_next, b_next = _block_scales(a_scale_ptr, b_scale_ptr,
                                           tl.minimum(step + 1, steps - 1), a_rows, col,
                                           b_rows, M, K, BLOCK_N, WIDE)
            acc = _add_scaled(a, b, acc, a_scale, b_scale, BLOCK_N, DOT, SWAP)
        else:
            acc = _product(a, b, acc, DOT, SWAP, PROMOTE)

    _store_tile(out_ptr, a_scale_ptr, b_scale_ptr, acc, rows, cols, a_rows, b_rows, split, M, N,
                out_stride, SPLIT_K, EVEN_M and EVEN_N, WIDE, SCALES, DOT, SWAP)
    # fmt: on


@triton.jit
def scaled_matmul_kernel(
    a_ptr, b_ptr, a_scale_ptr, b_scale_ptr, out_ptr, M, N, K, a_stride, b_stride, out_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr,
    ALIGN_K: tl.constexpr, ALIGN_N: tl.constexpr, WIDE: tl.constexpr, SCALES: tl.constexpr,
    DOT: tl.constexpr, PROMOTE: tl.constexpr, SWAP: tl.constexpr, DESCRIPTORS: tl.constexpr,
    PERSISTENT: tl.constexpr,
):  # fmt: skip
    """Tiles of out = (a @ b^T) * scales; the second grid axis splits K into SPLIT_K parts.

    K and the strides of a and b are multiples of ALIGN_K, N and out_stride of ALIGN_N. With
    SPLIT_K > 1, out is float32 [SPLIT_K, M, N] of partial sums. WIDE: offsets do not fit into 32
    bits.

    SCALES: "tensor": a_scale[1] and b_scale[1]; "row": a_scale[M] and b_scale[N]; "block128":
    a_scale[K / 128, M] and b_scale[N / 128, K / 128], sizes rounded up, BLOCK_K of 128 (DeepSeek-V3
    Technical Report, 2024, section 3.3). DOT: "float8", "float16" (a and b are codes of float8 as
    uint8) or "int8". SWAP computes the transposed tile, whose rows are those of b: tensor cores
    take at least 64 rows, but as few as 8 columns. With DESCRIPTORS, a_ptr and b_ptr are tensor
    descriptors; PERSISTENT programs walk over the tiles, the grid apart.
    """
    # fmt: off
    # Dividing and multiplying tells the compiler what it cannot see of an argument: its divisors.
    N = N // ALIGN_N * ALIGN_N
    K = K // ALIGN_K * ALIGN_K
    a_stride = a_stride // ALIGN_K * ALIGN_K
    b_stride = b_stride // ALIGN_K * ALIGN_K
    out_stride = out_stride // ALIGN_N * ALIGN_N
    split = tl.program_id(1)
    if PERSISTENT:
        tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
        for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
            _scaled_tile(a_ptr, b_ptr, a_scale_ptr, b_scale_ptr, out_ptr, tile, split, M, N, K,
                         a_stride, b_stride, out_stride, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M,
                         SPLIT_K, EVEN_M, EVEN_N, EVEN_K, WIDE, SCALES, DOT, PROMOTE, SWAP,
                         DESCRIPTORS)
    else:
        _scaled_tile(a_ptr, b_ptr, a_scale_ptr, b_scale_ptr, out_ptr, tl.program_id(0), split,
                     M, N, K, a_stride, b_stride, out_stride, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M,
                     SPLIT_K, EVEN_M, EVEN_N, EVEN_K, WIDE, SCALES, DOT, PROMOTE, SWAP,
                     DESCRIPTORS)
    # fmt: on
