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
