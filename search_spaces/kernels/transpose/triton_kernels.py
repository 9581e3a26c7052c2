# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
"""Triton kernel of the transpose: tiles are read along rows and written along columns.

The tile changes its layout between through shared memory, so that both sides move whole words.
"""

import triton
import triton.language as tl


@triton.jit
def transpose_kernel(
    x_ptr, out_ptr, rows, cols, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    EVEN: tl.constexpr, BY_COLUMN: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """out[b, c, r] = x[b, r, c] of contiguous matrices; one tile per program, b the second axis.

    Neighbouring programs have neighbouring tiles of a row or, with BY_COLUMN, of a column. With
    STREAM, lines are marked to leave the caches first.
    """
    load_policy: tl.constexpr = "evict_first" if STREAM else ""
    store_policy: tl.constexpr = ".cs" if STREAM else ""
    tile = tl.program_id(0)
    if BY_COLUMN:
        blocks = tl.cdiv(rows, BLOCK_R)
        row, col = (tile % blocks) * BLOCK_R, (tile // blocks) * BLOCK_C
    else:
        blocks = tl.cdiv(cols, BLOCK_C)
        row, col = (tile // blocks) * BLOCK_R, (tile % blocks) * BLOCK_C
    r, c = row + tl.arange(0, BLOCK_R), col + tl.arange(0, BLOCK_C)
    matrix = tl.program_id(1).to(tl.int64) * rows * cols
    x_at = matrix + r.to(tl.int64)[:, None] * cols + c[None, :]
    out_at = matrix + c.to(tl.int64)[:, None] * rows + r[None, :]
    if EVEN:
        x = tl.load(x_ptr + x_at, eviction_policy=load_policy)
        tl.store(out_ptr + out_at, tl.trans(x), cache_modifier=store_policy)
    else:
        x = tl.load(
            x_ptr + x_at, (r < rows)[:, None] & (c < cols)[None, :], eviction_policy=load_policy
        )
        inside = (c < cols)[:, None] & (r < rows)[None, :]
        tl.store(out_ptr + out_at, tl.trans(x), inside, cache_modifier=store_policy)
