# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernel of chains of element-wise operations, computed in float32 whatever the dtype.

A tile has rows and columns, so that a value per row or per column needs no division to be found,
and one that is the same for all rows of a tile is read once.
"""

import triton
import triton.language as tl


@triton.jit
def _per_column(ptr, cols, inside, KIND: tl.constexpr):
    """The values of an operand per column in float32, and 0 for one of another kind."""
    return tl.load(ptr + cols, inside, 0.0).to(tl.float32)[None, :] if KIND == "column" else 0.0


@triton.jit
def _operand(
    ptr, column, at, row, inside, inside_rows, KIND: tl.constexpr, EVEN: tl.constexpr,
    POLICY: tl.constexpr,
):  # fmt: skip
    """A tile of an operand in float32; KIND: whole, row or column (one value each), or none."""
    if KIND == "whole":
        if EVEN:
            value = tl.load(ptr + at, eviction_policy=POLICY).to(tl.float32)
        else:
            value = tl.load(ptr + at, inside, 0.0, eviction_policy=POLICY).to(tl.float32)
    elif KIND == "row":
        value = tl.load(ptr + row, inside_rows, 0.0).to(tl.float32)[:, None]
    else:
        value = column
    return value


@triton.jit
def _chained(a, b, c, d, CHAIN: tl.constexpr):
    if CHAIN == "scale_shift_gate" or CHAIN == "fma_multiply":
        y = (a * b + c) * d
    elif CHAIN == "modulate":
        y = a * (1.0 + b) + c
    elif CHAIN == "scaled_residual":
        y = a + b * c
    elif CHAIN == "rescale":
        y = a * b * c
    else:
        tl.static_assert(CHAIN == "standardize")
        y = (a - b) * c
    return y


@triton.jit
def elementwise_chain_kernel(
    a_ptr, b_ptr, c_ptr, d_ptr, out_ptr, rows, COLS: tl.constexpr, CHAIN: tl.constexpr,
    B: tl.constexpr, C: tl.constexpr, D: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr, EVEN: tl.constexpr, STEPS: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """The chain of a[rows, COLS] and operands of kinds B, C and D, which are null where absent.

    A program has BLOCK_C columns and STEPS tiles of BLOCK_R rows below one another. With STREAM,
    lines of whole operands are marked to leave the caches first.
    """
    load_policy: tl.constexpr = "evict_first" if STREAM else ""
    store_policy: tl.constexpr = ".cs" if STREAM else ""
    blocks_c: tl.constexpr = (COLS + BLOCK_C - 1) // BLOCK_C
    program = tl.program_id(0)
    cols = program % blocks_c * BLOCK_C + tl.arange(0, BLOCK_C)
    inside_cols = cols < COLS
    first = program // blocks_c * (BLOCK_R * STEPS)
    b_column = _per_column(b_ptr, cols, inside_cols, B)
    c_column = _per_column(c_ptr, cols, inside_cols, C)
    d_column = _per_column(d_ptr, cols, inside_cols, D)
    for step in tl.static_range(STEPS):
        row = first + step * BLOCK_R + tl.arange(0, BLOCK_R)
        rows_in = row < rows
        inside = rows_in[:, None] & inside_cols[None, :]
        at = row.to(tl.int64)[:, None] * COLS + cols[None, :]
        a = _operand(a_ptr, 0.0, at, row, inside, rows_in, "whole", EVEN, load_policy)
        b = _operand(b_ptr, b_column, at, row, inside, rows_in, B, EVEN, load_policy)
        c = _operand(c_ptr, c_column, at, row, inside, rows_in, C, EVEN, load_policy)
        d = _operand(d_ptr, d_column, at, row, inside, rows_in, D, EVEN, load_policy)
        out = _chained(a, b, c, d, CHAIN).to(out_ptr.dtype.element_ty)
        if EVEN:
            tl.store(out_ptr + at, out, cache_modifier=store_policy)
        else:
            tl.store(out_ptr + at, out, inside, cache_modifier=store_policy)
