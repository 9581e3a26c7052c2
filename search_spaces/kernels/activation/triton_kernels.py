# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of the activations: each element is read once, computed in float32, written once.

The exponential is taken in base 2, as the hardware does.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
SQRT_HALF = tl.constexpr(0.7071067811865476)
#: sqrt(2 / pi) and the cubic coefficient of GELU's tanh form (Hendrycks and Gimpel, 2016).
TANH_SCALE = tl.constexpr(0.7978845608028654)
TANH_CUBIC = tl.constexpr(0.044715)
#: tanh(x) / x - 1 as a polynomial in x**2 without a constant, for x up to `ODD_END`; the relative
#: error of tanh is at most 1e-7 in float32.
ODD_END = tl.constexpr(0.5)
ODD_1 = tl.constexpr(-0.3333331108470009)
ODD_2 = tl.constexpr(0.13330476491265034)
ODD_3 = tl.constexpr(-0.05338711063550242)
ODD_4 = tl.constexpr(0.017988744405713235)
#: log2 of the normal distribution's tail beyond x as a polynomial, whose relative error is at most
#: 2e-5 for x from 0 to 6, and 2e-4 to 13, where float32 ends; with a negative last coefficient, it
#: is 0 beyond. (The rational form of Abramowitz and Stegun, 7.1.26, needs a division, and its
#: coefficients bound the absolute error of erf: a small tail is a third off.)
TAIL_0 = tl.constexpr(-0.9999903208428793)
TAIL_1 = tl.constexpr(-1.151368146205979)
TAIL_2 = tl.constexpr(-0.4580285059609582)
TAIL_3 = tl.constexpr(-0.054562932952106194)
TAIL_4 = tl.constexpr(0.008911121222121527)
TAIL_5 = tl.constexpr(-0.0010761383767325453)
TAIL_6 = tl.constexpr(9.093925045800791e-05)
TAIL_7 = tl.constexpr(-5.0221279903763755e-06)
TAIL_8 = tl.constexpr(1.6147485784708556e-07)
TAIL_9 = tl.constexpr(-2.279794349688958e-09)


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x) of float32 values."""
    return 1.0 / (1.0 + tl.exp2(-x * LOG2E))


@triton.jit
def tanh(x):
    """The hyperbolic tangent of float32 values."""
    # 1 - 2 / (1 + e^(2x)) stays in range where e^(2x) overflows, and loses all digits near 0.
    far = 1.0 - 2.0 / (1.0 + tl.exp2(2.0 * x * LOG2E))
    square = x * x
    odd = ((ODD_4 * square + ODD_3) * square + ODD_2) * square + ODD_1
    return tl.where(tl.abs(x) < ODD_END, x * square * odd + x, far)


@triton.jit
def _half_gelu(x):
    """GELU for outputs of 16 bits, by half of the instructions of erf."""
    size = tl.abs(x)
    power = TAIL_9 * size + TAIL_8
    power = power * size + TAIL_7
    power = power * size + TAIL_6
    power = power * size + TAIL_5
    power = power * size + TAIL_4
    power = power * size + TAIL_3
    power = power * size + TAIL_2
    power = power * size + TAIL_1
    power = power * size + TAIL_0
    tail = tl.exp2(power)
    return x * tl.where(x < 0.0, tail, 1.0 - tail)


@triton.jit
def activated(x, FUNCTION: tl.constexpr, HALF: tl.constexpr = False):
    """The activation of float32 values; NaN stays NaN. HALF: the result is rounded to 16 bits."""
    if FUNCTION == "relu":
        y = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif FUNCTION == "relu1":
        y = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
        y = tl.minimum(y, 1.0, propagate_nan=tl.PropagateNan.ALL)
    elif FUNCTION == "sigmoid":
        y = sigmoid(x)
    elif FUNCTION == "tanh":
        y = tanh(x)
    elif FUNCTION == "gelu" or FUNCTION == "geglu":
        y = _half_gelu(x) if HALF else 0.5 * x * (1.0 + tl.erf(x * SQRT_HALF))
    elif FUNCTION == "gelu_tanh":
        # (1 + tanh(u)) / 2 = sigmoid(2u), which keeps its digits where tanh(u) is near -1.
        y = x * sigmoid((x + x * x * x * TANH_CUBIC) * (2.0 * TANH_SCALE))
    else:
        tl.static_assert(FUNCTION == "silu" or FUNCTION == "swiglu")
        y = x * sigmoid(x)
    return y


@triton.jit
def _activate_block(
    x_ptr, out_ptr, block, elements, BLOCK: tl.constexpr, FUNCTION: tl.constexpr,
    STREAM: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    load_policy: tl.constexpr = "evict_first" if STREAM else ""
    store_policy: tl.constexpr = ".cs" if STREAM else ""
    HALF: tl.constexpr = out_ptr.dtype.element_ty.primitive_bitwidth == 16
    # A large tensor has more than 2**31 elements.
    at = tl.cast(block, tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if MASKED:
        x = tl.load(x_ptr + at, at < elements, 0.0, eviction_policy=load_policy)
        y = activated(x.to(tl.float32), FUNCTION, HALF)
        tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), at < elements,
                 cache_modifier=store_policy)  # fmt: skip
    else:
        x = tl.load(x_ptr + at, eviction_policy=load_policy)
        y = activated(x.to(tl.float32), FUNCTION, HALF)
        tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), cache_modifier=store_policy)


@triton.jit
def activation_kernel(
    x_ptr, out_ptr, elements, FUNCTION: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
    LOOP: tl.constexpr, STREAM: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One block of BLOCK elements per program or, with LOOP, every block the grid apart.

    Only the last block is masked, so that all others are read in words of 16 bytes whatever the
    number of elements. With STREAM, lines are marked to leave the caches first. WIDE: elements +
    BLOCK does not fit into 32 bits.
    """
    if WIDE:
        elements = tl.cast(elements, tl.int64)
    blocks = tl.cdiv(elements, BLOCK)
    block = tl.program_id(0)
    if LOOP:
        for each in tl.range(block, blocks, tl.num_programs(0)):
            if EVEN or each < blocks - 1:
                _activate_block(x_ptr, out_ptr, each, elements, BLOCK, FUNCTION, STREAM, False)
            else:
                _activate_block(x_ptr, out_ptr, each, elements, BLOCK, FUNCTION, STREAM, True)
    elif EVEN or block < blocks - 1:
        _activate_block(x_ptr, out_ptr, block, elements, BLOCK, FUNCTION, STREAM, False)
    else:
        _activate_block(x_ptr, out_ptr, block, elements, BLOCK, FUNCTION, STREAM, True)


@triton.jit
def _gate_block(
    x_ptr, out_ptr, row, block, COLS: tl.constexpr, BLOCK: tl.constexpr, FUNCTION: tl.constexpr,
    EVEN: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    load_policy: tl.constexpr = "evict_first" if STREAM else ""
    store_policy: tl.constexpr = ".cs" if STREAM else ""
    HALF: tl.constexpr = out_ptr.dtype.element_ty.primitive_bitwidth == 16
    cols = block * BLOCK + tl.arange(0, BLOCK)
    gate_at = tl.cast(row, tl.int64) * (2 * COLS) + cols
    out_at = tl.cast(row, tl.int64) * COLS + cols
    if EVEN:
        gate = tl.load(x_ptr + gate_at, eviction_policy=load_policy).to(tl.float32)
        up = tl.load(x_ptr + gate_at + COLS, eviction_policy=load_policy).to(tl.float32)
    else:
        inside = cols < COLS
        gate = tl.load(x_ptr + gate_at, inside, 0.0, eviction_policy=load_policy).to(tl.float32)
        up = tl.load(x_ptr + gate_at + COLS, inside, 0.0, eviction_policy=load_policy)
        up = up.to(tl.float32)
    y = activated(gate, FUNCTION, HALF) * up
    y = y.to(out_ptr.dtype.element_ty)
    if EVEN:
        tl.store(out_ptr + out_at, y, cache_modifier=store_policy)
    else:
        tl.store(out_ptr + out_at, y, cols < COLS, cache_modifier=store_policy)


@triton.jit
def gated_kernel(
    x_ptr, out_ptr, rows, FUNCTION: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr,
    EVEN: tl.constexpr, LOOP: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """out[rows, COLS] = f(x[:, :COLS]) * x[:, COLS:] of a contiguous x[rows, 2 COLS].

    One part of a row of BLOCK columns per program or, with LOOP, every part the grid apart.
    """
    parts: tl.constexpr = (COLS + BLOCK - 1) // BLOCK
    part = tl.program_id(0)
    if LOOP:
        for each in tl.range(part, rows * parts, tl.num_programs(0)):
            _gate_block(x_ptr, out_ptr, each // parts, each % parts, COLS, BLOCK, FUNCTION, EVEN,
                        STREAM)  # fmt: skip
    else:
        _gate_block(x_ptr, out_ptr, part // parts, part % parts, COLS, BLOCK, FUNCTION, EVEN,
                    STREAM)  # fmt: skip
