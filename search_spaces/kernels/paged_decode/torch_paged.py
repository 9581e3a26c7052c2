"""torch's attention over a paged cache, as baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from search_spaces.kernels.torch_attention import require_cuda, varlen_attention
from search_spaces.tensors import Tensors, compiled, named

if TYPE_CHECKING:
    import torch

_NAMES = ("q", "k_cache", "v_cache", "block_table", "lengths")


def paged_baselines(longest: int) -> Mapping[str, Callable[[Tensors], Tensors]]:
    """Gathered pages and masked attention (`eager`, `compile`), and torch's `varlen_attn` over
    pages (`flash`)."""

    def gathered(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_table: torch.Tensor,
        lengths: torch.Tensor,
    ) -> torch.Tensor:
        import torch

        k, v = (
            cache[block_table.long()].flatten(1, 2).transpose(1, 2) for cache in (k_cache, v_cache)
        )
        seen = torch.arange(k.shape[2], device=q.device) < lengths[:, None]
        out = torch.nn.functional.scaled_dot_product_attention(
            q[:, :, None],
            k,
            v,
            attn_mask=seen[:, None, None],
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return out[:, :, 0]

    return {
        "eager": named("out", gathered, *_NAMES),
        "compile": named("out", compiled(gathered), *_NAMES),
        "flash": named("out", _PagedFlash(longest), *_NAMES),
    }


class _PagedFlash:
    """`varlen_attn` with a block table, or a `RuntimeError`.

    It needs a torch that takes one; FlashAttention 2 takes pages of a multiple of 256 keys only.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._bounds: torch.Tensor | None = None

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_table: torch.Tensor,
        lengths: torch.Tensor,
    ) -> torch.Tensor:
        import torch

        require_cuda("varlen_attn", q)
        varlen_attn = varlen_attention(("block_table", "seqused_k", "enable_gqa"))
        if self._bounds is None or self._bounds.device != q.device:
            self._bounds = torch.arange(q.shape[0] + 1, dtype=torch.int32, device=q.device)
        out: torch.Tensor = varlen_attn(
            q, k_cache, v_cache, self._bounds, None, 1, self._longest, seqused_k=lengths,
            block_table=block_table, enable_gqa=q.shape[1] != k_cache.shape[2],
        )  # fmt: skip
        return out
