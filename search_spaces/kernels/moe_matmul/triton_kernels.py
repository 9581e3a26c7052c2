# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
"""Triton kernel of the products of a mixture-of-experts layer.

Its slots, their order and the parameters' names are those of `triton_slots`.
"""

import triton
import triton.language as tl

from search_spaces.kernels.jitted_tiles import tile_at
from search_spaces.kernels.moe_matmul.triton_slots import columns_of, slots_of, store_slots


@triton.jit
def moe_matmul_kernel(
    x_ptr, w_ptr, weight_ptr, out_ptr, order_ptr, expert_ptr, blocks, N, K, slots,
    SHARE: tl.constexpr, BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr, EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr, ALIGN_N: tl.constexpr, ALIGN_K: tl.constexpr, WEIGHTED: tl.constexpr,
    SILU: tl.constexpr,
):  # fmt: skip
    """out[s] = x[s // SHARE] @ w[e].T of BLOCK_SIZE_M slots s and their expert e, one tile each.

    x is [rows, K], out [slots, N], both contiguous; w is [experts, N, K], with SILU [experts, 2 N,
    K] of gates and then values: out = silu(x @ gate.T) * (x @ value.T). With WEIGHTED, out[s] is
    multiplied by weight[s]. order: the slots of each block, `slots` where there is none. expert:
    of each block, -1 where it has no slot. N and K are multiples of ALIGN_N and ALIGN_K.
    """
    # Dividing and multiplying tells the compiler what it cannot see of an argument: its divisors.
    N = N // ALIGN_N * ALIGN_N
    K = K // ALIGN_K * ALIGN_K
    block, tile_n = tile_at(tl.program_id(0), blocks, tl.cdiv(N, BLOCK_SIZE_N), GROUP_SIZE_M)
    expert = tl.load(expert_ptr + block).to(tl.int64)
    if expert < 0:
        return
    slot, used = slots_of(order_ptr, block, slots, BLOCK_SIZE_M)
    col, w_row = columns_of(tile_n, N, BLOCK_SIZE_N, EVEN_N)
    k = tl.arange(0, BLOCK_SIZE_K)
    factors: tl.constexpr = 2 if SILU else 1
    x_ptrs = x_ptr + ((slot // SHARE).to(tl.int64) * K)[:, None] + k[None, :]
    w_ptrs = w_ptr + expert * (N * K * factors) + (w_row * K)[None, :] + k[:, None]

    acc = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), tl.float32)
    value = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), tl.float32) if SILU else acc
    for step in tl.range(0, tl.cdiv(K, BLOCK_SIZE_K)):
        if EVEN_K:
            x = tl.load(x_ptrs, used[:, None], 0.0)
            w = tl.load(w_ptrs)
            v = tl.load(w_ptrs + N * K) if SILU else w
        else:
            in_k = k < K - step * BLOCK_SIZE_K
            x = tl.load(x_ptrs, used[:, None] & in_k[None, :], 0.0)
            w = tl.load(w_ptrs, in_k[:, None], 0.0)
            v = tl.load(w_ptrs + N * K, in_k[:, None], 0.0) if SILU else w
        acc = tl.dot(x, w, acc)
        if SILU:
            value = tl.dot(x, v, value)
        x_ptrs += BLOCK_SIZE_K
        w_ptrs += BLOCK_SIZE_K

    if SILU:
        acc = acc * tl.sigmoid(acc) * value
    store_slots(out_ptr, weight_ptr, acc, slot, used, col, N, EVEN_N, WEIGHTED)
