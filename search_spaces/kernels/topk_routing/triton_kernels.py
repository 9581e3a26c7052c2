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
def _packed(x, expert, EXPERTS: tl.constexpr):
    """Integers in the order of the values, the earlier of equal ones first; the least integer
    beyond the last expert."""
    bits: tl.constexpr = x.dtype.primitive_bitwidth
    if bits == 16:
        narrow: tl.constexpr = tl.int16
        wide: tl.constexpr = tl.int32
    else:
        narrow: tl.constexpr = tl.int32
        wide: tl.constexpr = tl.int64
    lowest: tl.constexpr = -(1 << (2 * bits - 1))
    # The same bits for both zeros, which are equal.
    x = tl.where(x.to(tl.float32) == 0.0, 0.0, x).to(x.dtype)
    ordered = x.to(narrow, bitcast=True)
    # Negative numbers are in reverse order of their bits.
    ordered = tl.where(ordered < 0, ordered ^ ((1 << (bits - 1)) - 1), ordered)
    place = (EXPERTS - 1 - expert).to(wide)
    key = (ordered.to(wide) << bits) + place[None, :]
    return tl.where((expert < EXPERTS)[None, :], key, lowest)


@triton.jit
def _unpacked(key, DTYPE: tl.constexpr, EXPERTS: tl.constexpr):
    """The value, in float32, and the place of packed integers."""
    bits: tl.constexpr = DTYPE.primitive_bitwidth
    narrow: tl.constexpr = tl.int16 if bits == 16 else tl.int32
    ordered = (key >> bits).to(narrow)
    ordered = tl.where(ordered < 0, ordered ^ ((1 << (bits - 1)) - 1), ordered)
    place = (key & ((1 << bits) - 1)).to(tl.int32)
    return ordered.to(DTYPE, bitcast=True).to(tl.float32), EXPERTS - 1 - place


@triton.jit
def _choose(
    x, wide, expert, EXPERTS: tl.constexpr, TOP_K: tl.constexpr, BLOCK_K: tl.constexpr,
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
        values = tl.full((rows, BLOCK_K), float("-inf"), tl.float32)
        places = tl.zeros((rows, BLOCK_K), tl.int32)
        for at in tl.static_range(TOP_K):
            value, place = tl.max(wide, 1, return_indices=True)
            values = tl.where(choice == at, value[:, None], values)
            places = tl.where(choice == at, place[:, None], places)
            wide = tl.where(expert[None, :] == place[:, None], float("-inf"), wide)
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
    values, places = _choose(x, wide, expert, EXPERTS, TOP_K, BLOCK_K, METHOD)
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

    logits are [tokens, EXPERTS], finite; weights are their softmax, with RENORMALIZE divided by
    their sum. A program takes BLOCK_T tokens, with LOOP several times, the grid apart.
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
