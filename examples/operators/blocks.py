"""A block of Llama and one of DiT, whose operations come from one namespace.

The same layers run on `OPS` (tuner.ops), on `TORCH`, or on any other functions of these names, so
that a model takes the operators by one line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tuner import ops


def _rotate(q: Any, k: Any, cos: Any, sin: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Both rotated as Llama does it; cos and sin are [tokens, dim / 2]."""
    cos, sin = cos[:, None], sin[:, None]

    def rotate(x: torch.Tensor) -> torch.Tensor:
        one, other = x.chunk(2, -1)
        return torch.cat((one * cos - other * sin, other * cos + one * sin), -1)

    return rotate(q), rotate(k)


def _add_rms_norm(x: Any, residual: Any, weight: Any, eps: float) -> tuple[torch.Tensor, ...]:
    total = x + residual
    return functional.rms_norm(total, (x.shape[-1],), weight, eps), total


def _swiglu(x: torch.Tensor) -> torch.Tensor:
    gate, value = x.chunk(2, -1)
    return functional.silu(gate) * value


def _attention(q: Any, k: Any, v: Any, causal: bool) -> torch.Tensor:
    return functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
    )


def _linear(x: Any, weight: Any, bias: Any = None, activation: str = "none") -> torch.Tensor:
    found = functional.linear(x, weight, bias)
    if activation == "swiglu":
        return _swiglu(found)
    return functional.gelu(found) if activation == "gelu" else found


@dataclass(frozen=True)
class Operations:
    """What the blocks call."""

    rms_norm: Callable[..., Any]
    add_rms_norm: Callable[..., Any]
    layer_norm: Callable[..., Any]
    linear: Callable[..., Any]
    attention: Callable[..., Any]
    rotary: Callable[..., Any]
    swiglu: Callable[..., Any]


OPS = Operations(
    lambda x, weight, eps: ops.rms_norm(x, (x.shape[-1],), weight, eps),
    ops.add_rms_norm,
    ops.layer_norm,
    ops.linear,
    lambda q, k, v, causal: ops.attention(
        q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
    ),
    ops.rotary,
    ops.swiglu,
)
TORCH = Operations(
    lambda x, weight, eps: functional.rms_norm(x, (x.shape[-1],), weight, eps),
    _add_rms_norm,
    functional.layer_norm,
    _linear,
    _attention,
    _rotate,
    _swiglu,
)


class LlamaBlock(nn.Module):
    """One layer of Llama 3: attention of grouped heads and a gated feed-forward layer.

    x[batch, tokens, dim] -> the same shape. The sizes of the 8B model by default.
    """

    def __init__(
        self,
        operations: Operations,
        dim: int = 4096,
        heads: int = 32,
        kv_heads: int = 8,
        inner: int = 14336,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.do, self.eps = operations, eps
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        rows = (heads + 2 * kv_heads) * self.head_dim
        self.before = nn.Parameter(torch.ones(dim))
        self.between = nn.Parameter(torch.ones(dim))
        self.qkv = nn.Parameter(torch.randn(rows, dim) / dim**0.5)
        self.out = nn.Parameter(torch.randn(dim, dim) / dim**0.5)
        self.gate_up = nn.Parameter(torch.randn(2 * inner, dim) / dim**0.5)
        self.down = nn.Parameter(torch.randn(dim, inner) / inner**0.5)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """cos, sin: [batch * tokens, head_dim / 2], of the dtype of x."""
        do, (batch, tokens, dim) = self.do, x.shape
        normed = do.rms_norm(x, self.before, self.eps)
        parts = do.linear(normed, self.qkv).view(batch * tokens, -1, self.head_dim)
        q, k, v = parts.split((self.heads, self.kv_heads, self.kv_heads), 1)
        q, k = do.rotary(q.contiguous(), k.contiguous(), cos, sin)
        q, k, v = (
            each.reshape(batch, tokens, -1, self.head_dim).transpose(1, 2).contiguous()
            for each in (q, k, v)
        )
        mixed = do.attention(q, k, v, True).transpose(1, 2).reshape(batch, tokens, dim)
        normed, x = do.add_rms_norm(do.linear(mixed, self.out), x, self.between, self.eps)
        return x + do.linear(do.linear(normed, self.gate_up, None, "swiglu"), self.down)


class DitBlock(nn.Module):
    """One layer of a diffusion transformer, whose norms get scale and shift from a condition.

    x[batch, tokens, dim], condition[batch, dim] -> the shape of x. The sizes of DiT-XL by default.
    """

    def __init__(self, operations: Operations, dim: int = 1152, heads: int = 16) -> None:
        super().__init__()
        self.do, self.heads = operations, heads
        self.modulation = nn.Parameter(torch.randn(6 * dim, dim) / dim**0.5)
        self.shift = nn.Parameter(torch.zeros(6 * dim))
        self.qkv = nn.Parameter(torch.randn(3 * dim, dim) / dim**0.5)
        self.out = nn.Parameter(torch.randn(dim, dim) / dim**0.5)
        self.up = nn.Parameter(torch.randn(4 * dim, dim) / dim**0.5)
        self.up_bias = nn.Parameter(torch.zeros(4 * dim))
        self.down = nn.Parameter(torch.randn(dim, 4 * dim) / (4 * dim) ** 0.5)
        self.register_buffer("one", torch.ones(dim))
        self.register_buffer("zero", torch.zeros(dim))

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        do, (batch, tokens, dim) = self.do, x.shape
        parts = do.linear(functional.silu(condition), self.modulation, self.shift)
        scale, shift, gate, scale_2, shift_2, gate_2 = parts[:, None].chunk(6, -1)

        def normalize(each: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
            whole: torch.Tensor = do.layer_norm(each, (dim,), self.one, self.zero)
            return whole * (1 + scale) + shift

        heads = do.linear(normalize(x, scale, shift), self.qkv)
        split = heads.view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = (each.contiguous() for each in split)
        mixed = do.attention(q, k, v, False).transpose(1, 2).reshape(batch, tokens, dim)
        x = x + gate * do.linear(mixed, self.out)
        inner = do.linear(normalize(x, scale_2, shift_2), self.up, self.up_bias, "gelu")
        return x + gate_2 * do.linear(inner, self.down)
