"""Quantized operands of the mixture-of-experts products, as vLLM's and SGLang's layers have them.

`fp8_block128`: float8 codes; a scale of each 128 elements of a row of x, and of each 128 x 128 of a
matrix. `fp8_tensor`: float8 codes; a scale of x, and one of each expert's matrix. `int8_channel`:
int8 codes of the matrices alone, with a scale of each of their rows.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt
from typing import TYPE_CHECKING

from search_spaces.block_sizes import ceil_div
from search_spaces.kernels.codes import FLOAT8, random_codes, random_scales
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.moe_matmul.baselines import by_expert
from search_spaces.kernels.moe_matmul.routing import slot_count
from search_spaces.kernels.moe_matmul.space import Product, quantization, slot_product
from search_spaces.records import TensorSpec, Workload
from search_spaces.tensors import Tensors, random_tensor

if TYPE_CHECKING:
    import torch

#: Elements that share a scale, along both dims of a matrix.
GROUP = 128
_SCALE_BYTES = 4


def operand_specs(workload: Workload) -> dict[str, TensorSpec]:
    """x, w and the scales of a quantized workload."""
    product = slot_product(workload)
    kind, experts = quantization(workload), workload.size("experts")
    rows = slot_count(workload) // product.share
    code = "int8" if kind == "int8_channel" else FLOAT8
    specs = {
        "x": workload.spec(
            rows, product.depth, dtype=workload.text("dtype") if code == "int8" else code
        ),
        "w": workload.spec(experts, product.cols, product.depth, dtype=code),
        "w_scale": workload.spec(experts, *_scales_of_a_matrix(kind, product), dtype="float32"),
    }
    if kind == "fp8_tensor":
        specs["x_scale"] = workload.spec(1, dtype="float32")
    elif kind == "fp8_block128":
        specs["x_scale"] = workload.spec(rows, ceil_div(product.depth, GROUP), dtype="float32")
    return specs


def _scales_of_a_matrix(kind: str, product: Product) -> tuple[int, ...]:
    if kind == "fp8_tensor":
        return ()
    if kind == "int8_channel":
        return (product.cols,)
    return ceil_div(product.cols, GROUP), ceil_div(product.depth, GROUP)


def random_operands(workload: Workload, source: torch.Generator | None, device: str) -> Tensors:
    """Operands whose products are of the order of one, whatever their length."""
    specs, small = operand_specs(workload), 1 / sqrt(slot_product(workload).depth)
    x, w = specs["x"], specs["w"]
    found = {
        "x": random_codes(x.shape, x.dtype, source, device)
        if x.dtype == FLOAT8
        else random_tensor(x, source, device),
        "w": random_codes(w.shape, w.dtype, source, device),
        "w_scale": random_scales(specs["w_scale"].shape, w.dtype, source, device, small),
    }
    if "x_scale" in specs:
        found["x_scale"] = random_scales(specs["x_scale"].shape, FLOAT8, source, device)
    return found


def scaled_by_expert(
    workload: Workload, dtype: torch.dtype | None = None
) -> Callable[..., torch.Tensor]:
    """`by_expert` of the numbers that the codes stand for.

    dtype: of the arithmetic and the result; None: the workload's. The scales of x, then the weights
    of the router, follow those of w where there are any.
    """
    kind = quantization(workload)

    def run(
        x: torch.Tensor,
        w: torch.Tensor,
        ids: torch.Tensor,
        w_scale: torch.Tensor,
        *others: torch.Tensor,
    ) -> torch.Tensor:
        import torch

        x_scale, *weights = others if kind.startswith("fp8") else (None, *others)

        result = dtype or getattr(torch, workload.text("dtype"))
        wide = x.to(torch.float64 if dtype == torch.float64 else torch.float32)
        if x_scale is not None:
            scale = x_scale.to(wide.dtype)
            if kind == "fp8_block128":
                scale = scale.repeat_interleave(GROUP, 1)[:, : x.shape[1]]
            wide = wide * scale
        matrices = _Matrices(w, w_scale, kind, wide.dtype)
        return by_expert(workload, result)(wide, matrices, ids, *weights)

    return run


class _Matrices:
    """Takes the place of the tensor of all matrices; each is computed where it is used."""

    def __init__(self, w: torch.Tensor, scale: torch.Tensor, kind: str, dtype: torch.dtype) -> None:
        self._w, self._scale, self._kind, self._dtype = w, scale, kind, dtype

    def __getitem__(self, expert: int) -> torch.Tensor:
        matrix, scale = self._w[expert].to(self._dtype), self._scale[expert].to(self._dtype)
        if self._kind == "int8_channel":
            scale = scale[:, None]
        elif self._kind == "fp8_block128":
            rows, cols = matrix.shape
            scale = scale.repeat_interleave(GROUP, 0)[:rows].repeat_interleave(GROUP, 1)[:, :cols]
        return matrix * scale


def operand_bytes(workload: Workload, matrices: int) -> float:
    """The traffic of x once and of the matrices of the experts in use, with their scales."""
    specs = operand_specs(workload)
    w, scales = specs["w"].shape, specs["w_scale"].shape
    x = prod(specs["x"].shape) * ELEMENT_BYTES.get(specs["x"].dtype, 1)
    x_scales = prod(specs["x_scale"].shape) if "x_scale" in specs else 0
    own = prod(w[1:]) + _SCALE_BYTES * prod(scales[1:])
    return float(x + _SCALE_BYTES * x_scales + matrices * own)
