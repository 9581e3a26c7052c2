# mypy: ignore-errors
"""Kernels whose scalar arguments do different things."""

import triton
import triton.language as tl
from capture_kernels import measured

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=4) for block in (64, 128)]


@triton.autotune(CONFIGS, key=["n"], do_bench=measured)
@triton.jit
def adam(p, g, m, lr, beta, step, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    grad = tl.load(g + at, at < n)
    mean = beta * tl.load(m + at, at < n) + (1 - beta) * grad
    tl.store(m + at, mean, at < n)
    corrected = mean / (1 - tl.exp(step * tl.log(beta)))
    tl.store(p + at, tl.load(p + at, at < n) - lr * corrected, at < n)


@triton.jit
def many(x, out, n, stride, turns, seed, lr, scale, shift, width, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at * stride, at < n, shift)
    total = value * 0.0
    for _turn in range(turns):
        total += scale * value
        value += shift
    if lr > 0:
        tl.store(out + at, total, at < n)
        total += tl.load(x + at, at < n)
    kept = ((at * 1103515245 + seed) >> 16) & 1
    tl.store(out + at, tl.where(kept == 1, total, scale), (at < n) & (at < width))


@triton.jit
def shifted(x, out, scale, KIND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    if KIND == 2:
        at += scale
    tl.store(out + at, scale * value)


@triton.jit
def interpreted_alone(x, scale, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, scale * sorted((2.0, 1.0))[0])
