# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
"""Gradients of the group norm of images, in one launch with one config. It belongs to no family.

Notation, for a group of x and dy with n elements: z = (x - mean) rstd, g = weight dy, <.> the mean
over the group. Then dx = (g - z <z g> - <g>) rstd, and of each channel dweight = sum(dy z), dbias =
sum(dy) over its pixels and all images.
"""

import triton
import triton.language as tl


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
    lane, pixel = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_P)[None, :]
    share: tl.constexpr = 1.0 / (PER_GROUP * PIXELS)
    total = tl.zeros((BLOCK_C, BLOCK_P), tl.float32)
    for channel in range(0, PER_GROUP, BLOCK_C):
        known = (channel + lane < PER_GROUP)[:, None]
        at = (first + channel + lane)[:, None] * PIXELS
        for start in range(0, PIXELS, BLOCK_P):
            inside = known & (start + pixel < PIXELS)
            total += tl.load(x_ptr + at + start + pixel, inside, 0.0).to(tl.float32)
    mean = tl.sum(tl.sum(total, 1), 0) * share
    spread = tl.zeros((BLOCK_C,), tl.float32)
    product = tl.zeros((BLOCK_C,), tl.float32)
    gradient = tl.zeros((BLOCK_C,), tl.float32)
    for channel in range(0, PER_GROUP, BLOCK_C):
        known = (channel + lane < PER_GROUP)[:, None]
        at = (first + channel + lane)[:, None] * PIXELS
        squares = tl.zeros((BLOCK_C, BLOCK_P), tl.float32)
        products = tl.zeros((BLOCK_C, BLOCK_P), tl.float32)
        gradients = tl.zeros((BLOCK_C, BLOCK_P), tl.float32)
        for start in range(0, PIXELS, BLOCK_P):
            inside = known & (start + pixel < PIXELS)
            x = tl.load(x_ptr + at + start + pixel, inside, 0.0).to(tl.float32)
            dy = tl.load(dy_ptr + at + start + pixel, inside, 0.0).to(tl.float32)
            away = tl.where(inside, x - mean, 0.0)
            squares += away * away
            products += away * dy
            gradients += dy
        spread += tl.sum(squares, 1)
        of_weight, of_bias = tl.sum(products, 1), tl.sum(gradients, 1)
        part = parts_ptr + (first + channel + lane) * 2
        real = channel + lane < PER_GROUP
        # Scaled by rstd below, which is known after the last channel.
        tl.store(part, of_weight, real)
        tl.store(part + 1, of_bias, real)
        weight = tl.load(weight_ptr + channel + lane, real, 0.0).to(tl.float32)
        product += weight * of_weight
        gradient += weight * of_bias
    rstd = 1.0 / tl.sqrt(tl.sum(spread, 0) * share + EPS)
    product_mean = tl.sum(product, 0) * rstd * share
    gradient_mean = tl.sum(gradient, 0) * share
    tl.debug_barrier()
    for channel in range(0, PER_GROUP, BLOCK_C):
        real = channel + lane < PER_GROUP
        at = (first + channel + lane)[:, None] * PIXELS
        part = parts_ptr + (first + channel + lane) * 2
        tl.store(part, tl.load(part, real, 0.0) * rstd, real)
        weight = tl.load(weight_ptr + channel + lane, real, 0.0).to(tl.float32)[:, None]
        for start in range(0, PIXELS, BLOCK_P):
            inside = real[:, None] & (start + pixel < PIXELS)
            x = tl.load(x_ptr + at + start + pixel, inside, 0.0).to(tl.float32)
            dy = tl.load(dy_ptr + at + start + pixel, inside, 0.0).to(tl.float32)
            dx = (weight * dy - (x - mean) * rstd * product_mean - gradient_mean) * rstd
            tl.store(dx_ptr + at + start + pixel, dx.to(dx_ptr.dtype.element_ty), inside)
