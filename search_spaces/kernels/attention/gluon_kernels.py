# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, RUF059
"""Gluon kernel of the attention family for Hopper: warps that load feed warps that compute.

The scheme is that of FlashAttention-3 (Shah et al., 2024): one warp loads queries, keys and values
by TMA into rings in shared memory; each consumer, a warp group of its own, multiplies 64 queries by
wgmma and takes the softmax of one block of keys while the tensor cores work for another block or
another consumer. Registers move from the loading warp to the consumers. The vocabulary of Gluon is
that of Triton's tutorials (python/tutorials/gluon/05-wgmma.py, 08-warp-specialization.py).

Barriers come in pairs: `full` is passed when a slot holds its data, `empty` when all consumers have
read it. A new mbarrier stands as after an odd phase, so a wait for parity 1 passes at once.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from search_spaces.kernels.hopper_copies import async_load, async_store, store_wait

#: Queries of one consumer: the rows of one wgmma of a warp group.
ROWS = gl.constexpr(64)


@gluon.jit
def _tile(index, S, TILE: gl.constexpr, CAUSAL: gl.constexpr):
    """The head and the first query of a tile: head by head, the longest first where CAUSAL."""
    blocks = gl.cdiv(S, TILE)
    head, block = index // blocks, index % blocks
    if CAUSAL:
        block = blocks - 1 - block
    return head, block * TILE


@gluon.jit
def _key_blocks(row, S, TILE: gl.constexpr, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr):
    """Blocks of keys that any query of the tile from `row` sees."""
    last = S
    if CAUSAL:
        last = gl.minimum(row + TILE, S)
    return gl.cdiv(last, BLOCK_N)


@gluon.jit
def _nth_tile(turn):
    """The tile of a program's turn: every second round runs backwards, to even out lengths."""
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    back = programs - 1 - program
    return turn * programs + gl.where(turn % 2 == 0, program, back)


@gluon.jit
def _produce(descriptors, rings, barriers, heads, S, turns, settings: gl.constexpr):
    """Load the queries of each consumer, then blocks of keys and values by turns."""
    q_source, k_source, v_source, out = descriptors
    q_ring, k_ring, v_ring = rings
    q_full, q_empty, k_full, k_empty, v_full, v_empty, order = barriers
    BLOCK_N: gl.constexpr = settings[0]
    CONSUMERS: gl.constexpr = settings[1]
    STAGES: gl.constexpr = settings[2]
    CAUSAL: gl.constexpr = settings[3]
    HEAD_DIM: gl.constexpr = settings[4]
    TILE: gl.constexpr = ROWS * CONSUMERS
    tiles = heads * gl.cdiv(S, TILE)
    block = 0
    for turn in range(turns):
        index = _nth_tile(turn)
        if index < tiles:
            head, row = _tile(index, S, TILE, CAUSAL)
            for at in gl.static_range(CONSUMERS):
                mbarrier.wait(q_empty.index(at), (turn & 1) ^ 1)
                mbarrier.expect(q_full.index(at), ROWS * HEAD_DIM * 2)
                async_load(q_source, [head, row + at * ROWS, 0], q_full.index(at), q_ring.index(at))
            for n in range(_key_blocks(row, S, TILE, BLOCK_N, CAUSAL)):
                slot = block % STAGES
                parity = (block // STAGES & 1) ^ 1
                mbarrier.wait(k_empty.index(slot), parity)
                mbarrier.expect(k_full.index(slot), BLOCK_N * HEAD_DIM * 2)
                async_load(k_source, [head, n * BLOCK_N, 0], k_full.index(slot), k_ring.index(slot))
                mbarrier.wait(v_empty.index(slot), parity)
                mbarrier.expect(v_full.index(slot), BLOCK_N * HEAD_DIM * 2)
                async_load(v_source, [head, n * BLOCK_N, 0], v_full.index(slot), v_ring.index(slot))
                block += 1


@gluon.jit
def _hide(scores, row, start, S, CAUSAL: gl.constexpr, layout: gl.constexpr):
    """Scores with minus infinity for keys beyond the last and, where CAUSAL, after the query."""
    keys = start + gl.arange(0, scores.shape[1], gl.SliceLayout(0, layout))
    if CAUSAL:
        queries = row + gl.arange(0, scores.shape[0], gl.SliceLayout(1, layout))
        seen = queries[:, None] >= keys[None, :]
        scores = gl.where(seen, scores, float("-inf"))
    return gl.where((keys < S)[None, :], scores, float("-inf"))


@gluon.jit
def _weigh(scores, peak, total, scale, p_layout: gl.constexpr, dtype: gl.constexpr):
    """Weights of a block as an operand, the factor of earlier sums, and the new peak and total."""
    higher = gl.maximum(peak, gl.max(scores, 1))
    offset = higher * scale
    shrink = gl.exp2(peak * scale - offset)
    weights = gl.exp2(scores * scale - offset[:, None])
    total = total * shrink + gl.sum(weights, 1)
    return gl.convert_layout(weights.to(dtype), p_layout), shrink, higher, total


@gluon.jit
def _await_turn(order, block, me: gl.constexpr):
    """Wait until the consumer before has issued its products of this block, or of the one before
    for the first consumer."""
    if me == 0:
        mbarrier.wait(order.index(me), (block & 1) ^ 1)
    else:
        mbarrier.wait(order.index(me), block & 1)


@gluon.jit
def _attend(
    q,
    p,
    acc,
    peak,
    total,
    k_ring,
    v_ring,
    barriers,
    block,
    first,
    last,
    row,
    S,
    scale,
    me: gl.constexpr,
    MASKED: gl.constexpr,
    settings: gl.constexpr,
):
    """Blocks first .. last of keys: scores of a block overlap the values of the block before it.

    `block` counts the blocks that this consumer has seen before `first`, over all tiles.
    """
    q_full, q_empty, k_full, k_empty, v_full, v_empty, order = barriers
    BLOCK_N: gl.constexpr = settings[0]
    CONSUMERS: gl.constexpr = settings[1]
    STAGES: gl.constexpr = settings[2]
    CAUSAL: gl.constexpr = settings[3]
    TAKE_TURNS: gl.constexpr = settings[5]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    p_layout: gl.constexpr = p.type.layout
    for n in range(first, last):
        slot = block % STAGES
        parity = block // STAGES & 1
        before = (block - 1) % STAGES
        before_parity = (block - 1) // STAGES & 1
        k = k_ring.index(slot).reshape([BLOCK_N, q.shape[1]])
        v = v_ring.index(before).reshape([BLOCK_N, q.shape[1]])
        scores = gl.zeros([ROWS, BLOCK_N], gl.float32, s_layout)
        mbarrier.wait(k_full.index(slot), parity)
        if TAKE_TURNS:
            _await_turn(order, block, me)
        scores = warpgroup_mma(q, k.permute([1, 0]), scores, use_acc=False, is_async=True)
        mbarrier.wait(v_full.index(before), before_parity)
        acc = warpgroup_mma(p, v, acc, is_async=True)
        if TAKE_TURNS:
            mbarrier.arrive(order.index((me + 1) % CONSUMERS), count=1)
        scores = warpgroup_mma_wait(1, deps=[scores])
        mbarrier.arrive(k_empty.index(slot), count=1)
        if MASKED:
            scores = _hide(scores, row, n * BLOCK_N, S, CAUSAL, s_layout)
        new, shrink, peak, total = _weigh(scores, peak, total, scale, p_layout, p.dtype)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(v_empty.index(before), count=1)
        acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, acc.type.layout))[:, None]
        p = new
        block += 1
    return p, acc, peak, total, block


@gluon.jit
def _consume(
    descriptors, rings, barriers, heads, S, turns, scale, me: gl.constexpr, settings: gl.constexpr
):
    """The outputs of 64 queries of each tile, from row 64 * me of the tile."""
    q_source, k_source, v_source, out = descriptors
    q_ring, k_ring, v_ring = rings
    q_full, q_empty, k_full, k_empty, v_full, v_empty, order = barriers
    BLOCK_N: gl.constexpr = settings[0]
    CONSUMERS: gl.constexpr = settings[1]
    STAGES: gl.constexpr = settings[2]
    CAUSAL: gl.constexpr = settings[3]
    HEAD_DIM: gl.constexpr = settings[4]
    TAKE_TURNS: gl.constexpr = settings[5]
    TILE: gl.constexpr = ROWS * CONSUMERS
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    row_layout: gl.constexpr = gl.SliceLayout(1, s_layout)
    tiles = heads * gl.cdiv(S, TILE)
    block = 0
    for turn in range(turns):
        index = _nth_tile(turn)
        if index < tiles:
            head, tile_row = _tile(index, S, TILE, CAUSAL)
            row = tile_row + me * ROWS
            last = _key_blocks(tile_row, S, TILE, BLOCK_N, CAUSAL)
            whole = S // BLOCK_N
            if CAUSAL:
                whole = gl.minimum(whole, (row + 1) // BLOCK_N)
            whole = gl.maximum(whole, 1)
            mbarrier.wait(q_full.index(me), turn & 1)
            q = q_ring.index(me).reshape([ROWS, HEAD_DIM])
            peak = gl.full([ROWS], float("-inf"), gl.float32, row_layout)
            total = gl.zeros([ROWS], gl.float32, row_layout)
            acc = gl.zeros([ROWS, HEAD_DIM], gl.float32, o_layout)
            # The first block alone: every query sees its first key, so no peak stays infinite.
            slot = block % STAGES
            k = k_ring.index(slot).reshape([BLOCK_N, HEAD_DIM])
            mbarrier.wait(k_full.index(slot), block // STAGES & 1)
            scores = gl.zeros([ROWS, BLOCK_N], gl.float32, s_layout)
            if TAKE_TURNS:
                _await_turn(order, block, me)
            scores = warpgroup_mma(q, k.permute([1, 0]), scores, use_acc=False, is_async=True)
            if TAKE_TURNS:
                mbarrier.arrive(order.index((me + 1) % CONSUMERS), count=1)
            scores = warpgroup_mma_wait(0, deps=[scores])
            mbarrier.arrive(k_empty.index(slot), count=1)
            scores = _hide(scores, row, 0, S, CAUSAL, s_layout)
            p, shrink, peak, total = _weigh(scores, peak, total, scale, p_layout, out.dtype)
            block += 1
            p, acc, peak, total, block = _attend(
                q, p, acc, peak, total, k_ring, v_ring, barriers, block, 1, whole, row, S, scale,
                me, False, settings)  # fmt: skip
            p, acc, peak, total, block = _attend(
                q, p, acc, peak, total, k_ring, v_ring, barriers, block, whole, last, row, S, scale,
                me, True, settings)  # fmt: skip
            slot = (block - 1) % STAGES
            v = v_ring.index(slot).reshape([BLOCK_N, HEAD_DIM])
            mbarrier.wait(v_full.index(slot), (block - 1) // STAGES & 1)
            acc = warpgroup_mma(p, v, acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(v_empty.index(slot), count=1)
            # The queries are read: their slot takes the outputs on the way to memory.
            share = gl.convert_layout(1.0 / total, gl.SliceLayout(1, o_layout))
            q.store((acc * share[:, None]).to(out.dtype))
            fence_async_shared()
            async_store(out, [head, row, 0], q_ring.index(me))
            store_wait(0)
            mbarrier.arrive(q_empty.index(me), count=1)


@gluon.jit(do_not_specialize=["heads", "S"])
def attention_hopper(
    q_source,
    k_source,
    v_source,
    out,
    heads,
    S,
    scale,
    turns,
    BLOCK_N: gl.constexpr,
    CONSUMERS: gl.constexpr,
    STAGES: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    CAUSAL: gl.constexpr,
    TAKE_TURNS: gl.constexpr,
    REGISTERS: gl.constexpr,
):
    """out = softmax(q @ k.T * scale / log2(e)) @ v, in tiles of 64 queries for each consumer.

    q, k, v and out are descriptors of contiguous [heads, S, HEAD_DIM], of blocks of 64 queries and
    BLOCK_N keys. A program takes `turns` tiles at most. With TAKE_TURNS, one consumer issues its
    products while the other takes its softmax. REGISTERS are those of a consumer's thread.
    """
    settings: gl.constexpr = (
        BLOCK_N, CONSUMERS, STAGES, CAUSAL, HEAD_DIM, TAKE_TURNS)  # fmt: skip
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    q_ring = gl.allocate_shared_memory(
        q_source.dtype, [CONSUMERS, 1, ROWS, HEAD_DIM], q_source.layout
    )
    k_ring = gl.allocate_shared_memory(
        q_source.dtype, [STAGES, 1, BLOCK_N, HEAD_DIM], k_source.layout
    )
    v_ring = gl.allocate_shared_memory(
        q_source.dtype, [STAGES, 1, BLOCK_N, HEAD_DIM], v_source.layout
    )
    q_full = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], barrier)
    q_empty = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], barrier)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    order = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], barrier)
    for at in gl.static_range(CONSUMERS):
        mbarrier.init(q_full.index(at), count=1)
        mbarrier.init(q_empty.index(at), count=1)
        mbarrier.init(order.index(at), count=1)
    for at in gl.static_range(STAGES):
        mbarrier.init(k_full.index(at), count=1)
        mbarrier.init(v_full.index(at), count=1)
        mbarrier.init(k_empty.index(at), count=CONSUMERS)
        mbarrier.init(v_empty.index(at), count=CONSUMERS)
    sources = (q_source, k_source, v_source, out)
    rings = (q_ring, k_ring, v_ring)
    barriers = (q_full, q_empty, k_full, k_empty, v_full, v_empty, order)
    # fmt: off
    if CONSUMERS == 1:
        gl.warp_specialize([
            (_consume, (sources, rings, barriers, heads, S, turns, scale, 0, settings)),
            (_produce, (sources, rings, barriers, heads, S, turns, settings)),
        ], [1], [24])
    elif CONSUMERS == 2:
        gl.warp_specialize([
            (_consume, (sources, rings, barriers, heads, S, turns, scale, 0, settings)),
            (_consume, (sources, rings, barriers, heads, S, turns, scale, 1, settings)),
            (_produce, (sources, rings, barriers, heads, S, turns, settings)),
        ], [4, 1], [REGISTERS, 24])
    else:
        gl.warp_specialize([
            (_consume, (sources, rings, barriers, heads, S, turns, scale, 0, settings)),
            (_consume, (sources, rings, barriers, heads, S, turns, scale, 1, settings)),
            (_consume, (sources, rings, barriers, heads, S, turns, scale, 2, settings)),
            (_produce, (sources, rings, barriers, heads, S, turns, settings)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])
    # fmt: on
