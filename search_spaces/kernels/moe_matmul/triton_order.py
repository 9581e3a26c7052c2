# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
"""The order of slots for a BLOCK_SIZE_M, as `routing.block_order` makes it, in one launch."""

import triton
import triton.language as tl


@triton.jit
def order_slots_kernel(
    slots_ptr,
    ends_ptr,
    order_ptr,
    experts_ptr,
    slots,
    experts,
    BLOCK_SIZE_M: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    """Fills one block of order[blocks * BLOCK_SIZE_M] and of experts[blocks].

    slots[slots] are in order of their experts, which end at ends[experts]; EXPERTS is at least
    their number. Each program finds its block again: the ends are few, and in the cache.
    """
    block = tl.program_id(0)
    each = tl.arange(0, EXPERTS)
    known = each < experts
    end = tl.load(ends_ptr + each, known, 0)
    begin = tl.load(ends_ptr + each - 1, known & (each > 0), 0)
    blocks = tl.where(known, tl.cdiv(end - begin, BLOCK_SIZE_M), 0)
    last = tl.cumsum(blocks, 0)
    expert = tl.sum((known & (last <= block)).to(tl.int32), 0)
    mine = each == expert
    number = block - tl.sum(tl.where(mine, last - blocks, 0), 0)
    first = tl.sum(tl.where(mine, begin, 0), 0) + number * BLOCK_SIZE_M
    at = first + tl.arange(0, BLOCK_SIZE_M)
    slot = tl.load(slots_ptr + at, at < tl.sum(tl.where(mine, end, 0), 0), slots)
    tl.store(order_ptr + block * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M), slot)
    tl.store(experts_ptr + block, tl.where(expert < experts, expert, -1))
