"""torch's attention of packed sequences, as baselines.

q is [tokens, q_heads, head_dim], k and v are [tokens, kv_heads, head_dim]; bounds are those of the
sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from search_spaces.kernels.masked_attention import Mask
from search_spaces.kernels.torch_attention import (
    flash_window,
    require_cuda,
    takes,
    varlen_attention,
)
from search_spaces.tensors import Tensors, compiled, named

if TYPE_CHECKING:
    import torch


def packed_baselines(mask: Mask, longest: int) -> Mapping[str, Callable[[Tensors], Tensors]]:
    """A call per sequence (`eager`), one masked call (`compile`) and torch's `varlen_attn`
    (`flash`)."""

    def each(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: torch.Tensor
    ) -> torch.Tensor:
        import torch

        ends = bounds.tolist()
        found = []
        for first, last in pairwise(ends):
            places = torch.arange(last - first, device=q.device)
            seen = mask.seen(places[:, None], places)
            found.append(_attend(*(tensor[first:last] for tensor in (q, k, v)), seen=seen))
        return torch.cat(found)

    def at_once(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: torch.Tensor
    ) -> torch.Tensor:
        import torch

        at = torch.arange(q.shape[0], device=q.device)
        sequence = torch.bucketize(at, bounds, right=True)
        seen = (sequence[:, None] == sequence) & mask.seen(at[:, None], at)
        return _attend(q, k, v, seen=seen)

    names = ("q", "k", "v", "cu_seqlens")
    return {
        "eager": named("out", each, *names),
        "compile": named("out", compiled(at_once), *names),
        "flash": named("out", _VarlenAttn(mask, longest), *names),
    }


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, seen: torch.Tensor
) -> torch.Tensor:
    import torch

    q, k, v = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=seen, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out[0].transpose(0, 1)


class _VarlenAttn:
    """torch.nn.attention.varlen.varlen_attn, which is flash attention, or a `RuntimeError`."""

    def __init__(self, mask: Mask, longest: int) -> None:
        self._mask, self._longest = mask, longest

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: torch.Tensor
    ) -> torch.Tensor:
        require_cuda("varlen_attn", q)
        varlen_attn = varlen_attention(("window_size",))
        settings = flash_window(self._mask)
        window = (settings.get("window_size_left", -1), 0 if self._mask.causal else -1)
        # torch before 2.12 has no such argument and takes groups of heads without it.
        grouped = {"enable_gqa": q.shape[1] != k.shape[1]}
        if not takes(varlen_attn, "enable_gqa"):
            grouped = {}
        out: torch.Tensor = varlen_attn(
            q, k, v, bounds, bounds, self._longest, self._longest, window_size=window, **grouped
        )
        return out
