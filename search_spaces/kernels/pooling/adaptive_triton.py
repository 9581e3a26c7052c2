# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
"""Triton kernel of adaptive 2-D pooling, in float32 whatever the dtype; NaN gives NaN.

A program keeps a partial result for each place of a tile while it walks over the windows of its
output pixels, and reduces the tile once at the end.
"""

import triton
import triton.language as tl

from search_spaces.kernels.reduction.triton_kernels import _maximum


@triton.jit
def adaptive_kernel(
    x_ptr, out_ptr, pixels, channels, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, WINDOW_H: tl.constexpr,
    WINDOW_W: tl.constexpr, MAXIMUM: tl.constexpr, CHANNELS_LAST: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """BLOCK_P output pixels of BLOCK_C channels per program, BLOCK_R pixels of a window at a time.

    The window of output row i are the rows from i HEIGHT / OUT_HEIGHT, rounded down, to
    (i + 1) HEIGHT / OUT_HEIGHT, rounded up; columns alike. WINDOW_H and WINDOW_W are the sides of
    the largest window. CHANNELS_LAST: x[image, y, x, channel], pixels of all images and the
    channels of one. Otherwise x[image, channel, y, x], pixels of one image and the channels of all.
    The neighbours in memory, channels or pixels of the window, are the last dimension of the tile.
    """
    blocks = tl.cdiv(pixels, BLOCK_P)
    pixel = tl.program_id(0) % blocks * BLOCK_P + tl.arange(0, BLOCK_P)
    channel = tl.program_id(0) // blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    places = tl.arange(0, BLOCK_R)
    if CHANNELS_LAST:
        pixel, channel = pixel[:, None, None], channel[None, None, :]
        places = places[None, :, None]
        shape: tl.constexpr = (BLOCK_P, BLOCK_R, BLOCK_C)
        axis: tl.constexpr = 1
    else:
        pixel, channel = pixel[None, :, None], channel[:, None, None]
        places = places[None, None, :]
        shape: tl.constexpr = (BLOCK_C, BLOCK_P, BLOCK_R)
        axis: tl.constexpr = 2
    row, column = pixel // OUT_WIDTH % OUT_HEIGHT, pixel % OUT_WIDTH
    top, left = row * HEIGHT // OUT_HEIGHT, column * WIDTH // OUT_WIDTH
    high = ((row + 1) * HEIGHT + (OUT_HEIGHT - 1)) // OUT_HEIGHT - top
    wide = ((column + 1) * WIDTH + (OUT_WIDTH - 1)) // OUT_WIDTH - left
    exists = (pixel < pixels) & (channel < channels)
    identity: tl.constexpr = float("-inf") if MAXIMUM else 0.0
    acc = tl.full(shape, identity, tl.float32)
    for start in tl.range(0, WINDOW_H * WINDOW_W, BLOCK_R):
        place = start + places
        if OUT_WIDTH == 1:
            # Whole rows are neighbours in memory.
            inside = exists & (place < high * WIDTH)
            at = top * WIDTH + place
        else:
            y, x = place // WINDOW_W, place % WINDOW_W
            inside = exists & (y < high) & (x < wide)
            at = (top + y) * WIDTH + (left + x)
        if CHANNELS_LAST:
            image = (pixel // (OUT_HEIGHT * OUT_WIDTH)).to(tl.int64)
            at = (image * (HEIGHT * WIDTH) + at) * channels + channel
        else:
            at = channel.to(tl.int64) * (HEIGHT * WIDTH) + at
        value = tl.load(x_ptr + at, inside, identity).to(tl.float32)
        if MAXIMUM:
            acc = tl.maximum(acc, value, propagate_nan=tl.PropagateNan.ALL)
        else:
            acc += value
    if MAXIMUM:
        result = tl.reduce(acc, axis, _maximum, keep_dims=True)
    else:
        result = tl.sum(acc, axis, keep_dims=True) / (high * wide).to(tl.float32)
    if CHANNELS_LAST:
        out_at = pixel.to(tl.int64) * channels + channel
    else:
        out_at = channel.to(tl.int64) * (OUT_HEIGHT * OUT_WIDTH) + pixel
    tl.store(out_ptr + out_at, result.to(out_ptr.dtype.element_ty), exists)
