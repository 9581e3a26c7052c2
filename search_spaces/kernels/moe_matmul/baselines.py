"""What users run instead: a loop over experts, torch's grouped product, gathered matrices.

Each function returns a function of tensors, whose last argument, the weights of the router, is
there for `down` only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from search_spaces.kernels.moe_matmul.space import slot_product
from search_spaces.records import Workload

if TYPE_CHECKING:
    import torch


def by_expert(workload: Workload, dtype: torch.dtype | None = None) -> Callable[..., torch.Tensor]:
    """One product for each active expert, as model code without a kernel does it.

    dtype: of the arithmetic and the result; None: that of the inputs.
    """
    shape, factors, share = _output(workload)

    def run(
        x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        flat = ids.reshape(-1)
        result = dtype or x.dtype
        out = x.new_empty((flat.numel(), shape[-1]), dtype=result)
        for expert in sorted(set(flat.tolist())):
            slots = (flat == expert).nonzero()[:, 0]
            rows = x[slots // share].to(result) @ w[expert].to(result).T
            out[slots] = _finished(rows, factors, weights, slots)
        return out.view(shape)

    return run


def grouped(workload: Workload) -> Callable[..., torch.Tensor]:
    """Rows in order of their experts through `torch._grouped_mm`, and back to their slots."""
    shape, factors, share = _output(workload)

    def run(
        x: torch.Tensor,
        w: torch.Tensor,
        sorted_slots: torch.Tensor,
        ends: torch.Tensor,
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        import torch

        rows = torch._grouped_mm(x[sorted_slots // share], w.transpose(1, 2), offs=ends)
        finished = _finished(rows, factors, weights, sorted_slots)
        out = torch.empty_like(finished)
        out[sorted_slots] = finished
        return out.view(shape)

    return run


def gathered(workload: Workload) -> Callable[..., torch.Tensor]:
    """A product of each slot with its own copy of a matrix; needs memory for all copies."""
    shape, factors, share = _output(workload)

    def run(
        x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        import torch

        flat = ids.reshape(-1)
        slots = torch.arange(flat.numel(), device=x.device)
        rows = torch.einsum("sk,snk->sn", x[slots // share], w[flat])
        return _finished(rows, factors, weights, slots).view(shape)

    return run


def require_grouped(run: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """That function of `grouped`, which raises RuntimeError where torch cannot run it."""

    def checked(x: torch.Tensor, *others: Any) -> torch.Tensor:
        import torch

        if not hasattr(torch, "_grouped_mm"):
            raise RuntimeError(f"grouped products need torch 2.8 or newer, not {torch.__version__}")
        if x.device.type != "cuda" or x.dtype != torch.bfloat16:
            raise RuntimeError(
                "torch._grouped_mm needs CUDA tensors of bfloat16, "
                f"got {x.dtype} on {x.device.type}"
            )
        if x.shape[1] % 8:
            raise RuntimeError(
                f"torch._grouped_mm needs rows of whole 16 bytes, got {x.shape[1]} elements"
            )
        return run(x, *others)

    return checked


def _output(workload: Workload) -> tuple[tuple[int, int, int], int, int]:
    """The shape of the output, matrices of a product and slots that share a row."""
    cols, _, factors, share = slot_product(workload)
    return (workload.size("tokens"), workload.size("top_k"), cols), factors, share


def _finished(
    rows: torch.Tensor, factors: int, weights: torch.Tensor | None, slots: torch.Tensor
) -> torch.Tensor:
    """silu(gate) * value of two factors, and each slot's weight where there are any."""
    import torch

    if factors == 2:
        gate, value = rows.chunk(2, dim=-1)
        rows = torch.nn.functional.silu(gate) * value
    if weights is not None:
        rows = (rows * weights.reshape(-1)[slots][:, None]).to(rows.dtype)
    return rows
