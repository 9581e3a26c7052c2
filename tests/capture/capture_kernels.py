# mypy: ignore-errors
"""Kernels under every stacking of decorators, for Triton's interpreter."""

import triton
import triton.language as tl

from tuner import runtime


def measured(call, quantiles):
    """A benchmark without a GPU: every config takes equally long."""
    call()
    return [1.0, 1.0, 1.0]


CONFIGS = [
    triton.Config({"BLOCK": block}, num_warps=warps) for block in (64, 128) for warps in (4, 8)
]


@triton.jit
def plain(x, y, out, n, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + scale * tl.load(y + at, at < n), at < n)


@triton.autotune(CONFIGS, key=["n"], do_bench=measured)
@triton.jit
def tuned(x, y, out, n, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + scale * tl.load(y + at, at < n), at < n)


@triton.autotune(CONFIGS, key=["n"], do_bench=measured)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned_over_heuristics(x, y, out, n, scale, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + scale * tl.load(y + at, at < n), at < n)


@triton.heuristics({"SCALED": lambda args: args["scale"] != 1})
@triton.autotune(CONFIGS, key=["n"], do_bench=measured)
@triton.jit
def heuristics_over_tuned(x, y, out, n, scale, BLOCK: tl.constexpr, SCALED: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + scale * tl.load(y + at, at < n), at < n)


@triton.heuristics({"BLOCK": lambda args: 64 if args["n"] < 1000 else 128})
@triton.jit
def heuristics_alone(x, y, out, n, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + scale * tl.load(y + at, at < n), at < n)


@runtime.autotune(CONFIGS, key=["n"], do_bench=measured)
@triton.jit
def from_table(x, y, out, n, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + scale * tl.load(y + at, at < n), at < n)


@triton.autotune([triton.Config({}, num_warps=w) for w in (4, 8)], ["n"], do_bench=measured)
@triton.jit
def warps_alone(x, y, out, n, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + scale * tl.load(y + at, at < n), at < n)


@triton.jit
def gathered(x, index, out, n, optional, pair, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rows = tl.load(index + at, at < n, 0)
    tl.store(out + at, tl.load(x + rows, at < n), at < n)


@triton.jit
def failing(x, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK < 0)


def made_inside():
    @triton.jit
    def local(x, BLOCK: tl.constexpr):
        tl.store(x + tl.arange(0, BLOCK), 1.0)

    return local


@triton.autotune(
    [triton.Config({"ROWS": 32, "COLS": 64}), triton.Config({"ROWS": 64, "COLS": 32})],
    key=["n"],
    do_bench=measured,
)
@triton.jit
def square_tiles(x, out, n, ROWS: tl.constexpr, COLS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    at = rows[:, None] * n + cols[None, :]
    inside = (rows < n)[:, None] & (cols < n)[None, :]
    tl.store(out + at, tl.load(x + at, inside) * 2.0, inside)


class LibrarysTuner(triton.KernelInterface):
    """An autotuner of a library's own, such as gptqmodel's."""

    def __init__(self, fn, configs):
        self.fn, self.configs, self.arg_names = fn, configs, fn.arg_names

    def run(self, *args, **kwargs):
        best = self.configs[0]
        return self.fn.run(*args, num_warps=best.num_warps, **kwargs, **best.kwargs)


@lambda fn: LibrarysTuner(fn, CONFIGS)
@triton.jit
def tuned_by_library(x, y, out, n, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + scale * tl.load(y + at, at < n), at < n)
