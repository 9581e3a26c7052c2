"""The rotary embedding of heads as models have them: transposed, or parts of one projection.

The kernels of tables take contiguous tensors. These take any distances of tokens and heads, in the
backward pass too, where the gradients of attention are transposed.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import torch

from search_spaces.kernels.rotary.triton_strided import strided_rotary_kernel
from tuner.ops.problem import FLOATS
from tuner.ops.small_launches import SmallLaunch

_BLOCK_T = 8
_rotate = SmallLaunch(strided_rotary_kernel, num_warps=2)


def rotation_of_torch(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """q and k, each rotated by the angles of its position."""
    cos, sin = cos[:, None], sin[:, None]

    def rotate(x: torch.Tensor) -> torch.Tensor:
        a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
        parts = (a * cos - b * sin, b * cos + a * sin)
        return torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)

    return rotate(q), rotate(k)


def takes_strides(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> bool:
    """Whether the kernel takes these plain tensors, of which one is not contiguous."""
    given = (q, k, cos, sin)
    if q.ndim != 3 or k.ndim != 3 or k.shape[::2] != q.shape[::2] or q.dtype not in FLOATS:
        return False
    tokens, _, dim = q.shape
    half = dim // 2
    if dim % 2 or half & (half - 1) or cos.shape != (tokens, half) or sin.shape != cos.shape:
        return False
    if any(each.dtype != q.dtype or each.device != q.device or not each.numel() for each in given):
        return False
    apart = any(not each.is_contiguous() for each in given)
    return apart and all(each.stride(-1) == 1 for each in given)


class StridedRotary(torch.autograd.Function):
    """q and k rotated, back: by the opposite angles; its gradient is the rotation the other way."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
        interleaved: bool, back: bool,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        ctx.save_for_backward(cos, sin)
        ctx.interleaved, ctx.back = interleaved, back
        tokens, q_heads, dim = q.shape
        k_heads = k.shape[1]
        found = q.new_empty(q.shape), k.new_empty(k.shape)
        strides = (*q.stride()[:2], *k.stride()[:2], cos.stride(0), sin.stride(0))
        constants = {"Q_HEADS": q_heads, "K_HEADS": k_heads, "HALF": dim // 2}
        constants |= {"BLOCK_T": _BLOCK_T, "ALIGN": gcd(16, *strides)}
        constants |= {"INTERLEAVED": interleaved, "BACK": back}
        programs = -(-tokens // _BLOCK_T) * (q_heads + k_heads)
        if _rotate(programs, [q, k, cos, sin, *found, tokens, *strides], constants):
            return found
        return rotation_of_torch(q, k, cos, -sin if back else sin, interleaved)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        cos, sin = ctx.saved_tensors
        q, k = (each if each.stride(-1) == 1 else each.contiguous() for each in grads)
        found = StridedRotary.apply(q, k, cos, sin, ctx.interleaved, not ctx.back)  # type: ignore[no-untyped-call]
        return *found, *[None] * 4
