# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
"""Triton kernels of the index add, by atomics or by lists.

By lists: every row of the table has CHAINS linked lists of the rows to add, which an exchange of
the list's head per added row builds without a sort. Then each row of the table is read, summed in
float32 along its lists and written once.
"""

import triton
import triton.language as tl


@triton.jit
def copy_kernel(from_ptr, to_ptr, elements, BLOCK: tl.constexpr):
    """to = from in to's dtype; only the last block is masked."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    at = first + tl.arange(0, BLOCK)
    if first + BLOCK <= elements:
        tl.store(to_ptr + at, tl.load(from_ptr + at).to(to_ptr.dtype.element_ty))
    else:
        value = tl.load(from_ptr + at, at < elements, 0.0)
        tl.store(to_ptr + at, value.to(to_ptr.dtype.element_ty), at < elements)


@triton.jit
def atomic_add_kernel(
    index_ptr, rows_ptr, sum_ptr, tokens, DIM: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """sum[index[t], :] += rows[t, :] in float32, BLOCK_R rows and BLOCK_D columns per program."""
    token = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    col = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = (token < tokens)[:, None]
    if DIM % BLOCK_D != 0:
        inside = inside & (col < DIM)[None, :]
    row = tl.load(index_ptr + token, token < tokens, 0)
    x = tl.load(rows_ptr + token.to(tl.int64)[:, None] * DIM + col[None, :], inside, 0.0)
    at = row.to(tl.int64)[:, None] * DIM + col[None, :]
    tl.atomic_add(sum_ptr + at, x.to(tl.float32), inside, sem="relaxed")


@triton.jit
def empty_lists_kernel(head_ptr, lists, BLOCK: tl.constexpr):
    """All lists are empty: their heads are -1."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(head_ptr + at, tl.full((BLOCK,), -1, tl.int32), at < lists)


@triton.jit
def link_kernel(
    index_ptr, head_ptr, next_ptr, tokens, CHAINS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Put each added row in front of list t % CHAINS of its row of the table."""
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = token < tokens
    row = tl.load(index_ptr + token, inside, 0)
    # Of a smaller scope, Triton 3.7 makes an instruction that AMD's LLVM does not have.
    earlier = tl.atomic_xchg(
        head_ptr + row * CHAINS + token % CHAINS, token, inside, sem="relaxed", scope="sys"
    )
    tl.store(next_ptr + token, earlier, inside)


@triton.jit
def sum_lists_kernel(
    base_ptr, rows_ptr, head_ptr, next_ptr, out_ptr, vocab, DIM: tl.constexpr,
    CHAINS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """out = base + the rows of its lists, BLOCK_R rows and BLOCK_D columns per program.

    The lists of all rows of a program are followed at the same time, a row of each per step.
    """
    lanes: tl.constexpr = BLOCK_R * CHAINS
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    lane = tl.program_id(0) * lanes + tl.arange(0, lanes)
    col = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    at = tl.load(head_ptr + lane, lane < vocab * CHAINS, -1)
    place = row.to(tl.int64)[:, None] * DIM + col[None, :]
    inside = (row < vocab)[:, None]
    if DIM % BLOCK_D != 0:
        inside = inside & (col < DIM)[None, :]
    base = tl.load(base_ptr + place, inside, 0.0)
    acc = tl.zeros((lanes, BLOCK_D), tl.float32)
    while tl.max(at, 0) >= 0:
        linked = (at >= 0)[:, None]
        if DIM % BLOCK_D != 0:
            linked = linked & (col < DIM)[None, :]
        following = tl.load(next_ptr + at, at >= 0, -1)
        x = tl.load(rows_ptr + at.to(tl.int64)[:, None] * DIM + col[None, :], linked, 0.0)
        acc += x.to(tl.float32)
        at = following
    if CHAINS > 1:
        acc = tl.sum(tl.reshape(acc, (BLOCK_R, CHAINS, BLOCK_D)), 1)
    value = (base.to(tl.float32) + acc).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + place, value, inside)
