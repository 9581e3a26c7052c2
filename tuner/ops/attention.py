"""Attention of heads, of packed sequences, over a paged cache; and the rotary embedding."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from search_spaces.errors import TunerError
from search_spaces.kernels.masked_attention import Mask
from search_spaces.kernels.torch_attention import flash_window
from search_spaces.records import Value
from tuner.ops import decompositions
from tuner.ops.choosing import warn_of_torch
from tuner.ops.operator import Operator, may_run_kernels
from tuner.ops.overriding import overridable
from tuner.ops.problem import HALVES, Problem, dtype_name, runs_on
from tuner.ops.strided_rotary import StridedRotary, rotation_of_torch, takes_strides


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
    grouped = _are_grouped(q, k)
    return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)


def _are_grouped(q: torch.Tensor, k: torch.Tensor) -> bool:
    return q.ndim == 4 == k.ndim and bool(q.shape[1] != k.shape[1])


_attention = Operator[torch.Tensor](
    "attention",
    "(Tensor q, Tensor k, Tensor v, bool causal) -> Tensor",
    _attention_of_torch,
    _attention_problem,
    autocast="lower",
    least_gain=decompositions.UNFUSED,
)


def _is_usual(scale: float, dim: int) -> bool:
    """Whether it is 1 / sqrt(dim), whose last bits depend on how a model computes it."""
    return bool(abs(scale * max(dim, 1) ** 0.5 - 1) < 1e-7)


@overridable(functional.scaled_dot_product_attention)
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """softmax(query @ key.T * scale) @ value for each head, as torch's
    `scaled_dot_product_attention`.

    query[batch, heads, queries, dim], key and value[batch, kv_heads, keys, dim]: with enable_gqa,
    kv_heads divides heads. is_causal: query i sees keys 0 to i. With gradients, a mask, dropout or
    another scale than 1 / sqrt(dim), torch runs.
    """
    usual = attn_mask is None and not dropout_p and (enable_gqa or not _are_grouped(query, key))
    if usual and (scale is None or _is_usual(scale, query.shape[-1])):
        return _attention(query, key, value, is_causal)
    warn_of_torch("attention with a mask, dropout, a scale or groups")
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


# -- attention of packed sequences -----------------------------------------------------------------
def _varlen_problem(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    causal: bool,
    window: int,
) -> Problem | None:
    tensors = {"q": q, "k": k, "v": v, "cu_seqlens": cu_seqlens}
    dtypes = [each.dtype for each in tensors.values()]
    if q.dtype not in HALVES or dtypes != [q.dtype] * 3 + [torch.int32]:
        return None
    if [each.ndim for each in tensors.values()] != [3, 3, 3, 1]:
        return None
    if k.shape != v.shape or k.shape[::2] != q.shape[::2]:
        return None
    if not all(each.is_contiguous() for each in tensors.values()):
        return None
    tokens, heads, dim = q.shape
    dims: dict[str, Value] = {"tokens": tokens, "sequences": len(cu_seqlens) - 1, "q_heads": heads}
    dims |= {"kv_heads": k.shape[1], "head_dim": dim, "causal": causal, "window": window}
    # The longest sequence of the baseline is that of the workload's own lengths.
    return Problem(
        "varlen_attention",
        {**dims, "dtype": dtype_name(q)},
        tensors,
        {"out": q.shape},
        replaced=("flash",),
    )


def _varlen_of_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    causal: bool,
    window: int,
) -> torch.Tensor:
    """By flash attention, else under a mask of all tokens against all."""
    mask, (tokens, heads, dim) = Mask(causal, window), q.shape
    if q.dtype in HALVES and runs_on(q, 8) and tokens and dim % 8 == 0 and dim <= 256:
        # The longest sequence is known on the device alone; no bound but that of all tokens is
        # safe. One query is another case to torch, of as many sequences as tokens.
        most, bounds, settings = max(tokens, 2), cu_seqlens.int(), flash_window(mask)
        found: torch.Tensor = torch.ops.aten._flash_attention_forward(
            *(each.contiguous() for each in (q, k, v)),
            *(bounds, bounds, most, most, 0.0, settings.pop("is_causal"), False),
            **settings,
        )[0]
        return found
    at = torch.arange(tokens, dtype=cu_seqlens.dtype, device=q.device)
    sequence = torch.searchsorted(cu_seqlens, at, right=True)
    seen = (sequence[:, None] == sequence) & mask.seen(at[:, None], at)
    # With groups of heads, torch would store all scores.
    k, v = (each.repeat_interleave(heads // each.shape[1], 1) for each in (k, v))
    q, k, v = (each.transpose(0, 1)[None] for each in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)[0].transpose(0, 1)


_varlen_attention = Operator[torch.Tensor](
    "varlen_attention",
    "(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, bool causal, int window) -> Tensor",
    _varlen_of_torch,
    _varlen_problem,
    autocast="lower",
    least_gain=decompositions.UNFUSED,
)


@overridable()
def varlen_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    *,
    causal: bool = False,
    window: int = 0,
) -> torch.Tensor:
    """Attention of packed sequences, each to itself.

    q[tokens, heads, dim], k and v[tokens, kv_heads, dim]: kv_heads divides heads. Sequence i has
    the tokens cu_seqlens[i] to cu_seqlens[i + 1] (int32; from 0 to the number of tokens, which is
    not checked); it may be empty. causal: a query sees the keys up to its own, with a window the
    last `window` of them. With gradients, torch runs: flash attention for float16 and bfloat16 on a
    GPU, else attention under a mask[tokens, tokens].
    """
    if window < 0 or (window and not causal):
        raise TunerError(
            f"window is {window}, with causal={causal}",
            "give causal=True with a window of at least one key, or window=0 for all keys",
        )
    return _varlen_attention(q, k, v, cu_seqlens, causal, window)


# -- paged attention -------------------------------------------------------------------------------
def _paged_problem(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
) -> Problem | None:
    tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache}
    tensors |= {"block_table": block_table, "lengths": lengths}
    dtypes = [each.dtype for each in tensors.values()]
    if q.dtype not in HALVES or dtypes != [q.dtype] * 3 + [torch.int32] * 2:
        return None
    if [each.ndim for each in tensors.values()] != [3, 4, 4, 2, 1]:
        return None
    (sequences, heads, dim), (_, page_size, kv_heads, cached_dim) = q.shape, k_cache.shape
    if v_cache.shape != k_cache.shape or cached_dim != dim:
        return None
    if not len(block_table) == len(lengths) == sequences:
        return None
    if not all(each.is_contiguous() for each in tensors.values()):
        return None
    dims: dict[str, Value] = {"sequences": sequences, "q_heads": heads, "kv_heads": kv_heads}
    dims |= {"keys": block_table.shape[1] * page_size, "page_size": page_size, "head_dim": dim}
    return Problem("paged_decode", {**dims, "dtype": dtype_name(q)}, tensors, {"out": q.shape})


def _paged_of_torch(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """Attention to the gathered pages; those beyond the length of a sequence may hold anything."""
    page_size, width = k_cache.shape[1], block_table.shape[1]
    seen = torch.arange(width * page_size, device=q.device) < lengths[:, None]
    pages = block_table.masked_fill(~seen[:, ::page_size], 0).long()
    k, v = (
        cache[pages].flatten(1, 2).masked_fill(~seen[:, :, None, None], 0).transpose(1, 2)
        for cache in (k_cache, v_cache)
    )
    grouped = bool(q.shape[1] != k.shape[1])
    return functional.scaled_dot_product_attention(
        q[:, :, None], k, v, attn_mask=seen[:, None, None], enable_gqa=grouped
    )[:, :, 0]


_paged_attention = Operator[torch.Tensor](
    "paged_attention",
    "(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor lengths) -> Tensor",
    _paged_of_torch,
    _paged_problem,
    autocast="lower",
    least_gain=decompositions.UNFUSED,
)


@overridable()
def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """Attention of one query for each sequence to its keys in a paged cache, as in decoding.

    q[sequences, heads, dim]; k_cache and v_cache[pages, page_size, kv_heads, dim]: kv_heads divides
    heads. Row i of block_table[sequences, width] (int32) lists the pages of sequence i, and
    lengths[sequences] (int32) has its keys, at least one; pages beyond them are not read. Keep the
    width over the steps of a request: each one is a call of another kind. With gradients, torch
    runs, which gathers the pages first.
    """
    return _paged_attention(q, k_cache, v_cache, block_table, lengths)


# -- rotary ----------------------------------------------------------------------------------------
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
    tokens, heads, dim = q.shape
    dims: dict[str, Value] = {"tokens": tokens, "q_heads": heads, "k_heads": k.shape[1]}
    dims |= {"head_dim": dim, "interleaved": interleaved, "dtype": dtype_name(q)}
    return Problem("rotary", dims, tensors, {"q_out": q.shape, "k_out": k.shape})


def _save_angles(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *_, cos, sin, ctx.interleaved = inputs
    ctx.save_for_backward(cos, sin)


def _backward_of_rotary(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
    """A rotation by the opposite angle."""
    cos, sin = ctx.saved_tensors
    q, k = grads
    if may_run_kernels(grads) and takes_strides(q, k, cos, sin):
        return *StridedRotary.apply(q, k, cos, sin, ctx.interleaved, True), *[None] * 3  # type: ignore[no-untyped-call]
    q, k = (each.contiguous() for each in grads)
    return *_rotary(q, k, cos, -sin, ctx.interleaved), None, None, None


_rotary = Operator[tuple[torch.Tensor, torch.Tensor]](
    "rotary",
    "(Tensor q, Tensor k, Tensor cos, Tensor sin, bool interleaved) -> (Tensor, Tensor)",
    rotation_of_torch,
    _rotary_problem,
    setup_context=_save_angles,
    backward=_backward_of_rotary,
)


@overridable()
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
    interleaved: pairs are neighbours (GPT-J), else half a head apart (Llama). With gradients of cos
    or sin, torch runs.
    """
    learned = torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad)
    given = q, k, cos, sin
    plain = not torch.compiler.is_compiling() and takes_strides(*given) and may_run_kernels(given)
    if plain and not learned:
        turned = StridedRotary.apply(*given, interleaved, False)  # type: ignore[no-untyped-call]
        found: tuple[torch.Tensor, torch.Tensor] = turned
        return found
    return (rotation_of_torch if learned else _rotary)(q, k, cos, sin, interleaved)
