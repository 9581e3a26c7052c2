"""cuBLAS as the baseline of families of matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from search_spaces.records import Workload

if TYPE_CHECKING:
    import torch


def cublas_products(workload: Workload) -> dict[str, Callable[..., torch.Tensor]]:
    """`vendor`, a product in the workload's dtype, and for float32 also in TF32."""
    found: dict[str, Callable[..., torch.Tensor]] = {"vendor": Cublas()}
    if workload["dtype"] == "float32":
        found["vendor_tf32"] = Cublas("tf32")
    return found


class Cublas:
    """The product of two matrices, or of batches of them, into one buffer.

    precision: of float32, `ieee` or `tf32`. Raises `RuntimeError` without a CUDA device.
    """

    def __init__(self, precision: str = "ieee") -> None:
        self._precision = precision
        self._out: torch.Tensor | None = None

    def __call__(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        import torch

        if a.device.type != "cuda":
            raise RuntimeError(f"cuBLAS needs CUDA tensors, got one on {a.device.type}")
        shape = (*a.shape[:-1], b.shape[-1])
        out = self._out
        if out is None or (out.shape, out.dtype, out.device) != (shape, a.dtype, a.device):
            out = self._out = torch.empty(shape, dtype=a.dtype, device=a.device)
        settings = torch.backends.cuda.matmul
        before = settings.fp32_precision
        settings.fp32_precision = self._precision
        try:
            return torch.bmm(a, b, out=out) if a.dim() == 3 else torch.mm(a, b, out=out)
        finally:
            settings.fp32_precision = before
