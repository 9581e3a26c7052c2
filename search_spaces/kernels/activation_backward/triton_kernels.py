# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of the gradients of activations, in float32 from the input alone.

The expressions are those of torch, so that infinities give the same: a product of 0 and infinity is
NaN.
"""

import triton
import triton.language as tl

from search_spaces.kernels.activation.triton_kernels import (
    LOG2E,
    SQRT_HALF,
    TANH_CUBIC,
    TANH_SCALE,
    sigmoid,
    tanh,
)

#: 1 / sqrt(2 pi), of the normal density.
DENSITY = tl.constexpr(0.3989422804014327)


@triton.jit
def value_and_slope(x, FUNCTION: tl.constexpr):
    """An activation of float32 values and its derivative."""
    if FUNCTION == "relu":
        y = tl.maximum(x, 0.0)
        slope = tl.where(x <= 0.0, 0.0, 1.0)
    elif FUNCTION == "relu1":
        y = tl.minimum(tl.maximum(x, 0.0), 1.0)
        slope = tl.where((x <= 0.0) | (x >= 1.0), 0.0, 1.0)
    elif FUNCTION == "sigmoid":
        y = sigmoid(x)
        slope = (1.0 - y) * y
    elif FUNCTION == "tanh":
        y = tanh(x)
        slope = 1.0 - y * y
    elif FUNCTION == "gelu" or FUNCTION == "geglu":
        below = 0.5 * (1.0 + tl.erf(x * SQRT_HALF))
        y = x * below
        slope = below + x * (tl.exp2(x * x * (-0.5 * LOG2E)) * DENSITY)
    elif FUNCTION == "gelu_tanh":
        bent = tanh((x + x * x * x * TANH_CUBIC) * TANH_SCALE)
        y = 0.5 * x * (1.0 + bent)
        inner = (1.0 + x * x * (3.0 * TANH_CUBIC)) * TANH_SCALE
        slope = 0.5 * (1.0 + bent) + 0.5 * x * (1.0 - bent * bent) * inner
    else:
        tl.static_assert(FUNCTION == "silu" or FUNCTION == "swiglu")
        share = sigmoid(x)
        y = x * share
        slope = share * (1.0 + x * (1.0 - share))
    return y, slope


@triton.jit
def _read(ptr, at, inside, MASKED: tl.constexpr, STREAM: tl.constexpr):
    policy: tl.constexpr = "evict_first" if STREAM else ""
    if MASKED:
        x = tl.load(ptr + at, inside, 0.0, eviction_policy=policy)
    else:
        x = tl.load(ptr + at, eviction_policy=policy)
    return x.to(tl.float32)


@triton.jit
def _write(ptr, at, x, inside, MASKED: tl.constexpr, STREAM: tl.constexpr):
    policy: tl.constexpr = ".cs" if STREAM else ""
    x = x.to(ptr.dtype.element_ty)
    if MASKED:
        tl.store(ptr + at, x, inside, cache_modifier=policy)
    else:
        tl.store(ptr + at, x, cache_modifier=policy)


@triton.jit
def _backward_block(
    x_ptr, dy_ptr, dx_ptr, block, elements, BLOCK: tl.constexpr, FUNCTION: tl.constexpr,
    STREAM: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    at = tl.cast(block, tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < elements
    x = _read(x_ptr, at, inside, MASKED, STREAM)
    dy = _read(dy_ptr, at, inside, MASKED, STREAM)
    _, slope = value_and_slope(x, FUNCTION)
    dx = dy * slope
    if FUNCTION == "relu" or FUNCTION == "relu1":  # where the slope is 0, so is any gradient
        dx = tl.where(slope == 0.0, 0.0, dy)
    _write(dx_ptr, at, dx, inside, MASKED, STREAM)


@triton.jit
def activation_backward_kernel(
    x_ptr, dy_ptr, dx_ptr, elements, FUNCTION: tl.constexpr, BLOCK: tl.constexpr,
    EVEN: tl.constexpr, LOOP: tl.constexpr, STREAM: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx = dy f'(x), one block of BLOCK elements per program or, with LOOP, every block the grid
    apart. Only the last block is masked. STREAM, WIDE: see `activation_kernel`.
    """
    # fmt: off
    if WIDE:
        elements = tl.cast(elements, tl.int64)
    blocks = tl.cdiv(elements, BLOCK)
    block = tl.program_id(0)
    if LOOP:
        for each in tl.range(block, blocks, tl.num_programs(0)):
            if EVEN or each < blocks - 1:
                _backward_block(x_ptr, dy_ptr, dx_ptr, each, elements, BLOCK, FUNCTION, STREAM,
                                False)
            else:
                _backward_block(x_ptr, dy_ptr, dx_ptr, each, elements, BLOCK, FUNCTION, STREAM,
                                True)
    elif EVEN or block < blocks - 1:
        _backward_block(x_ptr, dy_ptr, dx_ptr, block, elements, BLOCK, FUNCTION, STREAM, False)
    else:
        _backward_block(x_ptr, dy_ptr, dx_ptr, block, elements, BLOCK, FUNCTION, STREAM, True)
    # fmt: on


@triton.jit
def _gate_backward_block(
    x_ptr, dy_ptr, dx_ptr, row, block, COLS: tl.constexpr, BLOCK: tl.constexpr,
    FUNCTION: tl.constexpr, EVEN: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = dx_ptr.dtype.element_ty
    cols = block * BLOCK + tl.arange(0, BLOCK)
    inside = cols < COLS
    gate_at = tl.cast(row, tl.int64) * (2 * COLS) + cols
    gate = _read(x_ptr, gate_at, inside, not EVEN, STREAM)
    up = _read(x_ptr, gate_at + COLS, inside, not EVEN, STREAM)
    dy = _read(dy_ptr, tl.cast(row, tl.int64) * COLS + cols, inside, not EVEN, STREAM)
    y, slope = value_and_slope(gate, FUNCTION)
    through = dy * up
    if dtype == tl.float16:  # the gradient of the gate's activation overflows as that of torch
        through = through.to(dtype).to(tl.float32)
    _write(dx_ptr, gate_at, through * slope, inside, not EVEN, STREAM)
    _write(dx_ptr, gate_at + COLS, dy * y, inside, not EVEN, STREAM)


@triton.jit
def gated_backward_kernel(
    x_ptr, dy_ptr, dx_ptr, rows, FUNCTION: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr,
    EVEN: tl.constexpr, LOOP: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """dx[rows, 2 COLS] of f(x[:, :COLS]) * x[:, COLS:] from dy[rows, COLS]; all are contiguous.

    One part of a row of BLOCK columns per program or, with LOOP, every part the grid apart.
    """
    # fmt: off
    parts: tl.constexpr = (COLS + BLOCK - 1) // BLOCK
    part = tl.program_id(0)
    if LOOP:
        for each in tl.range(part, rows * parts, tl.num_programs(0)):
            _gate_backward_block(x_ptr, dy_ptr, dx_ptr, each // parts, each % parts, COLS, BLOCK,
                                 FUNCTION, EVEN, STREAM)
    else:
        _gate_backward_block(x_ptr, dy_ptr, dx_ptr, part // parts, part % parts, COLS, BLOCK,
                             FUNCTION, EVEN, STREAM)
    # fmt: on
