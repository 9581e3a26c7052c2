# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, SIM108
"""Gluon kernel of the matmul family for Hopper: one warp loads, two warp groups multiply.

The partitions share the functions, and the barriers, of `search_spaces/kernels/gluon_tiles.py`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma_wait

from search_spaces.kernels.gluon_tiles import corner, multiply, previous, produce, store_tile


@gluon.jit
def _consume(
    descriptors,
    buffers,
    barriers,
    sizes,
    BLOCKS: gl.constexpr,
    GROUP_M: gl.constexpr,
    PARTS: gl.constexpr,
    INDEX: gl.constexpr,
):
    """Multiply and store this consumer's half of each tile, or every second whole tile."""
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
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16]
    )
    operands = (a_buffers, b_buffers)
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    steps = gl.cdiv(K, BLOCK_K)
    first = gl.program_id(0)
    stride = gl.num_programs(0)
    stage = 0
    phase = 0
    if TURNS:
        if INDEX == 1:
            first += stride
            stage = steps % STAGES
            phase = steps // STAGES & 1
        stride *= 2
    # The first consumer does not wait for its first turn.
    turn = 1 - INDEX
    for tile in range(first, tiles, stride):
        row, col = corner(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        acc = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
        if TURNS:
            # Barriers count modulo 2, so a wait must be for the next use of a stage.
            mbarrier.wait(turns.index(INDEX), turn)
            turn ^= 1
        acc, stage, phase = multiply(acc, operands, barriers, stage, phase, 0, K, BLOCK_K, False)
        if TURNS:
            mbarrier.arrive(turns.index(1 - INDEX))
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(free.index(previous(stage, STAGES)))
        if TURNS:
            # The other consumer reads the operands of the next tile.
            ahead = phase * STAGES + stage + steps
            stage = ahead % STAGES
            phase = ahead // STAGES & 1
        store_tile(out_desc, acc, out_buffers, row + OFFSET, col, PARTS, BUFFERS)
    tma.store_wait(0)


@gluon.jit
def gluon_matmul_kernel(
    a_desc,
    b_desc,
    out_desc,
    M,
    N,
    K,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr,
    STAGES: gl.constexpr,
    PARTS: gl.constexpr,
):
    """out = a @ b on Hopper; persistent programs with a loading and two multiplying partitions.

    a_desc, b_desc and out_desc describe row-major a[M, K], b[K, N] and out[M, N] in blocks of
    [ROWS, BLOCK_K], [BLOCK_K, BLOCK_N] and [ROWS, BLOCK_N / PARTS]. With ROWS = BLOCK_M / 2 each
    consumer computes half of every tile; with ROWS = BLOCK_M the consumers take turns, so that one
    stores while the other multiplies. The launch has num_warps=4, which are the first consumer.
    """
    ROWS: gl.constexpr = a_desc.block_type.shape[0]
    TURNS: gl.constexpr = BLOCK_M // ROWS == 1
    BUFFERS: gl.constexpr = 2 if PARTS == 4 else 1
    A_SHAPE: gl.constexpr = [STAGES, ROWS, BLOCK_K]
    OUT_SHAPE: gl.constexpr = [BUFFERS, ROWS, BLOCK_N // PARTS]
    upper = gl.allocate_shared_memory(a_desc.dtype, A_SHAPE, a_desc.layout)
    if TURNS:
        lower = upper
    else:
        lower = gl.allocate_shared_memory(a_desc.dtype, A_SHAPE, a_desc.layout)
    b_buffers = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK_K, BLOCK_N], b_desc.layout)
    upper_out = gl.allocate_shared_memory(out_desc.dtype, OUT_SHAPE, out_desc.layout)
    lower_out = gl.allocate_shared_memory(out_desc.dtype, OUT_SHAPE, out_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for consumer in gl.static_range(2):
        mbarrier.init(turns.index(consumer), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=1 if TURNS else 2)
    descriptors = (a_desc, b_desc, out_desc)
    barriers = (ready, free, turns)
    sizes = (M, N, K)
    above = (upper, b_buffers, upper_out)
    below = (lower, b_buffers, lower_out)
    loaded = (upper, lower, b_buffers)
    BLOCKS: gl.constexpr = (BLOCK_M, BLOCK_N, BLOCK_K)
    # Of 168 registers a thread, which 12 warps may have, the consumers take over the producer's.
    gl.warp_specialize(
        [
            (_consume, (descriptors, above, barriers, sizes, BLOCKS, GROUP_M, PARTS, 0)),
            (_consume, (descriptors, below, barriers, sizes, BLOCKS, GROUP_M, PARTS, 1)),
            (produce, (descriptors, loaded, barriers, sizes, BLOCKS, GROUP_M, False)),
        ],
        [4, 1],
        [240, 24],
    )
