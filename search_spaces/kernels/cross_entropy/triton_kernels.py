# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of the cross-entropy of rows of logits of any length, forward and backward.

Each row is read once, in words of 16 bytes, wherever it begins. Every word of a block keeps the
running maximum and the sum of exponentials of its own elements, so that hardly more than one
exponential is taken for each of them; see `online_softmax`.
"""

import triton
import triton.language as tl

from search_spaces.kernels.online_softmax.triton_kernels import LN2, LOG2E, part_statistics
from search_spaces.kernels.row_blocks import (
    edge_places,
    load_edges,
    part_bounds,
    row_skip,
    row_start,
    write_edges,
)


@triton.jit
def cross_entropy_kernel(
    x_ptr, target_ptr, loss_ptr, lse_ptr, COLS: tl.constexpr, BLOCK: tl.constexpr,
    VEC: tl.constexpr, PART: tl.constexpr, EVEN: tl.constexpr, LOAD_STAGES: tl.constexpr,
    STREAM: tl.constexpr,
):  # fmt: skip
    """lse[r] = ln(sum of exp(x[r])) and loss[r] = lse[r] - x[r, target[r]], one row per program.

    Rows are contiguous. VEC, PART (all of a row) and EVEN (no block needs a mask): see
    `row_blocks`. LOAD_STAGES blocks are in flight. With STREAM, lines are marked to leave the
    caches first.
    """
    HEAD: tl.constexpr = COLS % VEC != 0
    load_policy: tl.constexpr = "evict_first" if STREAM else ""
    row = tl.program_id(0).to(tl.int64)
    start = row_start(row, COLS, VEC)
    begin, low, high = part_bounds(row, 0, COLS, VEC, PART)
    # fmt: off
    top, total = part_statistics(x_ptr + start, x_ptr, begin, low, high, BLOCK, VEC, HEAD, EVEN,
                                 "none", load_policy, LOAD_STAGES)
    # fmt: on
    target = tl.load(target_ptr + row)
    chosen = tl.load(x_ptr + row * COLS + target).to(tl.float32)
    log_sum = tl.log2(total) * LN2
    tl.store(lse_ptr + row, top + log_sum)
    tl.store(loss_ptr + row, log_sum + (top - chosen))  # beside a large maximum the sum is lost


@triton.jit
def _gradient(x, place, target, lse, grad):
    """The gradient of logits at their places in a row, in float32."""
    share = tl.exp2((x - lse) * LOG2E)
    return tl.where(place == target, share - 1.0, share) * grad


@triton.jit
def cross_entropy_backward_kernel(
    x_ptr, target_ptr, lse_ptr, grad_ptr, out_ptr, COLS: tl.constexpr, BLOCK: tl.constexpr,
    VEC: tl.constexpr, STEPS: tl.constexpr, LOAD_STAGES: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """out[r] = grad[r] (exp(x[r] - lse[r]) - onehot(target[r])), STEPS blocks of a row per program.

    Rows are contiguous. VEC: see `row_blocks`. LOAD_STAGES blocks are in flight. With STREAM, lines
    are marked to leave the caches first.
    """
    load_policy: tl.constexpr = "evict_first" if STREAM else ""
    store_policy: tl.constexpr = ".cs" if STREAM else ""
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    skip = row_skip(row, COLS, VEC) if COLS % VEC != 0 else 0
    target = tl.load(target_ptr + row).to(tl.int32) + skip
    lse, grad = tl.load(lse_ptr + row), tl.load(grad_ptr + row)
    start = row_start(row, COLS, VEC)
    begin, low, high = part_bounds(row, tl.program_id(1), COLS, VEC, STEPS * BLOCK)
    words = (tl.arange(0, BLOCK // VEC) * VEC)[:, None]
    for block in tl.range(begin, high, BLOCK, num_stages=LOAD_STAGES):
        first = tl.multiple_of(block, VEC) + words
        whole = (first >= low) & (first + VEC <= high)
        place = first + tl.arange(0, VEC)[None, :]
        at = start + place
        x = tl.load(x_ptr + at, whole, 0.0, eviction_policy=load_policy).to(tl.float32)
        out = _gradient(x, place, target, lse, grad)
        tl.store(out_ptr + at, out.to(dtype), whole, cache_modifier=store_policy)
    if COLS % VEC != 0:
        place, _ = edge_places(low, high, VEC)
        edges = load_edges(x_ptr, start, low, high, VEC)
        write_edges(out_ptr, start, low, high, _gradient(edges, place, target, lse, grad), VEC)
