"""Matrix product out = a @ b on a CPU: torch's libraries, or Inductor's C++ GEMM template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING

from search_spaces.dims import Dims, tolerance_of
from search_spaces.kernel import EXACT, Tolerance
from search_spaces.kernels.cpu_forms import ATEN, FLOATS_AND_INT8, form_space, rounding
from search_spaces.kernels.cpu_products import (
    DIVIDED,
    EXACT_K,
    HAS_TEMPLATE,
    MOST_INT8_K,
    ONEDNN,
    TEMPLATE,
    WIDENED,
    CpuProduct,
    batched,
    blas,
    exact_int8,
    onednn,
    precisions,
    summed,
    template_parameters,
    widened,
)
from search_spaces.kernels.limits import integer
from search_spaces.params import PowerOfTwo
from search_spaces.records import Config, TensorSpec, Workload
from search_spaces.space import SearchSpace

if TYPE_CHECKING:
    import torch

    from search_spaces.kernels.cpu_forms import Form, Tensors

_EXACT = f"{ATEN}_float32_blocks"
#: The most rows of a for which the product is also offered as a plain sum.
_FEW_ROWS = 4


def int8_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The int32 product of int8 matrices, by oneDNN."""
    import torch

    return torch._int_mm(a, b)


class CpuMatmul(CpuProduct):
    """a[M, K] @ b[K, N] on a CPU; dims M, N, K and dtype, optionally tolerance (relative error).

    The form is `aten` (MKL for float32, oneDNN for bfloat16 and int8), `aten_onednn` (oneDNN for
    float32), `aten_float32` (bfloat16 widened first), `aten_float32_blocks` (int8 by exact float32
    products), `template` (Inductor's C++ template with its blocks as parameters) or, for few rows,
    `summed` (a plain loop). The product of int8 is int32. A tolerance of 4e-3 or more admits
    float32 products with operands rounded to bfloat16.
    """

    name = "cpu_matmul"
    dims = Dims(M=int, N=int, K=int, dtype=FLOATS_AND_INT8, tolerance=float)
    small = {"M": 37, "N": 71, "K": 130}

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (128, 768, 768, "float32"),  # BERT-base: a projection of 128 tokens
            (512, 512, 512, "float32"),
            (256, 1024, 1024, "bfloat16"),  # Qwen3 0.6B: a projection of 256 tokens
            (1, 4096, 4096, "bfloat16"),  # Llama-3 8B: decoding one request
            (16, 1024, 4096, "bfloat16"),  # Llama-3 8B: keys, decoding 16 requests
            (384, 384, 1500, "float32"),  # Whisper tiny
            (256, 1024, 1024, "int8"),
            (333, 501, 257, "float32"),
            (333, 501, 257, "bfloat16"),
            (512, 512, 512, "float32", 1e-2),
        )

    def check_workload(self, workload: Workload) -> None:
        integers = workload.get("dtype") == "int8"
        (self.dims.replace(K=MOST_INT8_K) if integers else self.dims).check(self.name, workload)

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        m, n, k = workload.sizes("M", "N", "K")
        limits = (-127, 128)
        return {
            "a": workload.spec(m, k, limits=limits),
            # Scaled so that outputs are of the order of one, whatever K.
            "b": workload.spec(k, n, scale=1 / sqrt(k), limits=limits),
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        m, n, _ = workload.sizes("M", "N", "K")
        return {
            "out": workload.spec(
                m, n, dtype="int32" if _is_int8(workload) else workload.text("dtype")
            )
        }

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        return {"out": inputs["a"].double() @ inputs["b"].double()}

    def tolerance(self, workload: Workload) -> Tolerance:
        """The workload's own, else the rounding error of the output or of K sums in float32."""
        if _is_int8(workload):
            return EXACT
        usual = rounding(workload)
        if workload["dtype"] == "float32":
            usual = max(1e-6 * sqrt(workload.size("K")), usual)
        relative = tolerance_of(workload, usual)
        # Errors are roughly normal over outputs of the order of one: 8 standard deviations.
        return Tolerance(relative, 8 * relative)

    def flops(self, workload: Workload) -> float:
        m, n, k = workload.sizes("M", "N", "K")
        return 2.0 * m * n * k

    def space(self, workload: Workload) -> SearchSpace:
        if _is_int8(workload):
            most = min(EXACT_K, 1 << (workload.size("K") - 1).bit_length())
            block = PowerOfTwo("block", min(128, most), most, when={"form": (_EXACT,)})
            return form_space(self.name, _with_sum(workload, ATEN, _EXACT), [block])
        single = workload["dtype"] == "float32"
        forms = _with_sum(workload, ATEN, ONEDNN if single else WIDENED, TEMPLATE)
        rows, cols, _ = workload.sizes("M", "N", "K")
        parameters = template_parameters(rows, cols, packed=False)
        if single:
            parameters += precisions(self.tolerance(workload))
        return form_space(self.name, forms, parameters, [HAS_TEMPLATE, DIVIDED])

    def eager(self, workload: Workload) -> Form:
        return int8_product if _is_int8(workload) else blas

    def form(self, workload: Workload, config: Config) -> Form:
        forms: Mapping[str, Form] = {
            ATEN: int8_product if _is_int8(workload) else blas,
            ONEDNN: onednn,
            WIDENED: widened,
            _EXACT: exact_int8(integer(config, "block")),
            TEMPLATE: batched,
            "summed": summed,
        }
        return forms[str(config["form"])]


def _is_int8(workload: Workload) -> bool:
    return workload.text("dtype") == "int8"


def _with_sum(workload: Workload, *forms: str) -> tuple[str, ...]:
    return (*forms, "summed") if workload.size("M") <= _FEW_ROWS else forms
