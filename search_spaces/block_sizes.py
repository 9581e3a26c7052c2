"""Arithmetic of sizes and blocks; imports no torch."""

from __future__ import annotations

from math import gcd


def next_power_of_two(value: int) -> int:
    """The smallest power of two that is not below `value`; 1 for 0."""
    return 1 << max(value - 1, 0).bit_length()


def ceil_div(value: int, by: int) -> int:
    """`value / by`, rounded up."""
    return -(-value // by)


def alignment(stride: int) -> int:
    """The largest power of two up to 16 that divides a stride in elements.

    Triton only sees whether an argument is divisible by 16; saying 8, 4 or 2 lets rows of, say,
    1000 elements be read in wide words.
    """
    return gcd(stride, 16)
