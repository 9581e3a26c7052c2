# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, SIM108
"""Gluon kernel of the matmul family for Hopper: one warp loads, two warp groups multiply.

The partitions meet at mbarriers. `ready[s]` completes when the operands of stage s are in shared
memory, `free[s]` when both consumers have read them. An output tile leaves by the tensor memory
accelerator while the next tile's operands arrive.

The API is that of `triton.experimental.gluon` in Triton 3.6 and 3.7; its tutorials in Triton's
repository (python/tutorials/gluon: 04-tma, 05-wgmma, 08-warp-specialization) describe the rules
for barriers, fences and register budgets.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@gluon.jit
def _tile_at(tile, M, N, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr):
    """Row and column of a tile, in elements, in groups of GROUP_M tile rows."""
    tiles_m = gl.cdiv(M, BLOCK_M)
    tiles_n = gl.cdiv(N, BLOCK_N)
    group = tile // (GROUP_M * tiles_n)
    height = gl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    return (group * GROUP_M + within % height) * BLOCK_M, within // height * BLOCK_N


@gluon.jit
def _following(stage, phase, STAGES: gl.constexpr):
    """The next stage, and its phase: the phase changes each time the stages start again."""
    last = stage == STAGES - 1
    return gl.where(last, 0, stage + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def _previous(stage, STAGES: gl.constexpr):
    return gl.where(stage == 0, STAGES - 1, stage - 1)


@gluon.jit
def _produce(descriptors, buffers, barriers, sizes, BLOCKS: gl.constexpr, GROUP_M: gl.constexpr):
    """Load the operands of all tiles of this program, as far ahead as there are stages."""
    a_desc, b_desc, _ = descriptors
    upper, lower, b_buffers = buffers
    ready, free, _ = barriers
    M, N, K = sizes
    BLOCK_M: gl.constexpr = BLOCKS[0]
    BLOCK_N: gl.constexpr = BLOCKS[1]
    BLOCK_K: gl.constexpr = BLOCKS[2]
    STAGES: gl.constexpr = upper.type.shape[0]
    ROWS: gl.constexpr = a_desc.block_type.shape[0]
    LOADS: gl.constexpr = BLOCK_M // ROWS
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    stage = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        row, col = _tile_at(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        for k in range(0, K, BLOCK_K):
            # A new barrier counts as if the phase before its first one were complete.
            mbarrier.wait(free.index(stage), phase ^ 1)
            arrived = ready.index(stage)
            mbarrier.expect(arrived, LOADS * a_desc.block_type.nbytes + b_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(a_desc, [row, k], arrived, upper.index(stage))
            tma.async_copy_global_to_shared(b_desc, [k, col], arrived, b_buffers.index(stage))
            if LOADS == 2:
                tma.async_copy_global_to_shared(
                    a_desc, [row + ROWS, k], arrived, lower.index(stage)
                )
            stage, phase = _following(stage, phase, STAGES)


@gluon.jit
def _store_part(out_desc, part, out_buffers, row, col, at, BUFFERS: gl.constexpr):
    """Hand a part of a tile over to the tensor memory accelerator, through one of the buffers."""
    tma.store_wait(BUFFERS - 1)
    buffer = out_buffers.index(at % BUFFERS)
    buffer.store(part.to(out_desc.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(out_desc, [row, col], buffer)


@gluon.jit
def _halves(values):
    """Left and right half of the columns; both are already in the threads that hold them."""
    ROWS: gl.constexpr = values.shape[0]
    HALF: gl.constexpr = values.shape[1] // 2
    return values.reshape([ROWS, 2, HALF]).permute(0, 2, 1).split()


@gluon.jit
def _store_tile(out_desc, acc, out_buffers, row, col, PARTS: gl.constexpr, BUFFERS: gl.constexpr):
    COLUMNS: gl.constexpr = out_desc.block_type.shape[1]
    if PARTS == 1:
        _store_part(out_desc, acc, out_buffers, row, col, 0, BUFFERS)
    else:
        left, right = _halves(acc)
        if PARTS == 2:
            _store_part(out_desc, left, out_buffers, row, col, 0, BUFFERS)
            _store_part(out_desc, right, out_buffers, row, col + COLUMNS, 1, BUFFERS)
        else:
            first, second = _halves(left)
            _store_part(out_desc, first, out_buffers, row, col, 0, BUFFERS)
            _store_part(out_desc, second, out_buffers, row, col + COLUMNS, 1, BUFFERS)
            third, fourth = _halves(right)
            _store_part(out_desc, third, out_buffers, row, col + 2 * COLUMNS, 2, BUFFERS)
            _store_part(out_desc, fourth, out_buffers, row, col + 3 * COLUMNS, 3, BUFFERS)


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
    ready, free, turns = barriers
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
        row, col = _tile_at(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        acc = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
        if TURNS:
            # Barriers count modulo 2, so a wait must be for the next use of a stage.
            mbarrier.wait(turns.index(INDEX), turn)
            turn ^= 1
        for k in range(0, K, BLOCK_K):
            mbarrier.wait(ready.index(stage), phase)
            acc = warpgroup_mma(
                a_buffers.index(stage), b_buffers.index(stage), acc, use_acc=k > 0, is_async=True
            )
            # One product stays in flight; the one before it has read its operands.
            acc = warpgroup_mma_wait(1, deps=(acc,))
            mbarrier.arrive(free.index(_previous(stage, STAGES)), pred=k > 0)
            stage, phase = _following(stage, phase, STAGES)
        if TURNS:
            mbarrier.arrive(turns.index(1 - INDEX))
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(free.index(_previous(stage, STAGES)))
        if TURNS:
            # The other consumer reads the operands of the next tile.
            ahead = phase * STAGES + stage + steps
            stage = ahead % STAGES
            phase = ahead // STAGES & 1
        _store_tile(out_desc, acc, out_buffers, row + OFFSET, col, PARTS, BUFFERS)
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
    BLOCKS: gl.constexpr = (BLOCK_M, BLOCK_N, BLOCK_K)
    # Of 168 registers a thread, which 12 warps may have, the consumers take over the producer's.
    gl.warp_specialize(
        [
            (_consume, (descriptors, above, barriers, sizes, BLOCKS, GROUP_M, PARTS, 0)),
            (_consume, (descriptors, below, barriers, sizes, BLOCKS, GROUP_M, PARTS, 1)),
            (_produce, (descriptors, (upper, lower, b_buffers), barriers, sizes, BLOCKS, GROUP_M)),
        ],
        [4, 1],
        [240, 24],
    )
