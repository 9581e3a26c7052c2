# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
"""Triton kernel of 2-D pooling, in float32 whatever the dtype; a window with NaN gives NaN."""

import triton
import triton.language as tl


@triton.jit
def pooling_kernel(
    x_ptr, out_ptr, pixels, channels, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, WINDOW: tl.constexpr, STRIDE: tl.constexpr,
    PADDING: tl.constexpr, MAXIMUM: tl.constexpr, CHANNELS_LAST: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """BLOCK_P output pixels of BLOCK_C channels per program.

    CHANNELS_LAST: x[image, y, x, channel], pixels of all images and the channels of one. Otherwise
    x[image, channel, y, x], pixels of one image and the channels of all. The neighbours in memory,
    channels or pixels, are the last dimension of the tile. Means count the padding.
    """
    pixel = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    if CHANNELS_LAST:
        pixel, channel = pixel[:, None], channel[None, :]
        shape: tl.constexpr = (BLOCK_P, BLOCK_C)
    else:
        pixel, channel = pixel[None, :], channel[:, None]
        shape: tl.constexpr = (BLOCK_C, BLOCK_P)
    top = (pixel // OUT_WIDTH) % OUT_HEIGHT * STRIDE - PADDING
    left = pixel % OUT_WIDTH * STRIDE - PADDING
    exists = (pixel < pixels) & (channel < channels)
    acc = tl.full(shape, float("-inf") if MAXIMUM else 0.0, tl.float32)
    for place in tl.static_range(WINDOW * WINDOW):
        y, x = top + place // WINDOW, left + place % WINDOW
        inside = exists & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
        if CHANNELS_LAST:
            image = (pixel // (OUT_HEIGHT * OUT_WIDTH)).to(tl.int64)
            at = ((image * HEIGHT + y) * WIDTH + x) * channels + channel
        else:
            at = (channel.to(tl.int64) * HEIGHT + y) * WIDTH + x
        if MAXIMUM:
            value = tl.load(x_ptr + at, inside, float("-inf")).to(tl.float32)
            acc = tl.maximum(acc, value, propagate_nan=tl.PropagateNan.ALL)
        else:
            acc += tl.load(x_ptr + at, inside, 0.0).to(tl.float32)
    if not MAXIMUM:
        acc = acc * (1.0 / (WINDOW * WINDOW))
    if CHANNELS_LAST:
        out_at = pixel.to(tl.int64) * channels + channel
    else:
        out_at = channel.to(tl.int64) * (OUT_HEIGHT * OUT_WIDTH) + pixel
    tl.store(out_ptr + out_at, acc.to(out_ptr.dtype.element_ty), exists)
