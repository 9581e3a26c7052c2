# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, SIM108
"""Gluon kernel of scaled float8 products for Hopper: one warp loads, two warp groups multiply.

The partitions share the functions, and the barriers, of `search_spaces/kernels/gluon_tiles.py`.

Hopper's tensor cores keep about 14 bits of a sum of float8 products (DeepSeek-V3 Technical Report,
2024, section 3.3.2). Scales by blocks, and sums that are to be exact, therefore need the product of
every 128 of K by itself, added to sums in float32. As in DeepGEMM
(https://github.com/deepseek-ai/DeepGEMM), one warp group adds while the tensor cores work for the
other one.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from search_spaces.kernels.gluon_tiles import (
    after_other,
    corner,
    first_turn,
    following,
    multiply,
    previous,
    produce,
    shared_memory,
    store_tile,
)
from search_spaces.kernels.hopper_copies import store_wait

#: Elements of K, and columns of the output, that share a scale by blocks.
GROUP = gl.constexpr(128)


@gluon.jit
def _factors(scales, row, col, M, N, ROWS: gl.constexpr, layout: gl.constexpr, MODE: gl.constexpr):
    """The scales of the rows and of the columns of a tile, as the threads hold its sums."""
    a_scale, b_scale = scales
    if MODE == "row":
        rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        cols = col + gl.arange(0, layout.instr_shape[1], gl.SliceLayout(0, layout))
        # Rows and columns beyond the last read the last one: what they scale is not stored.
        of_rows = gl.load(a_scale + gl.minimum(rows, M - 1))
        of_cols = gl.load(b_scale + gl.minimum(cols, N - 1))
    else:
        of_rows = gl.load(a_scale)
        of_cols = gl.load(b_scale)
    return of_rows, of_cols


@gluon.jit
def _scaled(acc, factors, MODE: gl.constexpr):
    of_rows, of_cols = factors
    if MODE == "row":
        acc = acc * of_rows[:, None] * of_cols[None, :]
    else:
        acc = acc * (of_rows * of_cols)
    return acc


@gluon.jit
def _consume_summed(
    descriptors,
    buffers,
    barriers,
    sizes,
    scales,
    BLOCKS: gl.constexpr,
    GROUP_M: gl.constexpr,
    PARTS: gl.constexpr,
    LEAD: gl.constexpr,
    MODE: gl.constexpr,
    INDEX: gl.constexpr,
):
    """Multiply, scale and store this consumer's half of each tile, or every second whole tile."""
    _, _, out_desc = descriptors
    a_buffers, b_buffers, out_buffers = buffers
    _, free, turns = barriers
    M, N, K = sizes
    BLOCK_M: gl.constexpr = BLOCKS[0]
    BLOCK_N: gl.constexpr = BLOCKS[1]
    BLOCK_K: gl.constexpr = BLOCKS[2]
    STAGES: gl.constexpr = a_buffers.type.shape[0]
    BUFFERS: gl.constexpr = out_buffers.type.shape[0]
    ROWS: gl.constexpr = out_desc.block_type.shape[0]
    TURNS: gl.constexpr = BLOCK_M // ROWS == 1
    OFFSET: gl.constexpr = 0 if TURNS else INDEX * ROWS
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 32]
    )
    operands = (a_buffers, b_buffers)
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    steps = gl.cdiv(K, BLOCK_K)
    first, stride, stage, phase = first_turn(steps, STAGES, TURNS, INDEX)
    # The first consumer does not wait for its first turn.
    turn = 1 - INDEX
    if LEAD > 0 and INDEX == 1:
        mbarrier.wait(turns.index(1), 0)
    for tile in range(first, tiles, stride):
        row, col = corner(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        row += OFFSET
        acc = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
        if TURNS:
            # Barriers count modulo 2, so a wait must be for the next use of a stage.
            mbarrier.wait(turns.index(INDEX), turn)
            turn ^= 1
        start = 0
        if LEAD > 0 and INDEX == 0:
            start = gl.minimum(LEAD * BLOCK_K, K)
            acc, stage, phase = multiply(
                acc, operands, barriers, stage, phase, 0, start, BLOCK_K, True
            )
            mbarrier.arrive(turns.index(1), pred=tile == first)
        acc, stage, phase = multiply(acc, operands, barriers, stage, phase, start, K, BLOCK_K, True)
        if TURNS:
            mbarrier.arrive(turns.index(1 - INDEX))
        factors = _factors(scales, row, col, M, N, ROWS, layout, MODE)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(free.index(previous(stage, STAGES)))
        if TURNS:
            stage, phase = after_other(stage, phase, steps, STAGES)
        acc = _scaled(acc, factors, MODE)
        store_tile(out_desc, acc, out_buffers, row, col, PARTS, BUFFERS)
    store_wait(0)


@gluon.jit
def _product(operands, stage, old, CHUNK: gl.constexpr):
    """Start the product of one stage with one chunk of its columns, in the registers of `old`."""
    a_buffers, b_buffers = operands
    WIDTH: gl.constexpr = old.shape[1]
    b = b_buffers.index(stage)
    if b_buffers.type.shape[1] > WIDTH:
        b = b.slice(CHUNK * WIDTH, WIDTH, 0)
    return warpgroup_mma(
        a_buffers.index(stage), b.permute((1, 0)), old, use_acc=False, is_async=True
    )


@gluon.jit
def _added(sums, product, of_rows, of_cols, MODE: gl.constexpr):
    if MODE == "block128":
        sums += product * (of_rows * of_cols)[:, None]
    else:
        sums += product
    return sums


@gluon.jit
def _add_chunks(sums, operands, ready, free, stage, phase, scales, MODE: gl.constexpr):
    """sums of both chunks of columns, or of one, and the products of one stage."""
    CHUNKS: gl.constexpr = operands[1].type.shape[1] // sums[0].shape[1]
    of_rows, of_left, of_right = scales
    left, right = sums
    mbarrier.wait(ready.index(stage), phase)
    layout: gl.constexpr = left.type.layout
    product = gl.zeros([left.shape[0], left.shape[1]], gl.float32, layout)
    product = _product(operands, stage, product, 0)
    product = warpgroup_mma_wait(0, deps=(product,))
    left = _added(left, product, of_rows, of_left, MODE)
    if CHUNKS == 2:
        # The sums come first, so that both products may have the same registers.
        left = warpgroup_mma_wait(0, deps=(left,))
        product = _product(operands, stage, product, 1)
        product = warpgroup_mma_wait(0, deps=(product,))
        right = _added(right, product, of_rows, of_right, MODE)
    mbarrier.arrive(free.index(stage))
    return left, right


@gluon.jit
def _block_scales(scales, step, rows, group, M, N, K, CHUNKS: gl.constexpr):
    """The scales of one block of K: of each row, and of each chunk of columns."""
    a_scale, b_scale = scales
    blocks = gl.cdiv(K, GROUP)
    of_rows = gl.load(a_scale + step * M + rows)
    left = gl.load(b_scale + group * blocks + step)
    right = left
    if CHUNKS == 2:
        last = gl.cdiv(N, GROUP) - 1
        right = gl.load(b_scale + gl.minimum(group + 1, last) * blocks + step)
    return of_rows, left, right


@gluon.jit
def _consume_promoted(
    descriptors,
    buffers,
    barriers,
    sizes,
    scales,
    BLOCKS: gl.constexpr,
    GROUP_M: gl.constexpr,
    PARTS: gl.constexpr,
    LEAD: gl.constexpr,
    MODE: gl.constexpr,
    INDEX: gl.constexpr,
):
    """Add the products of blocks of K to this consumer's half of each tile, in float32."""
    _, _, out_desc = descriptors
    a_buffers, b_buffers, out_buffers = buffers
    ready, free, turns = barriers
    M, N, K = sizes
    BLOCK_M: gl.constexpr = BLOCKS[0]
    BLOCK_N: gl.constexpr = BLOCKS[1]
    BLOCK_K: gl.constexpr = BLOCKS[2]
    STAGES: gl.constexpr = a_buffers.type.shape[0]
    BUFFERS: gl.constexpr = out_buffers.type.shape[0]
    ROWS: gl.constexpr = out_desc.block_type.shape[0]
    CHUNKS: gl.constexpr = 2 if BLOCK_N > GROUP else 1
    WIDTH: gl.constexpr = BLOCK_N // CHUNKS
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDTH, 32]
    )
    operands = (a_buffers, b_buffers)
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    steps = gl.cdiv(K, BLOCK_K)
    first = gl.program_id(0)
    stage = 0
    phase = 0
    if LEAD > 0 and INDEX == 1:
        mbarrier.wait(turns.index(1), 0)
    for tile in range(first, tiles, gl.num_programs(0)):
        row, col = corner(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        row += INDEX * ROWS
        rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        rows = gl.minimum(rows, M - 1)
        left = gl.zeros([ROWS, WIDTH], gl.float32, layout)
        right = left
        for step in range(steps):
            factors = (0.0, 0.0, 0.0)
            if MODE == "block128":
                # The scales are on their way while the block is multiplied.
                factors = _block_scales(scales, step, rows, col // GROUP, M, N, K, CHUNKS)
            left, right = _add_chunks(
                (left, right), operands, ready, free, stage, phase, factors, MODE
            )
            if LEAD > 0 and INDEX == 0:
                leads = (tile == first) & (step == gl.minimum(LEAD, steps) - 1)
                mbarrier.arrive(turns.index(1), pred=leads)
            stage, phase = following(stage, phase, STAGES)
        if MODE != "block128":
            left = _scaled(left, _factors(scales, row, col, M, N, ROWS, layout, MODE), MODE)
            if CHUNKS == 2:
                factors = _factors(scales, row, col + WIDTH, M, N, ROWS, layout, MODE)
                right = _scaled(right, factors, MODE)
        store_tile(out_desc, left, out_buffers, row, col, PARTS // CHUNKS, BUFFERS)
        if CHUNKS == 2:
            store_tile(out_desc, right, out_buffers, row, col + WIDTH, PARTS // CHUNKS, BUFFERS)
    store_wait(0)


@gluon.jit
def _consume(
    descriptors,
    buffers,
    barriers,
    sizes,
    scales,
    BLOCKS: gl.constexpr,
    GROUP_M: gl.constexpr,
    PARTS: gl.constexpr,
    LEAD: gl.constexpr,
    MODE: gl.constexpr,
    PROMOTE: gl.constexpr,
    INDEX: gl.constexpr,
):
    # fmt: off
    if PROMOTE:
        _consume_promoted(descriptors, buffers, barriers, sizes, scales, BLOCKS, GROUP_M, PARTS,
                          LEAD, MODE, INDEX)
    else:
        _consume_summed(descriptors, buffers, barriers, sizes, scales, BLOCKS, GROUP_M, PARTS,
                        LEAD, MODE, INDEX)
    # fmt: on


@gluon.jit(do_not_specialize=["M", "N", "K"])
def gluon_fp8_matmul_kernel(
    a_desc,
    b_desc,
    out_desc,
    a_scale,
    b_scale,
    M,
    N,
    K,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr,
    STAGES: gl.constexpr,
    PARTS: gl.constexpr,
    LEAD: gl.constexpr,
    MODE: gl.constexpr,
    PROMOTE: gl.constexpr,
):
    """out = (a @ b^T) * scales on Hopper; persistent programs of a loading and two multiplying
    partitions.

    a_desc, b_desc and out_desc describe row-major a[M, K], b[N, K] and out[M, N] in blocks of
    [ROWS, BLOCK_K], [BLOCK_N, BLOCK_K] and [ROWS, BLOCK_N / PARTS]. With ROWS = BLOCK_M / 2 each
    consumer computes half of every tile; with ROWS = BLOCK_M the consumers take turns, so that one
    stores while the other multiplies. With LEAD, the first of two that share tiles starts as many
    blocks of K before the second, so that it stores while the second multiplies. MODE: "tensor":
    a_scale[1] and b_scale[1]; "row": a_scale[M] and b_scale[N]; "block128": a_scale[K / 128, M] and
    b_scale[N / 128, K / 128]. PROMOTE: every block of K is added in float32. The launch has
    num_warps=4, which are the first consumer.
    """
    descriptors = (a_desc, b_desc, out_desc)
    buffers, barriers = shared_memory(descriptors, BLOCK_M, STAGES, PARTS)
    above, below, loaded = buffers
    sizes = (M, N, K)
    scales = (a_scale, b_scale)
    BLOCKS: gl.constexpr = (BLOCK_M, BLOCK_N, BLOCK_K)
    # Of 168 registers a thread, which 12 warps may have, the consumers take over the producer's.
    # fmt: off
    gl.warp_specialize(
        [
            (_consume, (descriptors, above, barriers, sizes, scales, BLOCKS, GROUP_M, PARTS, LEAD,
                        MODE, PROMOTE, 0)),
            (_consume, (descriptors, below, barriers, sizes, scales, BLOCKS, GROUP_M, PARTS, LEAD,
                        MODE, PROMOTE, 1)),
            (produce, (descriptors, loaded, barriers, sizes, BLOCKS, GROUP_M, True)),
        ],
        [4, 1],
        [240, 24],
    )
    # fmt: on
