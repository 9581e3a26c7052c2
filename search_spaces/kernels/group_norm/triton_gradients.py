# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Gradients of the group norm of images, in one launch with one config. It belongs to no family.

Notation, for a group of x and dy with n elements: z = (x - mean) rstd, g = weight dy, <.> the mean
over the group. Then dx = (g - z <z g> - <g>) rstd, and of each channel dweight = sum(dy z), dbias =
sum(dy) over its pixels and all images.
"""

import triton
import triton.language as tl


@triton.jit
def _places(
    first, channel, start, PER_GROUP: tl.constexpr, PIXELS: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Where a tile of channels and pixels lies, and what of it is in the group."""
    lane = channel + tl.arange(0, BLOCK_C)[:, None]
    pixel = start + tl.arange(0, BLOCK_P)[None, :]
    return (first + lane) * PIXELS + pixel, (lane < PER_GROUP) & (pixel < PIXELS)


@triton.jit
def _mean(
    x_ptr, first, PER_GROUP: tl.constexpr, PIXELS: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):  # fmt: skip
    total = tl.zeros((BLOCK_C, BLOCK_P), tl.float32)
    for channel in range(0, PER_GROUP, BLOCK_C):
        for start in range(0, PIXELS, BLOCK_P):
            at, inside = _places(first, channel, start, PER_GROUP, PIXELS, BLOCK_C, BLOCK_P)
            total += tl.load(x_ptr + at, inside, 0.0).to(tl.float32)
    return tl.sum(tl.sum(total, 1), 0) / (PER_GROUP * PIXELS)


@triton.jit
def _channel_sums(
    x_ptr, dy_ptr, first, channel, mean, PER_GROUP: tl.constexpr, PIXELS: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Of BLOCK_C channels the sums over pixels of (x - mean)^2, dy (x - mean) and dy."""
    squares = tl.zeros((BLOCK_C, BLOCK_P), tl.float32)
    products = tl.zeros((BLOCK_C, BLOCK_P), tl.float32)
    gradients = tl.zeros((BLOCK_C, BLOCK_P), tl.float32)
    for start in range(0, PIXELS, BLOCK_P):
        at, inside = _places(first, channel, start, PER_GROUP, PIXELS, BLOCK_C, BLOCK_P)
        x = tl.load(x_ptr + at, inside, 0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at, inside, 0.0).to(tl.float32)
        away = tl.where(inside, x - mean, 0.0)
        squares += away * away
        products += away * dy
        gradients += dy
    return tl.sum(squares, 1), tl.sum(products, 1), tl.sum(gradients, 1)


@triton.jit
def group_gradients_kernel(
    x_ptr, dy_ptr, weight_ptr, dx_ptr, parts_ptr, GROUPS: tl.constexpr, PER_GROUP: tl.constexpr,
    PIXELS: tl.constexpr, EPS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Program i has group i % GROUPS of image i / GROUPS; x, dy, dx: [images, channels, PIXELS].

    parts, [images, channels, 2] in float32: the sums of dy z and of dy over the pixels. Later
    readings of a group are served by caches.
    """
    first = tl.program_id(0).to(tl.int64) * PER_GROUP
    weight_ptr += tl.program_id(0) % GROUPS * PER_GROUP
    mean = _mean(x_ptr, first, PER_GROUP, PIXELS, BLOCK_C, BLOCK_P)
    spread = tl.zeros((BLOCK_C,), tl.float32)
    product = tl.zeros((BLOCK_C,), tl.float32)
    gradient = tl.zeros((BLOCK_C,), tl.float32)
    lane = tl.arange(0, BLOCK_C)
    for channel in range(0, PER_GROUP, BLOCK_C):
        squares, of_weight, of_bias = _channel_sums(
            x_ptr, dy_ptr, first, channel, mean, PER_GROUP, PIXELS, BLOCK_C, BLOCK_P
        )
        real, part = channel + lane < PER_GROUP, parts_ptr + (first + channel + lane) * 2
        # Scaled by rstd below, which is known after the last channel.
        tl.store(part, of_weight, real)
        tl.store(part + 1, of_bias, real)
        weight = tl.load(weight_ptr + channel + lane, real, 0.0).to(tl.float32)
        spread += squares
        product += weight * of_weight
        gradient += weight * of_bias
    share: tl.constexpr = 1.0 / (PER_GROUP * PIXELS)
    rstd = 1.0 / tl.sqrt(tl.sum(spread, 0) * share + EPS)
    product_mean, gradient_mean = tl.sum(product, 0) * rstd * share, tl.sum(gradient, 0) * share
    tl.debug_barrier()
    for channel in range(0, PER_GROUP, BLOCK_C):
        real, part = channel + lane < PER_GROUP, parts_ptr + (first + channel + lane) * 2
        tl.store(part, tl.load(part, real, 0.0) * rstd, real)
        weight = tl.load(weight_ptr + channel + lane, real, 0.0).to(tl.float32)[:, None]
        for start in range(0, PIXELS, BLOCK_P):
            at, inside = _places(first, channel, start, PER_GROUP, PIXELS, BLOCK_C, BLOCK_P)
            x = tl.load(x_ptr + at, inside, 0.0).to(tl.float32)
            dy = tl.load(dy_ptr + at, inside, 0.0).to(tl.float32)
            dx = (weight * dy - (x - mean) * rstd * product_mean - gradient_mean) * rstd
            tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), inside)
