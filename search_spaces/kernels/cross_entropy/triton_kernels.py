# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
"""Triton kernel of the cross-entropy: each row of logits is read once, whatever its length.

Every lane keeps the running maximum and the sum of exponentials of its own elements (Milakov and
Gimelshein, Online normalizer calculation for softmax, 2018); lanes are merged at the end. The
exponential is taken in base 2, as the hardware does, in float32 whatever the dtype.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def cross_entropy_kernel(
    x_ptr, target_ptr, loss_ptr, stride, COLS: tl.constexpr, BLOCK: tl.constexpr,
    LOAD_STAGES: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """loss[r] = ln(sum of exp(x[r])) - x[r, target[r]], one row per program.

    stride: elements between rows. LOAD_STAGES blocks are in flight. With STREAM, lines are marked
    to leave the caches first.
    """
    load_policy: tl.constexpr = "evict_first" if STREAM else ""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, COLS, BLOCK, num_stages=LOAD_STAGES):
        cols = start + lanes
        x = tl.load(
            x_ptr + row * stride + cols, cols < COLS, float("-inf"), eviction_policy=load_policy
        )
        scaled = x.to(tl.float32) * LOG2E
        higher = tl.maximum(largest, scaled)
        # A lane without a finite element has the sum 0, and its maximum counts as 0.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp2(largest - base) + tl.exp2(scaled - base)
        largest = higher
    top = tl.max(largest, 0)
    total = tl.sum(total * tl.exp2(largest - top), 0)
    target = tl.load(target_ptr + row)
    chosen = tl.load(x_ptr + row * stride + target).to(tl.float32)
    tl.store(loss_ptr + row, (top + tl.log2(total)) * LN2 - chosen)


@triton.jit
def cross_entropy_backward_kernel(
    x_ptr, target_ptr, lse_ptr, grad_ptr, out_ptr, COLS: tl.constexpr, BLOCK: tl.constexpr,
    STEPS: tl.constexpr, LOAD_STAGES: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """out[r] = grad[r] (exp(x[r] - lse[r]) - onehot(target[r])), STEPS blocks of a row per program.

    Rows are contiguous. LOAD_STAGES blocks are in flight. With STREAM, lines are marked to leave
    the caches first.
    """
    load_policy: tl.constexpr = "evict_first" if STREAM else ""
    store_policy: tl.constexpr = ".cs" if STREAM else ""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(target_ptr + row).to(tl.int32)
    lse = tl.load(lse_ptr + row) * LOG2E
    grad = tl.load(grad_ptr + row)
    first = tl.program_id(1) * (STEPS * BLOCK)
    last = tl.minimum(first + STEPS * BLOCK, COLS)
    for start in tl.range(first, last, BLOCK, num_stages=LOAD_STAGES):
        cols = start + tl.arange(0, BLOCK)
        at = row * COLS + cols
        x = tl.load(x_ptr + at, cols < COLS, 0.0, eviction_policy=load_policy)
        share = tl.exp2(x.to(tl.float32) * LOG2E - lse)
        value = tl.where(cols == target, share - 1.0, share) * grad
        value = value.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + at, value, cols < COLS, cache_modifier=store_policy)
