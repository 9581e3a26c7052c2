# mypy: ignore-errors
"""A library with a kernel that is launched as it is, one under Triton's tuner, one under ours."""

import triton
import triton.language as tl

from tuner import runtime


def measured(call, quantiles):
    """A benchmark without a GPU: every config takes equally long."""
    call()
    return [1.0, 1.0, 1.0]


SCALE = tl.constexpr(2.0)
CONFIGS = [triton.Config({"BLOCK": block}, num_warps=4) for block in (64, 128, 256)]


@triton.jit
def helper(x):
    return x * SCALE


@triton.jit
def plain(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, helper(tl.load(x + at, at < n)), at < n)


@triton.autotune(CONFIGS, key=["n"], do_bench=measured)
@triton.jit
def tuned(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, helper(tl.load(x + at, at < n)) + 1, at < n)


@runtime.autotune(CONFIGS, key=["n"], do_bench=measured, miss="default")
@triton.jit
def decorated(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, helper(tl.load(x + at, at < n)) + 2, at < n)


def launch(name, make, n=4096):
    x, out = make(n), make(n)
    if name == "plain":
        plain[(triton.cdiv(n, 64),)](x, out, n, BLOCK=64)
    else:
        kernel = {"tuned": tuned, "decorated": decorated}[name]
        kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n)
    return out
