# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
"""float8_e4m3fn by integer instructions, for targets that do not convert it.

A code has a sign, 4 bits of exponent with the bias 7 and 3 bits of fraction; 448 is the largest
number, and 127 is NaN with either sign.
"""

import triton
import triton.language as tl

#: What `scaled_halves` must be multiplied by: the exponent of float16 has a bias of 15, not 7.
HALF_SCALE = tl.constexpr(256.0)
_SMALLEST_NORMAL = tl.constexpr(0.015625)
#: A float32 of this size has the fraction of a subnormal code, 2**-9, as its last bit.
_SUBNORMAL_BASE = tl.constexpr(16384.0)
_SUBNORMAL_BITS = tl.constexpr(0x46800000)


@triton.jit
def scaled_halves(codes):
    """The values of uint8 codes as float16, divided by HALF_SCALE; exact."""
    wide = codes.to(tl.uint16)
    size = wide & 0x7F
    # Only the code of NaN carries, which sets the one bit of the exponent that is left.
    size |= (size + 1) & 0x80
    return (((wide & 0x80) << 8) | (size << 7)).to(tl.float16, bitcast=True)


@triton.jit
def nearest_codes(x):
    """The uint8 codes of float32 values of at most 448 or NaN, to nearest, ties to even."""
    bits = x.to(tl.int32, bitcast=True)
    size = tl.abs(x)
    size_bits = size.to(tl.int32, bitcast=True)
    # Fraction and exponent move together, so that a carry of the fraction raises the exponent;
    # 960 is the difference of both biases, 120, above the 3 bits of the fraction.
    normal = ((size_bits + 0x7FFFF + ((size_bits >> 20) & 1)) >> 20) - 960
    subnormal = (size + _SUBNORMAL_BASE).to(tl.int32, bitcast=True) - _SUBNORMAL_BITS
    code = tl.where(size < _SMALLEST_NORMAL, subnormal, tl.where(x == x, normal, 0x7F))
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)
