# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of the convolution as an implicit matrix product (Chetlur et al., cuDNN, 2014).

The product is out[M, N] = patches[M, K] @ weights[N, K]^T, where M are the output pixels, N the
output channels and K the taps of the kernel times the input channels. The patches exist in shared
memory only. A tile is accumulated in float32; tiles are visited as in the matmul family.
"""

import triton
import triton.language as tl

from search_spaces.kernels.jitted_tiles import multiply_add, store_tile, tile_at


@triton.jit
def convolution_kernel(
    x_ptr, w_ptr, out_ptr, pixels, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, KERNEL_H: tl.constexpr,
    KERNEL_W: tl.constexpr, STRIDE: tl.constexpr, PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    DILATION: tl.constexpr, CHANNELS: tl.constexpr, OUT_CHANNELS: tl.constexpr,
    GROUP_IN: tl.constexpr, GROUP_OUT: tl.constexpr, BUNDLE: tl.constexpr, BY_ROW: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """One tile of BLOCK_M output pixels and BLOCK_N output channels per program, by pointers.

    x[image, y, x, channel] and w[out channel, tap y, tap x, channel of the group] are contiguous,
    as is out[pixel, out channel]; pixels are those of all images. The second grid axis has the
    bundles of BUNDLE groups each, and SPLIT_K parts of K, whose partial sums are float32
    [SPLIT_K, pixels, OUT_CHANNELS]. The weights of a bundle are zero between different groups.

    K runs through the taps and, in blocks, through the channels of each; BY_ROW through the rows of
    the kernel and, in blocks, through all channels of a row, which are neighbours in memory where
    the taps are. WIDE: offsets do not fit into 32 bits.
    """
    bundle_in: tl.constexpr = BUNDLE * GROUP_IN
    bundle_out: tl.constexpr = BUNDLE * GROUP_OUT
    run: tl.constexpr = KERNEL_W * GROUP_IN if BY_ROW else bundle_in
    taps: tl.constexpr = KERNEL_H if BY_ROW else KERNEL_H * KERNEL_W
    whole: tl.constexpr = (OUT_CHANNELS // GROUP_OUT) % BUNDLE == 0
    even_k: tl.constexpr = run % BLOCK_K == 0 and whole
    padded: tl.constexpr = PADDING_H > 0 or PADDING_W > 0
    blocks: tl.constexpr = (run + BLOCK_K - 1) // BLOCK_K
    steps: tl.constexpr = taps * blocks
    per_split: tl.constexpr = (steps + SPLIT_K - 1) // SPLIT_K
    split = tl.program_id(1) % SPLIT_K
    bundle = tl.program_id(1) // SPLIT_K
    first = split * per_split
    last = tl.minimum(first + per_split, steps)
    pid_m, pid_n = tile_at(
        tl.program_id(0), tl.cdiv(pixels, BLOCK_M), tl.cdiv(bundle_out, BLOCK_N), GROUP_M
    )

    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    # Rows and columns beyond the last read the last one: what they compute is not stored.
    pixel = tl.minimum(rows, pixels - 1)
    top = pixel // OUT_WIDTH % OUT_HEIGHT * STRIDE - PADDING_H
    left = pixel % OUT_WIDTH * STRIDE - PADDING_W
    image = pixel // (OUT_HEIGHT * OUT_WIDTH)
    # Constants where they can be, so that masks are known to hold for whole words.
    channels, existing = run, bundle_out
    if not whole:
        channels = tl.minimum(run, CHANNELS - bundle * bundle_in)
        existing = tl.minimum(bundle_out, OUT_CHANNELS - bundle * bundle_out)
    w_row = bundle * bundle_out + tl.minimum(cols, existing - 1)
    if WIDE:
        image = image.to(tl.int64)
        w_row = w_row.to(tl.int64)
    corner = ((image * HEIGHT + top) * WIDTH + left) * CHANNELS + bundle * bundle_in
    w_at = w_row * (KERNEL_H * KERNEL_W * GROUP_IN)

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in tl.range(first, last):
        tap = step // blocks
        ks = step % blocks * BLOCK_K + tl.arange(0, BLOCK_K)
        in_run = (ks < channels)[None, :]
        if BY_ROW:
            y = top + tap
            shift = tap * WIDTH
            along = (left * CHANNELS)[:, None] + ks[None, :]
            inside = ((y >= 0) & (y < HEIGHT))[:, None]
            inside = inside & (along >= 0) & (along < WIDTH * CHANNELS)
        else:
            y = top + tap // KERNEL_W * DILATION
            x = left + tap % KERNEL_W * DILATION
            shift = tap // KERNEL_W * WIDTH + tap % KERNEL_W
            inside = ((y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH))[:, None]
        if WIDE:
            shift = tl.cast(shift, tl.int64)
        x_ptrs = x_ptr + ((corner + shift * (DILATION * CHANNELS))[:, None] + ks[None, :])
        if not padded and even_k:
            a = tl.load(x_ptrs)
        elif not padded:
            a = tl.load(x_ptrs, in_run, 0.0)
        elif even_k:
            a = tl.load(x_ptrs, inside, 0.0)
        else:
            a = tl.load(x_ptrs, inside & in_run, 0.0)
        if BUNDLE > 1:
            same = (cols // GROUP_OUT)[:, None] == (ks // GROUP_IN)[None, :]
            w_ptrs = w_ptr + (w_at[:, None] + (tap * GROUP_IN + ks % GROUP_IN)[None, :])
            b = tl.load(w_ptrs, same & in_run, 0.0)
        else:
            w_ptrs = w_ptr + (w_at[:, None] + (tap * run + ks)[None, :])
            b = tl.load(w_ptrs) if even_k else tl.load(w_ptrs, in_run, 0.0)
        acc = multiply_add(a, tl.trans(b), acc, PRECISION, INTERPRETED)

    out_ptr += bundle * bundle_out
    if SPLIT_K > 1:
        out_ptr += split.to(tl.int64) * pixels * OUT_CHANNELS
    store_tile(out_ptr, acc, rows, cols, pixels, existing, OUT_CHANNELS, False, WIDE)


@triton.jit
def _described_tile(
    x_desc, w_desc, out_ptr, tile, split, batch, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE: tl.constexpr, PADDING_H: tl.constexpr,
    PADDING_W: tl.constexpr, DILATION: tl.constexpr, CHANNELS: tl.constexpr,
    OUT_CHANNELS: tl.constexpr, TILE_H: tl.constexpr, TILE_W: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    images: tl.constexpr = BLOCK_M // (TILE_H * TILE_W)
    # Whole strides that padding takes, so that places in the padded image are not negative.
    lift_h: tl.constexpr = (PADDING_H + STRIDE - 1) // STRIDE
    lift_w: tl.constexpr = (PADDING_W + STRIDE - 1) // STRIDE
    tiles_x = tl.cdiv(OUT_WIDTH, TILE_W)
    tiles_y = tl.cdiv(OUT_HEIGHT, TILE_H)
    tiles_m = tl.cdiv(batch, images) * tiles_y * tiles_x
    # Triton compiles the rounded count to other code than tiles_m, which has no timings.
    pid_m, pid_n = tile_at(
        tile, tl.cdiv(tiles_m * BLOCK_M, BLOCK_M), tl.cdiv(OUT_CHANNELS, BLOCK_N), GROUP_M
    )
    left = pid_m % tiles_x * TILE_W
    top = pid_m // tiles_x % tiles_y * TILE_H
    image = pid_m // (tiles_x * tiles_y) * images
    blocks: tl.constexpr = (CHANNELS + BLOCK_K - 1) // BLOCK_K
    steps: tl.constexpr = KERNEL_H * KERNEL_W * blocks
    per_split: tl.constexpr = (steps + SPLIT_K - 1) // SPLIT_K
    first = split * per_split
    last = tl.minimum(first + per_split, steps)

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in tl.range(first, last):
        tap = step // blocks
        channel = step % blocks * BLOCK_K
        y = tap // KERNEL_W * DILATION + (lift_h * STRIDE - PADDING_H)
        x = tap % KERNEL_W * DILATION + (lift_w * STRIDE - PADDING_W)
        at_row, phase = top + y // STRIDE - lift_h, y % STRIDE
        at_col, at_channel = left + x // STRIDE - lift_w, x % STRIDE * CHANNELS + channel
        # The pixels of a tile are the last dimension but one: it is a matrix as it is.
        if TILE_W > 1:
            a = x_desc.load([image, at_row, phase, at_col, at_channel])
        elif TILE_H > 1:
            a = x_desc.load([image, phase, at_col, at_row, at_channel])
        else:
            a = x_desc.load([at_row, phase, at_col, image, at_channel])
        a = a.reshape(BLOCK_M, BLOCK_K)
        b = w_desc.load([tap, pid_n * BLOCK_N, channel]).reshape(BLOCK_N, BLOCK_K)
        acc = multiply_add(a, tl.trans(b), acc, PRECISION, INTERPRETED)

    rows = tl.arange(0, BLOCK_M)
    cols = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    at_image = image + rows // (TILE_H * TILE_W)
    at_y = top + rows // TILE_W % TILE_H
    at_x = left + rows % TILE_W
    exists = (at_image < batch) & (at_y < OUT_HEIGHT) & (at_x < OUT_WIDTH)
    if WIDE:
        at_image = at_image.to(tl.int64)
    out_at = ((at_image * OUT_HEIGHT + at_y) * OUT_WIDTH + at_x) * OUT_CHANNELS
    if SPLIT_K > 1:
        out_ptr += split.to(tl.int64) * batch * (OUT_HEIGHT * OUT_WIDTH * OUT_CHANNELS)
    out_ptrs = out_ptr + (out_at[:, None] + cols[None, :])
    mask = exists[:, None] & (cols < OUT_CHANNELS)[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask)


@triton.jit
def described_convolution_kernel(
    x_desc, w_desc, out_ptr, batch, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE: tl.constexpr, PADDING_H: tl.constexpr,
    PADDING_W: tl.constexpr, DILATION: tl.constexpr, CHANNELS: tl.constexpr,
    OUT_CHANNELS: tl.constexpr, TILE_H: tl.constexpr, TILE_W: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
    WIDE: tl.constexpr, PERSISTENT: tl.constexpr, PRECISION: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """The same without groups, with patches moved by the tensor memory accelerator.

    A tile has BLOCK_M output pixels: of a row, TILE_W, of a column, TILE_H, or one each of several
    images. x_desc describes x as image, y / STRIDE, y % STRIDE, x / STRIDE and
    (x % STRIDE) CHANNELS + channel, in which the pixels that a tap needs for a tile are one block,
    and what lies outside of an image is zero. The dimension of the block is the last but one.
    w_desc describes w as [tap, out channel, channel]. PERSISTENT programs walk over the tiles, the
    grid apart, so that one tile's loads overlap with the last one's stores.
    """
    # fmt: off
    split = tl.program_id(1)
    if PERSISTENT:
        tiles = tl.cdiv(OUT_HEIGHT, TILE_H) * tl.cdiv(OUT_WIDTH, TILE_W)
        tiles *= tl.cdiv(batch, BLOCK_M // (TILE_H * TILE_W)) * tl.cdiv(OUT_CHANNELS, BLOCK_N)
        for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
            _described_tile(x_desc, w_desc, out_ptr, tile, split, batch, OUT_HEIGHT, OUT_WIDTH,
                            KERNEL_H, KERNEL_W, STRIDE, PADDING_H, PADDING_W, DILATION, CHANNELS,
                            OUT_CHANNELS, TILE_H, TILE_W, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M,
                            SPLIT_K, WIDE, PRECISION, INTERPRETED)
    else:
        _described_tile(x_desc, w_desc, out_ptr, tl.program_id(0), split, batch, OUT_HEIGHT,
                        OUT_WIDTH, KERNEL_H, KERNEL_W, STRIDE, PADDING_H, PADDING_W, DILATION,
                        CHANNELS, OUT_CHANNELS, TILE_H, TILE_W, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M,
                        SPLIT_K, WIDE, PRECISION, INTERPRETED)
    # fmt: on
