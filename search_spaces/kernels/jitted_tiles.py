# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
"""Jitted functions that kernels of tiled products share."""

import triton
import triton.language as tl


@triton.jit
def tile_at(tile, rows, cols, GROUP: tl.constexpr):
    """Row and column of a tile, of rows x cols tiles, in groups of GROUP tile rows.

    Programs that run at the same time share tiles of both operands in the last-level cache.
    """
    group = tile // (GROUP * cols)
    height = tl.minimum(rows - group * GROUP, GROUP)
    within = tile % (GROUP * cols)
    return group * GROUP + within % height, within // height


@triton.jit
def multiply_add(a, b, acc, PRECISION: tl.constexpr, INTERPRETED: tl.constexpr):
    """acc + a @ b. Triton's interpreter would multiply the bits of bfloat16 as integers."""
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def store_tile(out_ptr, acc, rows, cols, M, N, stride, EVEN: tl.constexpr, WIDE: tl.constexpr):
    """Store a tile at rows and columns of a row-major [M, N]; EVEN: all of them are inside.

    stride: between rows, in elements. WIDE: offsets do not fit into 32 bits.
    """
    at_rows = rows.to(tl.int64) if WIDE else rows
    out_ptrs = out_ptr + ((at_rows * stride)[:, None] + cols[None, :])
    value = acc.to(out_ptr.dtype.element_ty)
    if EVEN:
        tl.store(out_ptrs, value)
    else:
        tl.store(out_ptrs, value, (rows < M)[:, None] & (cols < N)[None, :])
