"""torch's gradients of attention, as baselines.

q, out and dout are [batch, q_heads, sequence, head_dim], k and v [batch, kv_heads, sequence,
head_dim]; lse[batch, q_heads, sequence] are the natural logarithms of the softmax's sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt
from typing import TYPE_CHECKING

from search_spaces.kernels.torch_attention import require_cuda
from search_spaces.tensors import Tensors, compiled, named

if TYPE_CHECKING:
    import torch

    Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

NAMES = ("q", "k", "v", "out", "dout", "lse")
OUTPUTS = ("dq", "dk", "dv")


def gradient_baselines(causal: bool) -> Mapping[str, Callable[[Tensors], Tensors]]:
    """The formulas in float32 (`eager`, `compile`), and what autograd calls behind torch's
    attention: FlashAttention's backward (`flash`) and cuDNN's (`vendor`)."""

    def explicit(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        dout: torch.Tensor,
        lse: torch.Tensor,
    ) -> Gradients:
        import torch

        kv_heads, scale = k.shape[1], 1 / sqrt(q.shape[-1])
        group = q.shape[1] // kv_heads
        q32, k32, v32, out32, dout32 = (tensor.float() for tensor in (q, k, v, out, dout))
        k32, v32 = (tensor.repeat_interleave(group, 1) for tensor in (k32, v32))
        scores = q32 @ k32.transpose(-1, -2) * scale
        if causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
            scores = scores.masked_fill(~seen, float("-inf"))
        weights = torch.exp(scores - lse[..., None])
        delta = (out32 * dout32).sum(-1, keepdim=True)
        slopes = weights * (dout32 @ v32.transpose(-1, -2) - delta) * scale
        dk, dv = slopes.transpose(-1, -2) @ q32, weights.transpose(-1, -2) @ dout32
        dk, dv = (each.view(-1, kv_heads, group, *each.shape[2:]).sum(2) for each in (dk, dv))
        return (slopes @ k32).to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)

    return {
        "eager": named(OUTPUTS, explicit, *NAMES),
        "compile": named(OUTPUTS, compiled(explicit), *NAMES),
        "flash": named(OUTPUTS, _Flash(causal), *NAMES),
        "vendor": named(OUTPUTS, _Cudnn(causal), *NAMES),
    }


class _Flash:
    """FlashAttention's backward as torch has it, or a `RuntimeError`."""

    def __init__(self, causal: bool) -> None:
        self._causal = causal

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        dout: torch.Tensor,
        lse: torch.Tensor,
    ) -> Gradients:
        import torch

        require_cuda("flash attention", q)
        size = q.shape[2]
        # The state of a dropout that is not used.
        seed = torch.zeros(2, dtype=torch.uint64, device=q.device)
        found: Gradients = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            dout, q, k, v, out, lse, None, None, size, size, 0.0, self._causal, seed,
            torch.empty(0, dtype=torch.uint64, device=q.device),
        )  # fmt: skip
        return found


class _Cudnn:
    """cuDNN's backward as torch calls it, or a `RuntimeError`."""

    def __init__(self, causal: bool) -> None:
        self._causal = causal

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        dout: torch.Tensor,
        lse: torch.Tensor,
    ) -> Gradients:
        import torch

        require_cuda("cuDNN's attention", q)
        size = q.shape[2]
        seed, offset = (torch.zeros((), dtype=torch.int64, device=q.device) for _ in range(2))
        found: Gradients = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            dout, q, k, v, out, lse[..., None], seed, offset, None, None, None, size, size, 0.0,
            self._causal,
        )  # fmt: skip
        return found
