"""Attention of heads, and the rotary embedding of their positions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from search_spaces import registry
from search_spaces.records import Value, Workload
from tuner.ops.operator import Operator
from tuner.ops.problem import HALVES, Problem, dtype_name


# -- attention -------------------------------------------------------------------------------------
def _attention_problem(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> Problem | None:
    tensors = {"q": q, "k": k, "v": v}
    if q.ndim != 4 or q.dtype not in HALVES or k.shape[:3] != v.shape[:3]:
        return None
    if any(each.dtype != q.dtype or not each.is_contiguous() for each in tensors.values()):
        return None
    (batch, heads, queries, dim), keys = q.shape, k.shape[2]
    if k.shape[0] != batch or k.shape[3] != dim or (causal and queries != keys):
        return None
    common: dict[str, Value] = {"batch": batch, "head_dim": dim, "causal": causal}
    common["dtype"] = dtype_name(q)
    outputs = {"out": (batch, heads, queries, v.shape[3])}
    if k.shape == q.shape == v.shape and dim in (64, 128):
        return Problem(
            "attention", {**common, "heads": heads, "sequence": queries}, tensors, outputs
        )
    dims = {**common, "q_heads": heads, "kv_heads": k.shape[1], "queries": queries, "keys": keys}
    dims["window"] = 0
    if v.shape[3] != dim:
        dims["value_dim"] = v.shape[3]
    return Problem("grouped_attention", dims, tensors, outputs)


def _attention_of_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> torch.Tensor:
    grouped = q.ndim == 4 and bool(q.shape[1] != k.shape[1])
    return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)


_attention = Operator[torch.Tensor](
    "attention",
    "(Tensor q, Tensor k, Tensor v, bool causal) -> Tensor",
    _attention_of_torch,
    _attention_problem,
    autocast="lower",
)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """softmax(q @ k.T * scale) @ v for each head, as torch's `scaled_dot_product_attention`.

    q[batch, heads, queries, dim], k and v[batch, kv_heads, keys, dim]: kv_heads divides heads.
    causal: query i sees keys 0 to i. scale: by default 1 / sqrt(dim). With gradients, torch runs.
    """
    if scale is not None and scale != 1 / math.sqrt(q.shape[-1]):
        grouped = q.ndim == 4 and bool(q.shape[1] != k.shape[1])
        return functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped
        )
    return _attention(q, k, v, causal)


# -- rotary ----------------------------------------------------------------------------------------
def _rotary_dims(q: torch.Tensor, k: torch.Tensor, interleaved: bool) -> dict[str, Value]:
    tokens, heads, dim = q.shape
    dims: dict[str, Value] = {
        "tokens": tokens,
        "q_heads": heads,
        "k_heads": k.shape[1],
        "head_dim": dim,
    }
    return {**dims, "interleaved": interleaved, "dtype": dtype_name(q)}


def _rotary_problem(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> Problem | None:
    tensors = {"q": q, "k": k, "cos": cos, "sin": sin}
    if any(each.dtype != q.dtype or not each.is_contiguous() for each in tensors.values()):
        return None
    if q.ndim != 3 or k.ndim != 3 or k.shape[::2] != q.shape[::2]:
        return None
    if cos.shape != (q.shape[0], q.shape[2] // 2) or sin.shape != cos.shape:
        return None
    outputs = {"q_out": q.shape, "k_out": k.shape}
    return Problem("rotary", _rotary_dims(q, k, interleaved), tensors, outputs)


def _rotary_of_torch(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    workload = Workload.from_mapping(_rotary_dims(q, k, interleaved))
    q_out, k_out = registry.load("rotary").eager(workload)(q, k, cos, sin)
    return q_out, k_out


def _save_angles(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *_, cos, sin, ctx.interleaved = inputs
    ctx.save_for_backward(cos, sin)


def _backward_of_rotary(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
    """A rotation by the opposite angle."""
    cos, sin = ctx.saved_tensors
    q, k = (each.contiguous() for each in grads)
    return *_rotary(q, k, cos, -sin, ctx.interleaved), None, None, None


_rotary = Operator[tuple[torch.Tensor, torch.Tensor]](
    "rotary",
    "(Tensor q, Tensor k, Tensor cos, Tensor sin, bool interleaved) -> (Tensor, Tensor)",
    _rotary_of_torch,
    _rotary_problem,
    setup_context=_save_angles,
    backward=_backward_of_rotary,
)


def rotary(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q and k, each rotated by the angles of its position; new tensors.

    q[tokens, heads, dim], k[tokens, kv_heads, dim], cos and sin[tokens, dim / 2], of one dtype.
    interleaved: pairs are neighbours (GPT-J), else half a head apart (Llama). cos and sin get no
    gradient.
    """
    return _rotary(q, k, cos, sin, interleaved)
