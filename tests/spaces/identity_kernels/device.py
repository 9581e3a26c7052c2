# mypy: ignore-errors
"""A Triton kernel that calls a function of another module."""

import helpers
import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=4) for block in (64, 128)]


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.heuristics({"EVEN": helpers.is_even})
@triton.jit
def double_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(y_ptr + at, helpers.doubled(tl.load(x_ptr + at)))
    else:
        mask = at < n
        tl.store(y_ptr + at, helpers.doubled(tl.load(x_ptr + at, mask)), mask)
