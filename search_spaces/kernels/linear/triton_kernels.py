# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of linear layers: a matrix product whose tile is finished in registers.

Weights are [outputs, K], as `torch.nn.Linear` holds them. Sums and epilogues are in float32. A
`swiglu` has the gate's weights in the first N rows and the value's in the last N; one program
computes the tiles of both, which share the tile of `a`.
"""

import triton
import triton.language as tl

from search_spaces.kernels.activation.triton_kernels import activated
from search_spaces.kernels.jitted_tiles import store_tile, tile_at


@triton.jit
def part_of_k(K, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr):
    """The first step of a program's part of K, and the one after its last."""
    steps = tl.cdiv(K, BLOCK_K)
    per_split = tl.cdiv(steps, SPLIT_K)
    first = tl.program_id(1) * per_split
    return first, tl.minimum(first + per_split, steps)


@triton.jit
def _tile(ptr, rows, cols, M, N, stride, EVEN: tl.constexpr, WIDE: tl.constexpr):
    """A tile of a row-major matrix in float32."""
    at_rows = rows.to(tl.int64) if WIDE else rows
    ptrs = ptr + ((at_rows * stride)[:, None] + cols[None, :])
    inside = (rows < M)[:, None] & (cols < N)[None, :]
    tile = tl.load(ptrs) if EVEN else tl.load(ptrs, inside, 0.0)
    return tile.to(tl.float32)


@triton.jit
def _biased(acc, bias_ptr, cols, N):
    """acc[rows, cols] + bias[cols]."""
    bias = tl.load(bias_ptr + cols, cols < N, 0.0)
    return acc + bias.to(tl.float32)[None, :]


@triton.jit
def _finished(
    acc, up, bias_ptr, cols, N, EPILOGUE: tl.constexpr, HAS_BIAS: tl.constexpr, HALF: tl.constexpr
):  # fmt: skip
    """Bias and activation of float32 sums; `up` is the value of a `swiglu`, else unused.

    HALF: the result is rounded to 16 bits.
    """
    if HAS_BIAS:
        acc = _biased(acc, bias_ptr, cols, N)
    if EPILOGUE == "swiglu":
        if HAS_BIAS:
            up = _biased(up, bias_ptr + N, cols, N)
        acc = activated(acc, EPILOGUE, HALF) * up
    elif EPILOGUE != "none" and EPILOGUE != "residual":
        acc = activated(acc, EPILOGUE, HALF)
    return acc


@triton.jit
def linear_kernel(
    a_ptr, w_ptr, bias_ptr, residual_ptr, out_ptr, M, N, K, a_stride, w_stride, out_stride,
    EPILOGUE: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr, EVEN_M: tl.constexpr,
    EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, ALIGN_K: tl.constexpr, ALIGN_N: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of out = epilogue(a @ w^T + bias); the second grid axis splits K into SPLIT_K parts.

    a[M, K], w[N or 2 N, K], residual[M, N] and out[M, N] are row-major with the given strides, in
    elements; `residual` has out's. K, a_stride and w_stride are multiples of ALIGN_K, N and
    out_stride of ALIGN_N. With SPLIT_K > 1, out is float32 [SPLIT_K, M, N] of partial sums, and
    there is no epilogue. WIDE: offsets do not fit into 32 bits.
    """
    GATED: tl.constexpr = EPILOGUE == "swiglu"
    # Dividing and multiplying tells the compiler what it cannot see of an argument: its divisors.
    N = N // ALIGN_N * ALIGN_N
    K = K // ALIGN_K * ALIGN_K
    a_stride = a_stride // ALIGN_K * ALIGN_K
    w_stride = w_stride // ALIGN_K * ALIGN_K
    out_stride = out_stride // ALIGN_N * ALIGN_N
    pid_m, pid_n = tile_at(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    first, last = part_of_k(K, BLOCK_K, SPLIT_K)

    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = first * BLOCK_K + tl.arange(0, BLOCK_K)
    # Rows beyond the last read the last one: what they compute is not stored.
    a_rows = rows if EVEN_M else tl.minimum(rows, M - 1)
    w_rows = cols if EVEN_N else tl.minimum(cols, N - 1)
    if WIDE:
        a_rows = a_rows.to(tl.int64)
        w_rows = w_rows.to(tl.int64)
    a_ptrs = a_ptr + ((a_rows * a_stride)[:, None] + ks[None, :])
    w_ptrs = w_ptr + ((w_rows * w_stride)[None, :] + ks[:, None])

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if GATED:
        up_ptrs = w_ptrs + tl.cast(N, tl.int64) * w_stride
        up = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in tl.range(first, last):
        if EVEN_K:
            a = tl.load(a_ptrs)
            w = tl.load(w_ptrs)
        else:
            in_k = tl.arange(0, BLOCK_K) < K - step * BLOCK_K
            a = tl.load(a_ptrs, in_k[None, :], 0.0)
            w = tl.load(w_ptrs, in_k[:, None], 0.0)
        acc = tl.dot(a, w, acc, input_precision=PRECISION)
        if GATED:
            value = tl.load(up_ptrs) if EVEN_K else tl.load(up_ptrs, in_k[:, None], 0.0)
            up = tl.dot(a, value, up, input_precision=PRECISION)
            up_ptrs += BLOCK_K
        a_ptrs += BLOCK_K
        w_ptrs += BLOCK_K

    acc = _finished(acc, up if GATED else acc, bias_ptr, cols, N, EPILOGUE, HAS_BIAS,
                    out_ptr.dtype.element_ty.primitive_bitwidth == 16)  # fmt: skip
    if EPILOGUE == "residual":
        acc += _tile(residual_ptr, rows, cols, M, N, out_stride, EVEN_M and EVEN_N, WIDE)
    if SPLIT_K > 1:
        out_ptr += tl.program_id(1).to(tl.int64) * M * N
    store_tile(out_ptr, acc, rows, cols, M, N, out_stride, EVEN_M and EVEN_N, WIDE)


@triton.jit
def _halves(x, ROWS: tl.constexpr, HALF: tl.constexpr):
    """The left and the right half of the columns."""
    return tl.split(tl.permute(tl.reshape(x, (ROWS, 2, HALF)), (0, 2, 1)))


@triton.jit
def _store_described(
    acc, up, bias_ptr, residual_desc, out_desc, row, col, N, EPILOGUE: tl.constexpr,
    HAS_BIAS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    acc = _finished(acc, up, bias_ptr, col + tl.arange(0, COLS), N, EPILOGUE, HAS_BIAS,
                    out_desc.dtype.primitive_bitwidth == 16)  # fmt: skip
    if EPILOGUE == "residual":
        acc += residual_desc.load([row, col]).to(tl.float32)
    out_desc.store([row, col], acc.to(out_desc.dtype))


@triton.jit
def _descriptor_tile(
    a_desc, w_desc, bias_ptr, residual_desc, out_desc, tile, M, N, K, EPILOGUE: tl.constexpr,
    HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, SUBTILES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # fmt: off
    GATED: tl.constexpr = EPILOGUE == "swiglu"
    COLS: tl.constexpr = BLOCK_N // SUBTILES
    pid_m, pid_n = tile_at(tile, tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    row, col = pid_m * BLOCK_M, pid_n * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if GATED:
        up = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in tl.range(tl.cdiv(K, BLOCK_K)):
        a = a_desc.load([row, step * BLOCK_K])
        acc = tl.dot(a, w_desc.load([col, step * BLOCK_K]).T, acc, input_precision=PRECISION)
        if GATED:
            value = w_desc.load([N + col, step * BLOCK_K])
            up = tl.dot(a, value.T, up, input_precision=PRECISION)
    if SUBTILES == 1:
        _store_described(acc, up if GATED else acc, bias_ptr, residual_desc, out_desc, row, col, N,
                         EPILOGUE, HAS_BIAS, COLS)
    else:
        left, right = _halves(acc, BLOCK_M, COLS)
        up_left, up_right = _halves(up, BLOCK_M, COLS) if GATED else (left, right)
        _store_described(left, up_left, bias_ptr, residual_desc, out_desc, row, col, N,
                         EPILOGUE, HAS_BIAS, COLS)
        _store_described(right, up_right, bias_ptr, residual_desc, out_desc, row, col + COLS, N,
                         EPILOGUE, HAS_BIAS, COLS)
    # fmt: on


@triton.jit
def descriptor_linear_kernel(
    a_desc, w_desc, bias_ptr, residual_desc, out_desc, M, N, K, EPILOGUE: tl.constexpr,
    HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, PERSISTENT: tl.constexpr, SUBTILES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """out = epilogue(a @ w^T + bias), moved by the tensor memory accelerator, which masks edges.

    The descriptors have row-major a[M, K], w[N or 2 N, K], residual[M, N] and out[M, N] in blocks
    of [BLOCK_M, BLOCK_K], [BLOCK_N, BLOCK_K] and [BLOCK_M, BLOCK_N / SUBTILES]. PERSISTENT programs
    walk over the tiles, the grid apart, so that one tile's loads overlap with the last one's
    epilogue. A tile leaves in SUBTILES (1 or 2) parts, which need less shared memory.
    """
    # fmt: off
    if PERSISTENT:
        tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
        for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
            _descriptor_tile(a_desc, w_desc, bias_ptr, residual_desc, out_desc, tile, M, N, K,
                             EPILOGUE, HAS_BIAS, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, SUBTILES,
                             PRECISION)
    else:
        _descriptor_tile(a_desc, w_desc, bias_ptr, residual_desc, out_desc, tl.program_id(0),
                         M, N, K, EPILOGUE, HAS_BIAS, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M,
                         SUBTILES, PRECISION)
    # fmt: on


@triton.jit
def _summed(product_ptrs, inside, part, SPLIT_K: tl.constexpr):
    """The sum of SPLIT_K products, `part` elements apart, always in one order."""
    acc = tl.load(product_ptrs, inside, 0.0).to(tl.float32)
    for _ in tl.static_range(1, SPLIT_K):
        product_ptrs += part
        acc += tl.load(product_ptrs, inside, 0.0)
    return acc


@triton.jit
def epilogue_kernel(
    product_ptr, bias_ptr, residual_ptr, out_ptr, M, N, EPILOGUE: tl.constexpr,
    HAS_BIAS: tl.constexpr, SPLIT_K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    ALIGN_N: tl.constexpr,
):  # fmt: skip
    """out[M, N] = epilogue(the sum of SPLIT_K products + bias), ROWS x BLOCK elements per program.

    product[SPLIT_K, M, N or 2 N], residual and out are contiguous; N is a multiple of ALIGN_N.
    """
    GATED: tl.constexpr = EPILOGUE == "swiglu"
    WIDTHS: tl.constexpr = 2 if GATED else 1
    N = N // ALIGN_N * ALIGN_N
    parts = tl.cdiv(N, BLOCK)
    rows = tl.program_id(0) // parts * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)
    inside = (rows < M)[:, None] & (cols < N)[None, :]
    out_at = (rows.to(tl.int64) * N)[:, None] + cols[None, :]
    at = (rows.to(tl.int64) * (N * WIDTHS))[:, None] + cols[None, :]
    part = tl.cast(M, tl.int64) * (N * WIDTHS)
    acc = _summed(product_ptr + at, inside, part, SPLIT_K)
    if GATED:
        up = _summed(product_ptr + N + at, inside, part, SPLIT_K)
    acc = _finished(acc, up if GATED else acc, bias_ptr, cols, N, EPILOGUE, HAS_BIAS,
                    out_ptr.dtype.element_ty.primitive_bitwidth == 16)  # fmt: skip
    if EPILOGUE == "residual":
        acc += tl.load(residual_ptr + out_at, inside, 0.0).to(tl.float32)
    tl.store(out_ptr + out_at, acc.to(out_ptr.dtype.element_ty), inside)
