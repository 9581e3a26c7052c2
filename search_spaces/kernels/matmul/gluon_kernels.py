# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Gluon kernel of the matmul family for Hopper: one warp loads, two warp groups multiply.

The partitions share the functions, and the barriers, of `search_spaces/kernels/gluon_tiles.py`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma_wait

from search_spaces.kernels.gluon_tiles import (
    after_other,
    corner,
    first_turn,
    multiply,
    previous,
    produce,
    shared_memory,
    store_tile,
)
from search_spaces.kernels.hopper_copies import store_wait


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
    first, stride, stage, phase = first_turn(steps, STAGES, TURNS, INDEX)
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
            stage, phase = after_other(stage, phase, steps, STAGES)
        store_tile(out_desc, acc, out_buffers, row + OFFSET, col, PARTS, BUFFERS)
    store_wait(0)


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
    descriptors = (a_desc, b_desc, out_desc)
    buffers, barriers = shared_memory(descriptors, BLOCK_M, STAGES, PARTS)
    above, below, loaded = buffers
    sizes = (M, N, K)
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
