# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, SIM108
"""Jitted functions of Gluon's products on Hopper: one warp loads, two groups of warps multiply.

The partitions meet at mbarriers. `ready[s]` completes when the operands of stage s are in shared
memory, `free[s]` when all that read them have done so. An output tile leaves by the tensor memory
accelerator while the next tile's operands arrive.

The API is that of `triton.experimental.gluon` in Triton 3.6 to 3.9; its tutorials in Triton's
repository (python/tutorials/gluon: 04-tma, 05-wgmma, 08-warp-specialization) describe the rules
for barriers, fences and register budgets.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from search_spaces.kernels import jitted_tiles
from search_spaces.kernels.hopper_copies import async_load, async_store, store_wait

tile_at = gluon.jit(jitted_tiles.tile_at.fn)


@gluon.jit
def corner(tile, M, N, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr):
    """Row and column of a tile, in elements, in groups of GROUP_M tile rows."""
    row, col = tile_at(tile, gl.cdiv(M, BLOCK_M), gl.cdiv(N, BLOCK_N), GROUP_M)
    return row * BLOCK_M, col * BLOCK_N


@gluon.jit
def following(stage, phase, STAGES: gl.constexpr):
    """The next stage, and its phase: the phase changes each time the stages start again."""
    last = stage == STAGES - 1
    return gl.where(last, 0, stage + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def previous(stage, STAGES: gl.constexpr):
    """The stage before, of STAGES in a ring."""
    return gl.where(stage == 0, STAGES - 1, stage - 1)


@gluon.jit
def shared_memory(descriptors, BLOCK_M: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr):
    """Buffers of both consumers and of the producer, and the barriers, as they are to begin.

    Returns ((a, b, out) of the upper and of the lower consumer, (upper a, lower a, b)) and
    (ready, free, turns). Consumers that take turns at whole tiles share the buffers of a.
    """
    a_desc, b_desc, out_desc = descriptors
    ROWS: gl.constexpr = a_desc.block_type.shape[0]
    TURNS: gl.constexpr = BLOCK_M // ROWS == 1
    BUFFERS: gl.constexpr = 2 if PARTS == 4 else 1
    A_SHAPE: gl.constexpr = [STAGES, ROWS, a_desc.block_type.shape[1]]
    B_SHAPE: gl.constexpr = [STAGES, b_desc.block_type.shape[0], b_desc.block_type.shape[1]]
    OUT_SHAPE: gl.constexpr = [BUFFERS, ROWS, out_desc.block_type.shape[1]]
    upper = gl.allocate_shared_memory(a_desc.dtype, A_SHAPE, a_desc.layout)
    if TURNS:
        lower = upper
    else:
        lower = gl.allocate_shared_memory(a_desc.dtype, A_SHAPE, a_desc.layout)
    b_buffers = gl.allocate_shared_memory(b_desc.dtype, B_SHAPE, b_desc.layout)
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
    above = (upper, b_buffers, upper_out)
    below = (lower, b_buffers, lower_out)
    return (above, below, (upper, lower, b_buffers)), (ready, free, turns)


@gluon.jit
def first_turn(steps, STAGES: gl.constexpr, TURNS: gl.constexpr, INDEX: gl.constexpr):
    """First tile of a consumer, the tiles to its next one, and the stage and phase it begins at.

    With TURNS, the second consumer begins `steps` loads after the first one.
    """
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
    return first, stride, stage, phase


@gluon.jit
def after_other(stage, phase, steps, STAGES: gl.constexpr):
    """Stage and phase after the `steps` loads that the other consumer reads for the next tile."""
    ahead = phase * STAGES + stage + steps
    return ahead % STAGES, ahead // STAGES & 1


@gluon.jit
def produce(
    descriptors,
    buffers,
    barriers,
    sizes,
    BLOCKS: gl.constexpr,
    GROUP_M: gl.constexpr,
    COLUMNS: gl.constexpr,
):
    """Load the operands of all tiles of this program, as far ahead as there are stages.

    COLUMNS: the second operand is b[N, K], as float8 needs it, and not b[K, N].
    """
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
        row, col = corner(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        for k in range(0, K, BLOCK_K):
            # A new barrier counts as if the phase before its first one were complete.
            mbarrier.wait(free.index(stage), phase ^ 1)
            arrived = ready.index(stage)
            mbarrier.expect(arrived, LOADS * a_desc.block_type.nbytes + b_desc.block_type.nbytes)
            async_load(a_desc, [row, k], arrived, upper.index(stage))
            if COLUMNS:
                async_load(b_desc, [col, k], arrived, b_buffers.index(stage))
            else:
                async_load(b_desc, [k, col], arrived, b_buffers.index(stage))
            if LOADS == 2:
                async_load(a_desc, [row + ROWS, k], arrived, lower.index(stage))
            stage, phase = following(stage, phase, STAGES)


@gluon.jit
def multiply(
    acc,
    operands,
    barriers,
    stage,
    phase,
    first,
    last,
    BLOCK_K: gl.constexpr,
    COLUMNS: gl.constexpr,
):
    """acc and the products of `first` to `last` of K; the last product is still in flight."""
    a_buffers, b_buffers = operands
    ready, free, _ = barriers
    STAGES: gl.constexpr = a_buffers.type.shape[0]
    for k in range(first, last, BLOCK_K):
        mbarrier.wait(ready.index(stage), phase)
        if COLUMNS:
            b = b_buffers.index(stage).permute((1, 0))
            acc = warpgroup_mma(a_buffers.index(stage), b, acc, use_acc=k > 0, is_async=True)
        else:
            acc = warpgroup_mma(
                a_buffers.index(stage), b_buffers.index(stage), acc, use_acc=k > 0, is_async=True
            )
        # One product stays in flight; the one before it has read its operands.
        acc = warpgroup_mma_wait(1, deps=(acc,))
        mbarrier.arrive(free.index(previous(stage, STAGES)), pred=k > 0)
        stage, phase = following(stage, phase, STAGES)
    return acc, stage, phase


@gluon.jit
def store_part(out_desc, part, out_buffers, row, col, at, BUFFERS: gl.constexpr):
    """Hand a part of a tile over to the tensor memory accelerator, through one of the buffers."""
    store_wait(BUFFERS - 1)
    buffer = out_buffers.index(at % BUFFERS)
    buffer.store(part.to(out_desc.dtype))
    fence_async_shared()
    async_store(out_desc, [row, col], buffer)


@gluon.jit
def halves(values):
    """Left and right half of the columns; both are already in the threads that hold them."""
    ROWS: gl.constexpr = values.shape[0]
    HALF: gl.constexpr = values.shape[1] // 2
    return values.reshape([ROWS, 2, HALF]).permute(0, 2, 1).split()


@gluon.jit
def store_tile(out_desc, acc, out_buffers, row, col, PARTS: gl.constexpr, BUFFERS: gl.constexpr):
    """Store a tile in parts of its columns."""
    COLUMNS: gl.constexpr = out_desc.block_type.shape[1]
    if PARTS == 1:
        store_part(out_desc, acc, out_buffers, row, col, 0, BUFFERS)
    else:
        left, right = halves(acc)
        if PARTS == 2:
            store_part(out_desc, left, out_buffers, row, col, 0, BUFFERS)
            store_part(out_desc, right, out_buffers, row, col + COLUMNS, 1, BUFFERS)
        else:
            first, second = halves(left)
            store_part(out_desc, first, out_buffers, row, col, 0, BUFFERS)
            store_part(out_desc, second, out_buffers, row, col + COLUMNS, 1, BUFFERS)
            third, fourth = halves(right)
            store_part(out_desc, third, out_buffers, row, col + 2 * COLUMNS, 2, BUFFERS)
            store_part(out_desc, fourth, out_buffers, row, col + 3 * COLUMNS, 3, BUFFERS)
