# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
"""Triton kernel of the embedding: rows of a table are copied to where their numbers stand."""

import triton
import triton.language as tl


@triton.jit
def embedding_kernel(
    index_ptr, table_ptr, out_ptr, tokens, DIM: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """out[t, :] = table[index[t], :] for BLOCK_T tokens and BLOCK_D columns per program.

    With STREAM, written lines are marked to leave the caches first, so that the table stays there.
    """
    store_policy: tl.constexpr = ".cs" if STREAM else ""
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    col = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    row = tl.load(index_ptr + token, token < tokens, 0).to(tl.int64)
    inside = (token < tokens)[:, None]
    if DIM % BLOCK_D != 0:
        inside = inside & (col < DIM)[None, :]
    x = tl.load(table_ptr + row[:, None] * DIM + col[None, :], inside)
    out_at = token.to(tl.int64)[:, None] * DIM + col[None, :]
    tl.store(out_ptr + out_at, x, inside, cache_modifier=store_policy)
