# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of recurrent networks: one step with both products and the gates, and sequences.

LSTM (Hochreiter and Schmidhuber, 1997; Gers et al., 2000) and GRU (Cho et al., 2014) in the form
of torch and cuDNN. Each gate has its own sums of a tile [rows of the batch, units], so that the
gates of a unit meet in one lane. Keeping the recurrent weights on chip over the steps is that of
persistent recurrent networks (Diamos et al., 2016). Everything but the operands of the products is
float32.
"""

import triton
import triton.language as tl

from search_spaces.kernels.activation.triton_kernels import sigmoid, tanh
from search_spaces.kernels.jitted_tiles import multiply_add


@triton.jit
def _add_products(
    sums, v_ptr, w_ptr, rows, units, batch, HIDDEN: tl.constexpr, SIZE: tl.constexpr,
    GATES: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """sums[gate] + v[rows] @ w[gate, units]^T, of v[batch, SIZE] and w[GATES, HIDDEN, SIZE]."""
    even: tl.constexpr = SIZE % BLOCK_K == 0
    # Rows and units beyond the last read the last one: what they compute is not stored.
    v_ptrs = v_ptr + tl.minimum(rows, batch - 1).to(tl.int64)[:, None] * SIZE
    w_ptrs = w_ptr + tl.minimum(units, HIDDEN - 1)[:, None] * SIZE
    for start in tl.range(0, SIZE, BLOCK_K):
        ks = (start + tl.arange(0, BLOCK_K))[None, :]
        v = tl.load(v_ptrs + ks) if even else tl.load(v_ptrs + ks, ks < SIZE, 0.0)
        added = ()
        for gate in tl.static_range(GATES):
            at = w_ptrs + (ks + gate * HIDDEN * SIZE)
            w = tl.load(at) if even else tl.load(at, ks < SIZE, 0.0)
            added += (multiply_add(v, tl.trans(w), sums[gate], PRECISION, INTERPRETED),)
        sums = added
    return sums


@triton.jit
def _biases(b_ptr, units, HIDDEN: tl.constexpr, GATES: tl.constexpr):
    """The biases [1, units] of every gate in float32; of units beyond the last, 0."""
    biases = ()
    for gate in tl.static_range(GATES):
        at = b_ptr + gate * HIDDEN + units
        biases += (tl.load(at, units < HIDDEN, 0.0).to(tl.float32)[None, :],)
    return biases


@triton.jit
def _lstm(enter, forget, cell, leave, c):
    """The next h and c."""
    c = sigmoid(forget) * c + sigmoid(enter) * tanh(cell)
    return sigmoid(leave) * tanh(c), c


@triton.jit
def _gru(reset, update, new_of_x, new_of_h, h):
    """The next h."""
    new = tanh(new_of_x + sigmoid(reset) * new_of_h)
    share = sigmoid(update)
    return new + share * (h - new)


@triton.jit
def cell_kernel(
    x_ptr, h_ptr, c_ptr, w_ih_ptr, w_hh_ptr, b_ih_ptr, b_hh_ptr, h_out_ptr, c_out_ptr, batch,
    INPUT: tl.constexpr, HIDDEN: tl.constexpr, LSTM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """BLOCK_N units of BLOCK_M rows of the batch per program; c is an LSTM's.

    x[batch, INPUT], h and c[batch, HIDDEN] are contiguous, as are the weights
    [GATES * HIDDEN, INPUT or HIDDEN]. Programs of the same units are neighbours, so that the
    weights are read from memory once.
    """
    gates: tl.constexpr = 4 if LSTM else 3
    tiles_m = tl.cdiv(batch, BLOCK_M)
    rows = tl.program_id(0) % tiles_m * BLOCK_M + tl.arange(0, BLOCK_M)
    units = tl.program_id(0) // tiles_m * BLOCK_N + tl.arange(0, BLOCK_N)
    at = rows.to(tl.int64)[:, None] * HIDDEN + units[None, :]
    exists = (rows < batch)[:, None] & (units < HIDDEN)[None, :]
    dtype = h_out_ptr.dtype.element_ty
    of_x = _biases(b_ih_ptr, units, HIDDEN, gates)
    of_h = _biases(b_hh_ptr, units, HIDDEN, gates)
    zeros = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    sums = ()
    for _ in tl.static_range(gates):
        sums += (zeros,)
    # fmt: off
    sums = _add_products(sums, x_ptr, w_ih_ptr, rows, units, batch, HIDDEN, INPUT, gates, BLOCK_K,
                         PRECISION, INTERPRETED)
    if LSTM:
        sums = _add_products(sums, h_ptr, w_hh_ptr, rows, units, batch, HIDDEN, HIDDEN, gates,
                             BLOCK_K, PRECISION, INTERPRETED)
        c = tl.load(c_ptr + at, exists, 0.0).to(tl.float32)
        h, c = _lstm(sums[0] + (of_x[0] + of_h[0]), sums[1] + (of_x[1] + of_h[1]),
                     sums[2] + (of_x[2] + of_h[2]), sums[3] + (of_x[3] + of_h[3]), c)
        tl.store(c_out_ptr + at, c.to(dtype), exists)
    else:
        new_of_x = sums[2]
        sums = _add_products((sums[0], sums[1], zeros), h_ptr, w_hh_ptr, rows, units, batch,
                             HIDDEN, HIDDEN, gates, BLOCK_K, PRECISION, INTERPRETED)
        h = tl.load(h_ptr + at, exists, 0.0).to(tl.float32)
        h = _gru(sums[0] + (of_x[0] + of_h[0]), sums[1] + (of_x[1] + of_h[1]),
                 new_of_x + of_x[2], sums[2] + of_h[2], h)
    # fmt: on
    tl.store(h_out_ptr + at, h.to(dtype), exists)


@triton.jit
def _projected(
    projected_ptr, time, steps, rows, units, batch, HIDDEN: tl.constexpr, GATES: tl.constexpr
):
    """What the inputs of one step add to the gates, from projected[step, batch, GATES, HIDDEN]."""
    exists = ((rows < batch)[:, None] & (units < HIDDEN)[None, :]) & (time < steps)
    row = tl.cast(time, tl.int64) * batch + rows
    at = row[:, None] * (GATES * HIDDEN) + units[None, :]
    tiles = ()
    for gate in tl.static_range(GATES):
        tiles += (tl.load(projected_ptr + at + gate * HIDDEN, exists, 0.0),)
    return tiles


@triton.jit
def sequence_kernel(
    projected_ptr, h_ptr, c_ptr, w_ptr, b_ih_ptr, b_hh_ptr, out_ptr, c_out_ptr, steps, batch,
    HIDDEN: tl.constexpr, UNITS: tl.constexpr, LSTM: tl.constexpr, AHEAD: tl.constexpr,
    BLOCK_B: tl.constexpr, PRECISION: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """All steps of BLOCK_B rows of the batch per program, which keeps all recurrent weights.

    projected[steps, batch, GATES * HIDDEN] are the products of the inputs in float32, h and c
    [batch, HIDDEN] the states before the first step, out[steps, batch, HIDDEN] h after every step
    and c_out an LSTM's c after the last. UNITS is HIDDEN rounded up to a power of two; units beyond
    the last stay 0. AHEAD loads what the next step needs before this step's products.
    """
    gates: tl.constexpr = 4 if LSTM else 3
    rows = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    units = tl.arange(0, UNITS)
    inside = (units < HIDDEN)[:, None] & (units < HIDDEN)[None, :]
    weights = ()
    for gate in tl.static_range(gates):
        w_at = (gate * HIDDEN + units)[:, None] * HIDDEN + units[None, :]
        weights += (tl.trans(tl.load(w_ptr + w_at, inside, 0.0)),)
    of_x = _biases(b_ih_ptr, units, HIDDEN, gates)
    of_h = _biases(b_hh_ptr, units, HIDDEN, gates)
    at = rows.to(tl.int64)[:, None] * HIDDEN + units[None, :]
    exists = (rows < batch)[:, None] & (units < HIDDEN)[None, :]
    dtype = out_ptr.dtype.element_ty
    h = tl.load(h_ptr + at, exists, 0.0).to(tl.float32)
    c = h
    if LSTM:
        c = tl.load(c_ptr + at, exists, 0.0).to(tl.float32)
    # fmt: off
    ahead = _projected(projected_ptr, 0, steps, rows, units, batch, HIDDEN, gates)
    for time in tl.range(steps):
        if AHEAD:
            now = ahead
            ahead = _projected(projected_ptr, time + 1, steps, rows, units, batch, HIDDEN, gates)
        else:
            now = _projected(projected_ptr, time, steps, rows, units, batch, HIDDEN, gates)
        v = h.to(dtype)
        sums = ()
        for gate in tl.static_range(gates):
            if LSTM or gate < 2:
                start = now[gate] + (of_x[gate] + of_h[gate])
            else:
                start = tl.zeros((BLOCK_B, UNITS), tl.float32) + of_h[gate]
            sums += (multiply_add(v, weights[gate], start, PRECISION, INTERPRETED),)
        if LSTM:
            h, c = _lstm(sums[0], sums[1], sums[2], sums[3], c)
        else:
            h = _gru(sums[0], sums[1], now[2] + of_x[2], sums[2], h)
        tl.store(out_ptr + tl.cast(time, tl.int64) * batch * HIDDEN + at, h.to(dtype), exists)
    # fmt: on
    if LSTM:
        tl.store(c_out_ptr + at, c.to(dtype), exists)
