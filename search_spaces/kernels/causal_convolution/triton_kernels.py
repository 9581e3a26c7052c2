# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of the causal convolution, in float32 whatever the dtype.

Step t of a channel becomes bias + sum over k of weight[k] x[t - WIDTH + 1 + k]; steps before the
first are zero. A lane computes several neighbouring steps, and reads each value once for them.
"""

import triton
import triton.language as tl

from search_spaces.kernels.depthwise_convolution.triton_kernels import add_row

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _activated(x, SILU: tl.constexpr):
    if SILU:
        x = x / (1.0 + tl.exp2(-x * LOG2E))
    return x


@triton.jit
def channels_last_kernel(
    x_ptr, w_ptr, bias_ptr, out_ptr, strips, LENGTH: tl.constexpr, CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr, STEPS: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """BLOCK_T steps, STEPS of them by a lane, of BLOCK_C channels per program.

    x and out are [sequence, LENGTH, CHANNELS], w is [CHANNELS, WIDTH]; strips of STEPS steps are
    those of all sequences.
    """
    rows: tl.constexpr = BLOCK_T // STEPS
    per_sequence: tl.constexpr = (LENGTH + STEPS - 1) // STEPS
    strip = tl.program_id(0) * rows + tl.arange(0, rows)
    channel = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    first = strip % per_sequence * STEPS
    left = first - (WIDTH - 1)
    exists = strip < strips
    in_channel = channel < CHANNELS
    start = (strip // per_sequence).to(tl.int64) * LENGTH
    x_ptrs = x_ptr + ((start + left)[:, None] * CHANNELS + channel)
    if BIAS:
        bias = tl.load(bias_ptr + channel, in_channel, 0.0).to(tl.float32)
    else:
        bias = tl.zeros((1, BLOCK_C), tl.float32)
    sums = ()
    for _ in tl.static_range(STEPS):
        sums += (tl.zeros((rows, BLOCK_C), tl.float32) + bias,)
    # fmt: off
    sums = add_row(sums, x_ptrs, w_ptr + channel * WIDTH, exists, left, in_channel, LENGTH,
                   CHANNELS, WIDTH, 1, 1, 1, STEPS)
    # fmt: on
    out_ptrs = out_ptr + ((start + first)[:, None] * CHANNELS + channel)
    for step in tl.static_range(STEPS):
        inside = (exists & (first + step < LENGTH))[:, None] & in_channel
        value = _activated(sums[step], SILU).to(out_ptr.dtype.element_ty)
        tl.store(out_ptrs + step * CHANNELS, value, inside)


@triton.jit
def _columns(x, ROWS: tl.constexpr, LANES: tl.constexpr, WORD: tl.constexpr):
    """The WORD columns [ROWS, LANES] of a tile whose lanes hold WORD neighbours each."""
    if WORD == 8:
        even, odd = tl.split(tl.reshape(x, (ROWS, LANES, 2, 2, 2)))
        x04, x26 = tl.split(even)
        x15, x37 = tl.split(odd)
        x0, x4 = tl.split(x04)
        x1, x5 = tl.split(x15)
        x2, x6 = tl.split(x26)
        x3, x7 = tl.split(x37)
        columns = (x0, x1, x2, x3, x4, x5, x6, x7)
    else:
        tl.static_assert(WORD == 4)
        even, odd = tl.split(tl.reshape(x, (ROWS, LANES, 2, 2)))
        x0, x2 = tl.split(even)
        x1, x3 = tl.split(odd)
        columns = (x0, x1, x2, x3)
    return columns


@triton.jit
def _side_by_side(columns, ROWS: tl.constexpr, LANES: tl.constexpr, WORD: tl.constexpr):
    """The tile [ROWS, LANES * WORD] of these columns."""
    if WORD == 8:
        even = tl.join(tl.join(columns[0], columns[4]), tl.join(columns[2], columns[6]))
        odd = tl.join(tl.join(columns[1], columns[5]), tl.join(columns[3], columns[7]))
    else:
        even, odd = tl.join(columns[0], columns[2]), tl.join(columns[1], columns[3])
    return tl.reshape(tl.join(even, odd), (ROWS, LANES * WORD))


@triton.jit
def channels_first_kernel(
    x_ptr, w_ptr, bias_ptr, out_ptr, rows, LENGTH: tl.constexpr, CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr, WORD: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """BLOCK_T steps of BLOCK_C rows per program; a row is a channel of a sequence.

    x and out are [row, LENGTH], w is [CHANNELS, WIDTH]. A lane holds words of WORD neighbouring
    steps; what they need of earlier steps is in the word before, so that both are whole words.
    """
    lanes: tl.constexpr = BLOCK_T // WORD
    blocks: tl.constexpr = (LENGTH + BLOCK_T - 1) // BLOCK_T
    row = (tl.program_id(0) // blocks * BLOCK_C + tl.arange(0, BLOCK_C))[:, None]
    step = (tl.program_id(0) % blocks * BLOCK_T + tl.arange(0, BLOCK_T))[None, :]
    in_row = row < rows
    at = row.to(tl.int64) * LENGTH + step
    here = tl.load(x_ptr + at, in_row & (step < LENGTH), 0.0).to(tl.float32)
    before = in_row & (step >= WORD) & (step < LENGTH + WORD)
    earlier = tl.load(x_ptr + at - WORD, before, 0.0).to(tl.float32)
    values = _columns(earlier, BLOCK_C, lanes, WORD) + _columns(here, BLOCK_C, lanes, WORD)
    channel = row % CHANNELS
    taps = ()
    for tap in tl.static_range(WIDTH):
        taps += (tl.load(w_ptr + channel * WIDTH + tap, in_row, 0.0).to(tl.float32),)
    if BIAS:
        bias = tl.load(bias_ptr + channel, in_row, 0.0).to(tl.float32)
    else:
        bias = tl.zeros((BLOCK_C, 1), tl.float32)
    results = ()
    for column in tl.static_range(WORD):
        total = tl.zeros((BLOCK_C, lanes), tl.float32) + bias
        for tap in tl.static_range(WIDTH):
            total += taps[tap] * values[WORD + column - (WIDTH - 1) + tap]
        results += (_activated(total, SILU).to(out_ptr.dtype.element_ty),)
    out = _side_by_side(results, BLOCK_C, lanes, WORD)
    tl.store(out_ptr + at, out, in_row & (step < LENGTH))
