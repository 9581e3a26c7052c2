# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernel of adaptive 2-D pooling, in float32 whatever the dtype; NaN gives NaN.

A program keeps a partial result for each place of a tile while it walks over the windows of its
output pixels, and reduces the tile once at the end.
"""

import triton
import triton.language as tl

from search_spaces.kernels.reduction.triton_kernels import _maximum


@triton.jit
def _with_places(
    acc, x_ptr, place, exists, image, channel, channels, top, left, high, wide,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_WIDTH: tl.constexpr, WINDOW_W: tl.constexpr,
    MAXIMUM: tl.constexpr, CHANNELS_LAST: tl.constexpr,
):  # fmt: skip
    """`acc` with what is at places of the windows, whose corners are at (top, left)."""
    if OUT_WIDTH == 1:
        # Whole rows are neighbours in memory.
        inside = exists & (place < high * WIDTH)
        at = top * WIDTH + place
    else:
        y, x = place // WINDOW_W, place % WINDOW_W
        inside = exists & (y < high) & (x < wide)
        at = (top + y) * WIDTH + (left + x)
    if CHANNELS_LAST:
        at = (image * (HEIGHT * WIDTH) + at) * channels + channel
    else:
        at = channel.to(tl.int64) * (HEIGHT * WIDTH) + at
    value = tl.load(x_ptr + at, inside, float("-inf") if MAXIMUM else 0.0).to(tl.float32)
    if MAXIMUM:
        acc = tl.maximum(acc, value, propagate_nan=tl.PropagateNan.ALL)
    else:
        acc += value
    return acc


@triton.jit
def adaptive_kernel(
    x_ptr, out_ptr, partial_ptr, pixels, channels, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, WINDOW_H: tl.constexpr,
    WINDOW_W: tl.constexpr, MAXIMUM: tl.constexpr, CHANNELS_LAST: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, SPLITS: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """BLOCK_P output pixels of BLOCK_C channels per program, BLOCK_R pixels of a window at a time.

    The window of output row i are the rows from i HEIGHT / OUT_HEIGHT, rounded down, to
    (i + 1) HEIGHT / OUT_HEIGHT, rounded up; columns alike. WINDOW_H and WINDOW_W are the sides of
    the largest window. CHANNELS_LAST: x[image, y, x, channel], pixels of all images and the
    channels of one. Otherwise x[image, channel, y, x], pixels of one image and the channels of all.
    The neighbours in memory, channels or pixels of the window, are the last dimension of the tile.

    The second axis of the grid has SPLITS parts of every window: every SPLITS-th block. With more
    than one, the result of a part goes to row `split` of partial[SPLITS, results]. UNROLL: the
    blocks of a part are few, so that all of them are loaded at once.
    """
    # fmt: off
    blocks = tl.cdiv(pixels, BLOCK_P)
    split = tl.program_id(1)
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
    image = (pixel // (OUT_HEIGHT * OUT_WIDTH)).to(tl.int64)
    top, left = row * HEIGHT // OUT_HEIGHT, column * WIDTH // OUT_WIDTH
    high = ((row + 1) * HEIGHT + (OUT_HEIGHT - 1)) // OUT_HEIGHT - top
    wide = ((column + 1) * WIDTH + (OUT_WIDTH - 1)) // OUT_WIDTH - left
    exists = (pixel < pixels) & (channel < channels)
    acc = tl.full(shape, float("-inf") if MAXIMUM else 0.0, tl.float32)
    size: tl.constexpr = WINDOW_H * WINDOW_W
    if UNROLL:
        for step in tl.static_range((size + BLOCK_R * SPLITS - 1) // (BLOCK_R * SPLITS)):
            place = (step * SPLITS + split) * BLOCK_R + places
            acc = _with_places(acc, x_ptr, place, exists, image, channel, channels, top, left, high,
                               wide, HEIGHT, WIDTH, OUT_WIDTH, WINDOW_W, MAXIMUM, CHANNELS_LAST)
    else:
        for start in tl.range(split * BLOCK_R, size, BLOCK_R * SPLITS):
            place = start + places
            acc = _with_places(acc, x_ptr, place, exists, image, channel, channels, top, left, high,
                               wide, HEIGHT, WIDTH, OUT_WIDTH, WINDOW_W, MAXIMUM, CHANNELS_LAST)
    # fmt: on
    if MAXIMUM:
        result = tl.reduce(acc, axis, _maximum, keep_dims=True)
    else:
        result = tl.sum(acc, axis, keep_dims=True) / (high * wide).to(tl.float32)
    if CHANNELS_LAST:
        out_at = pixel.to(tl.int64) * channels + channel
    else:
        out_at = channel.to(tl.int64) * (OUT_HEIGHT * OUT_WIDTH) + pixel
    if SPLITS > 1:
        partial_ptr += split.to(tl.int64) * channels * pixels
        tl.store(partial_ptr + out_at, result, exists)
    else:
        tl.store(out_ptr + out_at, result.to(out_ptr.dtype.element_ty), exists)
