# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
"""Triton kernel of permutations: tiles of two dimensions are read and written in whole words.

Where neighbours in the output are not neighbours in the input, the tile changes its layout between
through shared memory.
"""

import triton
import triton.language as tl


@triton.jit
def permute_kernel(
    x_ptr, out_ptr, ROWS: tl.constexpr, COLS: tl.constexpr, OUTER: tl.constexpr,
    ROW_IN: tl.constexpr, ROW_OUT: tl.constexpr, COL_OUT: tl.constexpr,
    FIRST_IN: tl.constexpr, FIRST_OUT: tl.constexpr, SECOND_IN: tl.constexpr,
    SECOND_OUT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    BY_COLUMN: tl.constexpr, TRANSPOSES: tl.constexpr, WIDE: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """One tile [BLOCK_R, BLOCK_C] of the dimensions ROWS and COLS per program.

    COLS has a stride of 1 in x; other strides end in _IN for x and in _OUT for out. Two more
    dimensions, of which the second has OUTER elements, are in the grid. Neighbouring programs have
    neighbouring tiles of a row or, with BY_COLUMN, of a column. WIDE: offsets do not fit into 32
    bits. With STREAM, lines are marked to leave the caches first.
    """
    load_policy: tl.constexpr = "evict_first" if STREAM else ""
    store_policy: tl.constexpr = ".cs" if STREAM else ""
    tiles_r: tl.constexpr = (ROWS + BLOCK_R - 1) // BLOCK_R
    tiles_c: tl.constexpr = (COLS + BLOCK_C - 1) // BLOCK_C
    program = tl.program_id(0)
    tile, other = program % (tiles_r * tiles_c), program // (tiles_r * tiles_c)
    if BY_COLUMN:
        row, col = (tile % tiles_r) * BLOCK_R, (tile // tiles_r) * BLOCK_C
    else:
        row, col = (tile // tiles_c) * BLOCK_R, (tile % tiles_c) * BLOCK_C
    r, c = row + tl.arange(0, BLOCK_R), col + tl.arange(0, BLOCK_C)
    inside_r, inside_c = r < ROWS, c < COLS
    first, second = other // OUTER, other % OUTER
    if WIDE:
        r, c = r.to(tl.int64), c.to(tl.int64)
        first, second = first.to(tl.int64), second.to(tl.int64)
    x_ptr += first * FIRST_IN + second * SECOND_IN
    out_ptr += first * FIRST_OUT + second * SECOND_OUT
    x_at = x_ptr + (r * ROW_IN)[:, None] + c[None, :]
    if ROWS % BLOCK_R == 0 and COLS % BLOCK_C == 0:
        x = tl.load(x_at, eviction_policy=load_policy)
    else:
        inside = inside_r[:, None] & inside_c[None, :]
        x = tl.load(x_at, inside, eviction_policy=load_policy)
    if TRANSPOSES:
        x = tl.trans(x)
        out_at = out_ptr + (c * COL_OUT)[:, None] + (r * ROW_OUT)[None, :]
        inside = inside_c[:, None] & inside_r[None, :]
    else:
        out_at = out_ptr + (r * ROW_OUT)[:, None] + (c * COL_OUT)[None, :]
        inside = inside_r[:, None] & inside_c[None, :]
    if ROWS % BLOCK_R == 0 and COLS % BLOCK_C == 0:
        tl.store(out_at, x, cache_modifier=store_policy)
    else:
        tl.store(out_at, x, inside, cache_modifier=store_policy)
