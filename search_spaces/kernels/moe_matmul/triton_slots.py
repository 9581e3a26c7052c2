# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
"""Jitted functions that the products of a mixture-of-experts layer share.

A slot is one expert of one token. Slots are ordered by expert, and those of an expert fill whole
blocks of BLOCK_SIZE_M, so that a tile has a single matrix. The order and the names of the
parameters are those of vLLM's fused_moe kernel, whose tables fit.
"""

import triton
import triton.language as tl


@triton.jit
def slots_of(order_ptr, block, slots, BLOCK_SIZE_M: tl.constexpr):
    """The slots of a block, and which of them there are: the others have the number `slots`."""
    slot = tl.load(order_ptr + block * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M))
    return slot, slot < slots


@triton.jit
def columns_of(tile_n, N, BLOCK_SIZE_N: tl.constexpr, EVEN_N: tl.constexpr):
    """The columns of a tile, and the rows of w[N, K] to read for them.

    Columns beyond the last read the last one: what they compute is not stored.
    """
    col = tile_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    return col, col if EVEN_N else tl.minimum(col, N - 1)


@triton.jit
def store_slots(
    out_ptr, weight_ptr, acc, slot, used, col, N, EVEN_N: tl.constexpr, WEIGHTED: tl.constexpr
):
    """Store a tile in the rows of its slots of out[slots, N]; WEIGHTED: times weight[slot]."""
    if WEIGHTED:
        acc = acc * tl.load(weight_ptr + slot, used, 0.0)[:, None]
    out_ptrs = out_ptr + (slot.to(tl.int64) * N)[:, None] + col[None, :]
    inside = used[:, None] if EVEN_N else used[:, None] & (col < N)[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), inside)
