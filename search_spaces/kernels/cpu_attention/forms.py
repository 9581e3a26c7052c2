"""Forms of attention on [batch, heads, tokens, head_dim]."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from search_spaces.kernels.cpu_forms import Form


def sdpa(*, causal: bool) -> Form:
    """torch's fused kernel, in the dtype of the inputs."""

    def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return fused


def sdpa_in(dtype: str, *, causal: bool) -> Form:
    """torch's fused kernel, in another dtype than that of the inputs."""
    attend = sdpa(causal=causal)

    def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        import torch

        inside = torch.bfloat16 if dtype == "bfloat16" else torch.float32
        return attend(q.to(inside), k.to(inside), v.to(inside)).to(q.dtype)

    return fused


def composed(*, causal: bool) -> Form:
    """Two batched products, and a softmax in at least float32 between them."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return _attended(q, k, v, first=0 if causal else None)

    return attend


def in_chunks(chunk: int, *, causal: bool) -> Form:
    """The composed form for `chunk` queries at a time; keys after the last query are left out."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        import torch

        made = []
        for start in range(0, q.shape[2], chunk):
            part = q[:, :, start : start + chunk]
            seen = start + part.shape[2] if causal else k.shape[2]
            first = start if causal else None
            made.append(_attended(part, k[:, :, :seen], v[:, :, :seen], first=first))
        return torch.cat(made, 2)

    return attend


def flexible(*, causal: bool) -> Form:
    """Inductor's template of flex_attention, an online softmax over blocks of keys."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        import torch
        from torch.nn.attention.flex_attention import flex_attention

        def masked(score, batch, head, query, key):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
            return torch.where(query >= key, score, -float("inf"))

        out: torch.Tensor = flex_attention(q, k, v, score_mod=masked if causal else None)
        return out

    return attend


def _attended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, first: int | None
) -> torch.Tensor:
    """first: the place of the first query where later keys are masked, None without a mask."""
    import torch

    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    wide = scores if scores.dtype == torch.float64 else scores.float()
    if first is not None:
        queries = torch.arange(first, first + q.shape[2], device=q.device)
        keys = torch.arange(k.shape[2], device=q.device)
        wide = wide.masked_fill(keys > queries[:, None], -float("inf"))
    out: torch.Tensor = wide.softmax(-1).to(v.dtype) @ v
    return out
