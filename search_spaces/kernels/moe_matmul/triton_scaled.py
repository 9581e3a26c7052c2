# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
"""Triton kernel of the mixture-of-experts products of codes with scales.

Its slots, their order and the parameters' names are those of `triton_slots`, and the scales those
of vLLM's fused_moe kernel, whose tables fit.
"""

import triton
import triton.language as tl

from search_spaces.kernels.jitted_tiles import tile_at
from search_spaces.kernels.moe_matmul.triton_slots import columns_of, slots_of, store_slots


@triton.jit
def scaled_moe_matmul_kernel(
    x_ptr, w_ptr, x_scale_ptr, w_scale_ptr, weight_ptr, out_ptr, order_ptr, expert_ptr, blocks, N,
    K, slots, SHARE: tl.constexpr, BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr, EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr, ALIGN_N: tl.constexpr, ALIGN_K: tl.constexpr, WEIGHTED: tl.constexpr,
    SCALES: tl.constexpr,
):  # fmt: skip
    """out[s] = x[s // SHARE] @ w[e].T of BLOCK_SIZE_M slots s and their expert e, one tile each.

    x, w, out, order, expert, weight, N and K are those of `moe_matmul_kernel`. SCALES:
    `fp8_block128` has x_scale[rows, K / 128] and w_scale[experts, N / 128, K / 128], rounded up;
    `fp8_tensor` has x_scale[1] and w_scale[experts]; `int8_channel` has w_scale[experts, N].
    """
    N = N // ALIGN_N * ALIGN_N
    K = K // ALIGN_K * ALIGN_K
    block, tile_n = tile_at(tl.program_id(0), blocks, tl.cdiv(N, BLOCK_SIZE_N), GROUP_SIZE_M)
    expert = tl.load(expert_ptr + block).to(tl.int64)
    if expert < 0:
        return
    slot, used = slots_of(order_ptr, block, slots, BLOCK_SIZE_M)
    row = (slot // SHARE).to(tl.int64)
    col, w_row = columns_of(tile_n, N, BLOCK_SIZE_N, EVEN_N)
    k = tl.arange(0, BLOCK_SIZE_K)
    x_ptrs = x_ptr + (row * K)[:, None] + k[None, :]
    w_ptrs = w_ptr + expert * (N * K) + (w_row * K)[None, :] + k[:, None]
    groups = tl.cdiv(K, 128)
    if SCALES == "fp8_block128":
        x_scale_ptrs = x_scale_ptr + row * groups
        w_scale_ptrs = w_scale_ptr + (expert * tl.cdiv(N, 128) + w_row // 128) * groups

    acc = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), tl.float32)
    for step in tl.range(0, tl.cdiv(K, BLOCK_SIZE_K)):
        if EVEN_K:
            x = tl.load(x_ptrs, used[:, None], 0.0)
            w = tl.load(w_ptrs)
        else:
            in_k = k < K - step * BLOCK_SIZE_K
            x = tl.load(x_ptrs, used[:, None] & in_k[None, :], 0.0)
            w = tl.load(w_ptrs, in_k[:, None], 0.0)
        if SCALES == "fp8_block128":
            group = step * BLOCK_SIZE_K // 128
            x_scale = tl.load(x_scale_ptrs + group, used, 0.0)
            w_scale = tl.load(w_scale_ptrs + group)
            acc += tl.dot(x, w) * x_scale[:, None] * w_scale[None, :]
        else:
            # Triton's interpreter converts int8 to bfloat16 wrongly, but not by way of float32.
            w = w.to(tl.float32).to(x.dtype) if SCALES == "int8_channel" else w
            acc = tl.dot(x, w, acc)
        x_ptrs += BLOCK_SIZE_K
        w_ptrs += BLOCK_SIZE_K

    if SCALES == "fp8_tensor":
        acc = acc * (tl.load(x_scale_ptr) * tl.load(w_scale_ptr + expert))
    if SCALES == "int8_channel":
        acc = acc * tl.load(w_scale_ptr + expert * N + w_row)[None, :]
    store_slots(out_ptr, weight_ptr, acc, slot, used, col, N, EVEN_N, WEIGHTED)
