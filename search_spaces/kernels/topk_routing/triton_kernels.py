# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernel of the router: softmax and the largest few of each row of logits, in one read.

Three ways to find them: `argmax` reduces values with their places once for each choice. `packed`
reduces integers that hold a value and its place, so that each step compares one number. `sort` is a
bitonic selection of such integers. All choose the first of equal logits.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _ordered(x):
    """Integers of the width of x in the order of the values: NaN comes last, and no value is the
    least integer."""
    narrow: tl.constexpr = tl.int16 if x.dtype.primitive_bitwidth == 16 else tl.int32
    # The same bits for both zeros, which are equal (-0 + 0 is 0), and for all NaN.
    wide = x.to(tl.float32) + 0.0
    x = tl.where(wide != wide, float("nan"), wide).to(x.dtype)
    return _reversed(x.to(narrow, bitcast=True))


@triton.jit
def _reversed(bits):
    """Bits of floats as `_ordered` integers, and back: negative ones are in reverse order."""
    width: tl.constexpr = bits.dtype.primitive_bitwidth
    return bits ^ ((bits >> (width - 1)) & ((1 << (width - 1)) - 1))


@triton.jit
def _packed(x, expert, EXPERTS: tl.constexpr):
    """Integers in the order of the values, the earlier of equal ones first; the least integer
    beyond the last expert."""
    bits: tl.constexpr = x.dtype.primitive_bitwidth
    wide: tl.constexpr = tl.int32 if bits == 16 else tl.int64
    lowest: tl.constexpr = -(1 << (2 * bits - 1))
    place = (EXPERTS - 1 - expert).to(wide)
    key = (_ordered(x).to(wide) << bits) + place[None, :]
    return tl.where((expert < EXPERTS)[None, :], key, lowest)


@triton.jit
def _unpacked(key, DTYPE: tl.constexpr, EXPERTS: tl.constexpr):
    """The value, in float32, and the place of packed integers."""
    bits: tl.constexpr = DTYPE.primitive_bitwidth
    narrow: tl.constexpr = tl.int16 if bits == 16 else tl.int32
    ordered = _reversed((key >> bits).to(narrow))
    place = (key & ((1 << bits) - 1)).to(tl.int32)
    return ordered.to(DTYPE, bitcast=True).to(tl.float32), EXPERTS - 1 - place


@triton.jit
def _choose(
    x, known, expert, EXPERTS: tl.constexpr, TOP_K: tl.constexpr, BLOCK_K: tl.constexpr,
    METHOD: tl.constexpr,
):  # fmt: skip
    """The largest TOP_K values of each row of x, in float32, and their places; [rows, BLOCK_K]."""
    rows: tl.constexpr = x.shape[0]
    choice = tl.arange(0, BLOCK_K)[None, :]
    if METHOD == "sort":
        keys = tl.topk(_packed(x, expert, EXPERTS), BLOCK_K)
        values, places = _unpacked(keys, x.dtype, EXPERTS)
    elif METHOD == "packed":
        keys = _packed(x, expert, EXPERTS)
        bits: tl.constexpr = x.dtype.primitive_bitwidth
        lowest: tl.constexpr = -(1 << (2 * bits - 1))
        chosen = tl.full((rows, BLOCK_K), lowest, keys.dtype)
        for at in tl.static_range(TOP_K):
            best = tl.max(keys, 1)[:, None]
            chosen = tl.where(choice == at, best, chosen)
            keys = tl.where(keys == best, lowest, keys)
        values, places = _unpacked(chosen, x.dtype, EXPERTS)
    else:
        # As integers, since -inf would be equal to what is taken and to what is no expert.
        lowest: tl.constexpr = -(1 << 31)
        ordered = tl.where(known, _ordered(x.to(tl.float32)), lowest)
        chosen = tl.full((rows, BLOCK_K), lowest, tl.int32)
        places = tl.zeros((rows, BLOCK_K), tl.int32)
        for at in tl.static_range(TOP_K):
            most, place = tl.max(ordered, 1, return_indices=True)
            chosen = tl.where(choice == at, most[:, None], chosen)
            places = tl.where(choice == at, place[:, None], places)
            ordered = tl.where(expert[None, :] == place[:, None], lowest, ordered)
        values = _reversed(chosen).to(tl.float32, bitcast=True)
    return values, places


@triton.jit
def _route(
    logits_ptr, weights_ptr, ids_ptr, block, tokens, EXPERTS: tl.constexpr, BLOCK_E: tl.constexpr,
    TOP_K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_T: tl.constexpr, RENORMALIZE: tl.constexpr,
    METHOD: tl.constexpr,
):  # fmt: skip
    """Route one block of tokens."""
    token = block * BLOCK_T + tl.arange(0, BLOCK_T)
    expert = tl.arange(0, BLOCK_E)
    inside = (token < tokens)[:, None]
    row = token.to(tl.int64)[:, None]
    known = (expert < EXPERTS)[None, :]
    # Beyond the last token all logits are 0, so that nothing is NaN.
    x = tl.load(logits_ptr + row * EXPERTS + expert[None, :], inside & known, 0.0)
    wide = tl.where(known, x.to(tl.float32), float("-inf"))
    values, places = _choose(x, known, expert, EXPERTS, TOP_K, BLOCK_K, METHOD)
    choice = tl.arange(0, BLOCK_K)[None, :]
    values = tl.where(choice < TOP_K, values, float("-inf"))
    top = tl.max(values, 1)[:, None]
    weights = tl.exp2((values - top) * LOG2E)
    shares = weights if RENORMALIZE else tl.exp2((wide - top) * LOG2E)
    weights = weights / tl.sum(shares, 1)[:, None]
    out = row * TOP_K + choice
    written = inside & (choice < TOP_K)
    tl.store(weights_ptr + out, weights, written)
    tl.store(ids_ptr + out, places, written)


@triton.jit
def topk_routing_kernel(
    logits_ptr, weights_ptr, ids_ptr, tokens, EXPERTS: tl.constexpr, BLOCK_E: tl.constexpr,
    TOP_K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_T: tl.constexpr, RENORMALIZE: tl.constexpr,
    METHOD: tl.constexpr, LOOP: tl.constexpr,
):  # fmt: skip
    """Weights [tokens, TOP_K] in float32 and places [tokens, TOP_K] in int32 of the largest logits.

    logits are [tokens, EXPERTS], where NaN is the largest; weights are their softmax, with
    RENORMALIZE divided by their sum. A program takes BLOCK_T tokens, with LOOP several times, the
    grid apart.
    """
    blocks = tl.cdiv(tokens, BLOCK_T)
    if LOOP:
        for block in tl.range(tl.program_id(0), blocks, tl.num_programs(0)):
            _route(
                logits_ptr, weights_ptr, ids_ptr, block, tokens, EXPERTS, BLOCK_E, TOP_K, BLOCK_K,
                BLOCK_T, RENORMALIZE, METHOD,
            )  # fmt: skip
    else:
        _route(
            logits_ptr, weights_ptr, ids_ptr, tl.program_id(0), tokens, EXPERTS, BLOCK_E, TOP_K,
            BLOCK_K, BLOCK_T, RENORMALIZE, METHOD,
        )  # fmt: skip
