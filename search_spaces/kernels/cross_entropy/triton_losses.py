# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels around the losses of rows: what of them counts, and losses with their gradient.

They have one config each, and belong to no family: the first is a matter of host time, the second
of the products on both sides of it.
"""

import triton
import triton.language as tl

from search_spaces.kernels.cross_entropy.triton_kernels import _gradient
from search_spaces.kernels.online_softmax.triton_kernels import LN2, part_statistics
from search_spaces.kernels.row_blocks import (
    edge_places,
    load_edges,
    part_bounds,
    row_start,
    write_edges,
)

_COUNTED = ("rows", "classes", "ignored")


@triton.jit
def _are_kept(target_ptr, at, rows, classes, ignored):
    """Which rows count; a target that is neither a class nor ignored fails, as in torch."""
    target = tl.load(target_ptr + at, at < rows, ignored)
    kept = (target != ignored) & (at < rows)
    tl.device_assert(~kept | ((target >= 0) & (target < classes)), "a target is no class")
    return kept


@triton.jit(debug=True, do_not_specialize=_COUNTED)
def reduce_losses_kernel(
    loss_ptr, target_ptr, out_ptr, share_ptr, rows, classes, ignored, REDUCTION: tl.constexpr,
    LOSSES: tl.constexpr, SHARES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out, the losses of rows that count, their sum or their mean, in one program but for "none".

    LOSSES: whether out is written. SHARES: whether share[rows] is, the gradient of out by each
    loss.
    """
    lanes = tl.arange(0, BLOCK)
    if REDUCTION == "none":
        at = tl.program_id(0) * BLOCK + lanes
        kept = _are_kept(target_ptr, at, rows, classes, ignored)
        if LOSSES:
            loss = tl.load(loss_ptr + at, kept, 0.0)
            tl.store(out_ptr + at, loss.to(out_ptr.dtype.element_ty), at < rows)
        if SHARES:
            tl.store(share_ptr + at, kept.to(tl.float32), at < rows)
    else:
        counts = tl.zeros((BLOCK,), tl.float32)
        sums = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, rows, BLOCK):
            kept = _are_kept(target_ptr, first + lanes, rows, classes, ignored)
            counts += kept.to(tl.float32)
            if LOSSES:
                sums += tl.load(loss_ptr + first + lanes, kept, 0.0)
        divisor = tl.sum(counts, 0) if REDUCTION == "mean" else 1.0
        if LOSSES:
            tl.store(out_ptr, (tl.sum(sums, 0) / divisor).to(out_ptr.dtype.element_ty))
        if SHARES:
            for first in range(0, rows, BLOCK):
                at = first + lanes
                kept = _are_kept(target_ptr, at, rows, classes, ignored)
                tl.store(share_ptr + at, tl.where(kept, 1.0 / divisor, 0.0), at < rows)


@triton.jit
def loss_and_gradient_kernel(
    x_ptr, target_ptr, share_ptr, loss_ptr, COLS: tl.constexpr, BLOCK: tl.constexpr,
    VEC: tl.constexpr, PART: tl.constexpr, EVEN: tl.constexpr, LOAD_STAGES: tl.constexpr,
):  # fmt: skip
    """loss[r] of logits x[r] and target[r], and x[r] = share[r] (softmax(x[r]) - onehot), in place.

    One row per program: what it has read for the loss is mostly in the cache when it is read for
    the gradient, from its end, which is read last. Rows are contiguous. VEC, PART (all of a row)
    and EVEN (no block needs a mask): see `row_blocks`.
    """
    HEAD: tl.constexpr = COLS % VEC != 0
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    start = row_start(row, COLS, VEC)
    begin, low, high = part_bounds(row, 0, COLS, VEC, PART)
    target = tl.load(target_ptr + row)
    chosen = tl.load(x_ptr + row * COLS + target).to(tl.float32)
    # fmt: off
    top, total = part_statistics(x_ptr + start, x_ptr, begin, low, high, BLOCK, VEC, HEAD, EVEN,
                                 "none", "", LOAD_STAGES)
    # fmt: on
    log_sum = tl.log2(total) * LN2
    tl.store(loss_ptr + row, log_sum + (top - chosen))
    lse, share = top + log_sum, tl.load(share_ptr + row)
    place_of_target = target.to(tl.int32) + low
    if HEAD:  # before the words around them are written
        edges = load_edges(x_ptr, start, low, high, VEC)
    tl.debug_barrier()
    words = (tl.arange(0, BLOCK // VEC) * VEC)[:, None]
    blocks: tl.constexpr = PART // BLOCK
    for block in tl.range(0, blocks):
        first = (blocks - 1 - block) * BLOCK + words
        whole = (first >= low) & (first + VEC <= high)
        place = first + tl.arange(0, VEC)[None, :]
        x = tl.load(x_ptr + start + place, whole, 0.0).to(tl.float32)
        out = _gradient(x, place, place_of_target, lse, share)
        tl.store(x_ptr + start + place, out.to(dtype), whole)
    if HEAD:
        place, _ = edge_places(low, high, VEC)
        write_edges(x_ptr, start, low, high, _gradient(edges, place, place_of_target, lse, share),
                    VEC)  # fmt: skip


@triton.jit(do_not_specialize=("elements",))
def scale_kernel(x_ptr, factor_ptr, elements, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    """x *= factor, a number on the device; nothing is read where that is 1."""
    factor = tl.load(factor_ptr).to(tl.float32)
    if factor != 1.0:
        for block in tl.range(tl.program_id(0), tl.cdiv(elements, BLOCK), PROGRAMS):
            at = tl.cast(block, tl.int64) * BLOCK + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + at, at < elements, 0.0).to(tl.float32)
            tl.store(x_ptr + at, (x * factor).to(x_ptr.dtype.element_ty), at < elements)
