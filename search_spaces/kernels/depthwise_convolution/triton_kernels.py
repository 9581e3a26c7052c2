# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
"""Triton kernel of the depthwise convolution, in float32 whatever the dtype.

A lane computes COLUMNS results that are neighbours in a row, so that it reads and converts each
pixel once for all of them: (COLUMNS + KERNEL_W - 1) / COLUMNS pixels per result and row of the
kernel, in place of KERNEL_W.
"""

import triton
import triton.language as tl


@triton.jit
def add_row(
    sums, x_ptrs, w_ptrs, exists, left, in_channel, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    KERNEL_W: tl.constexpr, TAP: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add the products of one row of the kernel to the sums of COLUMNS neighbouring results.

    x_ptrs: the first pixel that the first result needs, `left` its place in the row. TAP: elements
    between the weights of neighbouring taps.
    """
    span: tl.constexpr = (COLUMNS - 1) * STRIDE + (KERNEL_W - 1) * DILATION + 1
    taps = ()
    for tap in tl.static_range(KERNEL_W):
        taps += (tl.load(w_ptrs + tap * TAP, in_channel, 0.0).to(tl.float32),)
    for at in tl.static_range(span):
        inside = (exists & (left + at >= 0) & (left + at < WIDTH))[:, None] & in_channel
        x = tl.load(x_ptrs + at * CHANNELS, inside, 0.0).to(tl.float32)
        added = ()
        for column in tl.static_range(COLUMNS):
            total = sums[column]
            for tap in tl.static_range(KERNEL_W):
                if at == column * STRIDE + tap * DILATION:
                    total += x * taps[tap]
            added += (total,)
        sums = added
    return sums


@triton.jit
def depthwise_kernel(
    x_ptr, w_ptr, out_ptr, strips, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, KERNEL_H: tl.constexpr,
    KERNEL_W: tl.constexpr, STRIDE: tl.constexpr, PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION: tl.constexpr, CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, UNROLL: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """BLOCK_P strips of COLUMNS results in a row, each of BLOCK_C channels, per program.

    x[image, y, x, channel], w[tap y, tap x, channel] and out[image, y, x, channel] are contiguous.
    strips: of all images. UNROLL: the loads of all rows of the kernel may be in flight at once.
    """
    strip = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    channel = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    per_row: tl.constexpr = (OUT_WIDTH + COLUMNS - 1) // COLUMNS
    first = strip % per_row * COLUMNS
    row = strip // per_row
    top = row % OUT_HEIGHT * STRIDE - PADDING_H
    left = first * STRIDE - PADDING_W
    exists = strip < strips
    in_channel = channel < CHANNELS
    corner = ((row // OUT_HEIGHT).to(tl.int64) * HEIGHT + top) * WIDTH + left
    x_ptrs = x_ptr + (corner[:, None] * CHANNELS + channel)
    w_ptrs = w_ptr + channel
    sums = ()
    for _ in tl.static_range(COLUMNS):
        sums += (tl.zeros((BLOCK_P, BLOCK_C), tl.float32),)
    # fmt: off
    if UNROLL:
        for tap in tl.static_range(KERNEL_H):
            y = top + tap * DILATION
            sums = add_row(sums, x_ptrs + tap * DILATION * WIDTH * CHANNELS,
                           w_ptrs + tap * KERNEL_W * CHANNELS, exists & (y >= 0) & (y < HEIGHT),
                           left, in_channel, WIDTH, CHANNELS, KERNEL_W, CHANNELS, STRIDE, DILATION,
                           COLUMNS)
    else:
        for tap in tl.range(KERNEL_H):
            y = top + tap * DILATION
            below = tl.cast(tap, tl.int64) * (DILATION * WIDTH)
            sums = add_row(sums, x_ptrs + below * CHANNELS, w_ptrs + tap * (KERNEL_W * CHANNELS),
                           exists & (y >= 0) & (y < HEIGHT), left, in_channel, WIDTH, CHANNELS,
                           KERNEL_W, CHANNELS, STRIDE, DILATION, COLUMNS)
    # fmt: on
    out_at = row.to(tl.int64) * OUT_WIDTH + first
    out_ptrs = out_ptr + (out_at[:, None] * CHANNELS + channel)
    for column in tl.static_range(COLUMNS):
        inside = (exists & (first + column < OUT_WIDTH))[:, None] & in_channel
        value = sums[column].to(out_ptr.dtype.element_ty)
        tl.store(out_ptrs + column * CHANNELS, value, inside)
