# mypy: ignore-errors
"""Device code that another module's kernel calls."""

import triton
import triton.language as tl

FACTOR = tl.constexpr(2.0)
BIAS = tl.constexpr(0.25)


@triton.jit
def _shifted(x):
    return x + BIAS


@triton.jit
def doubled(x):
    return _shifted(x) * FACTOR


def is_even(args):
    return args["n"] % args["BLOCK"] == 0
