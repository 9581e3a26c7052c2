# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
"""Triton kernel of the radial basis function: a product of matrices whose epilogue is exponential.

|x - y|^2 = |x|^2 + |y|^2 - 2 x.y. The exponential is taken in base 2, as the hardware does. Tiles
are visited in groups of GROUP_M tile rows, so that programs running at the same time share tiles of
both operands in the last-level cache.
"""

import triton
import triton.language as tl

from search_spaces.kernels.pairwise_triton import row_norms, row_tile


@triton.jit
def rbf_kernel(
    x_ptr, y_ptr, x_norm_ptr, y_norm_ptr, out_ptr, rows, scale, COLS: tl.constexpr,
    DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, GIVEN: tl.constexpr, EVEN: tl.constexpr, STREAM: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """out[r, c] = 2^(scale |x[r] - y[c]|^2), one tile [BLOCK_M, BLOCK_N] per program.

    x[rows, DIM], y[COLS, DIM] and out[rows, COLS] are contiguous. GIVEN: the squared norms of the
    rows of x and y are in x_norm and y_norm. With STREAM, lines of out leave the caches first.
    """
    store_policy: tl.constexpr = ".cs" if STREAM else ""
    tiles_n: tl.constexpr = (COLS + BLOCK_N - 1) // BLOCK_N
    tile = tl.program_id(0)
    group = tile // (GROUP_M * tiles_n)
    height = tl.minimum(tl.cdiv(rows, BLOCK_M) - group * GROUP_M, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    row = (group * GROUP_M + within % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = within // height * BLOCK_N + tl.arange(0, BLOCK_N)
    # Rows beyond the last read the last one: what they compute is not stored.
    at_row, at_col = tl.minimum(row, rows - 1), tl.minimum(col, COLS - 1)
    x_at, y_at = at_row.to(tl.int64) * DIM, at_col.to(tl.int64) * DIM
    products = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    x_norm = tl.zeros((BLOCK_M,), tl.float32)
    y_norm = tl.zeros((BLOCK_N,), tl.float32)
    for start in tl.range(0, DIM, BLOCK_K):
        x = row_tile(x_ptr, x_at, start, DIM, BLOCK_K)
        y = row_tile(y_ptr, y_at, start, DIM, BLOCK_K)
        products = tl.dot(x, tl.trans(y), products, input_precision=PRECISION)
        if not GIVEN:
            x_norm += row_norms(x)
            y_norm += row_norms(y)
    if GIVEN:
        x_norm = tl.load(x_norm_ptr + at_row)
        y_norm = tl.load(y_norm_ptr + at_col)
    # Rounding may make the distance of equal points negative.
    distance = tl.maximum(x_norm[:, None] + y_norm[None, :] - 2.0 * products, 0.0)
    out = tl.exp2(distance * scale).to(out_ptr.dtype.element_ty)
    out_at = out_ptr + (row.to(tl.int64)[:, None] * COLS + col[None, :])
    if EVEN:
        tl.store(out_at, out, cache_modifier=store_policy)
    else:
        inside = (row < rows)[:, None] & (col < COLS)[None, :]
        tl.store(out_at, out, inside, cache_modifier=store_policy)
