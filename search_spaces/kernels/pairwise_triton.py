# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
"""What Triton kernels of distances between rows share: tiles of rows, and squared norms."""

import triton
import triton.language as tl


@triton.jit
def row_tile(ptr, at, start, DIM: tl.constexpr, BLOCK_K: tl.constexpr):
    """Columns from `start` on of the rows whose offsets are `at`; zeros beyond the last column."""
    k = start + tl.arange(0, BLOCK_K)
    if DIM % BLOCK_K == 0:
        tile = tl.load(ptr + (at[:, None] + k[None, :]))
    else:
        tile = tl.load(ptr + (at[:, None] + k[None, :]), (k < DIM)[None, :], 0.0)
    return tile


@triton.jit
def row_norms(tile):
    """The squared norm of each row of a tile, in float32."""
    wide = tile.to(tl.float32)
    return tl.sum(wide * wide, 1)


@triton.jit
def squared_norms_kernel(
    x_ptr, norm_ptr, rows, DIM: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """norm[r] = |x[r]|^2 in float32 of a contiguous x[rows, DIM]; BLOCK_R rows per program."""
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    at = tl.minimum(row, rows - 1).to(tl.int64) * DIM
    norm = tl.zeros((BLOCK_R,), tl.float32)
    for start in tl.range(0, DIM, BLOCK_K):
        norm += row_norms(row_tile(x_ptr, at, start, DIM, BLOCK_K))
    tl.store(norm_ptr + row, norm, row < rows)
