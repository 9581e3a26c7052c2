"""Reductions of a matrix along its rows or its columns, on a CPU.

Memory-bound where the matrix is larger than the caches. Rows in a cache are bound by the chain of
additions into one vector, columns by the order in which rows are visited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.dims import Dims
from search_spaces.kernel import EXACT, Cost, Tolerance
from search_spaces.kernels.cpu_forms import (
    ATEN,
    FLOATS_AND_INT8,
    CpuKernel,
    element_bytes,
    form_space,
    is_aten,
    rounding,
)
from search_spaces.kernels.cpu_reduction.forms import folded, in_parts, library, product, two_pass
from search_spaces.kernels.limits import integer
from search_spaces.params import Boolean, Parameter, PowerOfTwo
from search_spaces.records import Config, TensorSpec, Workload
from search_spaces.space import SearchSpace

if TYPE_CHECKING:
    from search_spaces.kernels.cpu_forms import Form, Tensors

OPERATIONS = ("sum", "max", "argmax")
_MOST_PARTS = 64
_PRODUCT = f"{ATEN}_product"
_PLACE_BYTES = 8


class CpuReduction(CpuKernel):
    """A reduction of x[rows, cols] on a CPU; dims rows, cols, axis, operation and dtype.

    axis: 1 gives one result per row, 0 one per column. operation: sum (of int8 as int32), max or
    argmax, which gives the first place of the largest value as int64. Floating-point x has a mean
    of 1, so that sums are not rounding errors alone.
    """

    name = "cpu_reduction"
    dims = Dims(rows=int, cols=int, axis=(0, 1), operation=OPERATIONS, dtype=FLOATS_AND_INT8)

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (512, 4096, 1, "sum", "float32"),  # Llama-3 8B: 512 tokens
            (512, 4096, 0, "sum", "bfloat16"),  # the gradient of its bias
            (512, 4096, 1, "max", "float32"),  # the scale of a row's quantization
            (8, 128256, 1, "argmax", "float32"),  # Llama-3: greedy decoding, 8 requests
            (8, 151936, 1, "argmax", "bfloat16"),  # Qwen3
            (12544, 64, 0, "sum", "float32"),  # ResNet-50: batch norm of one image
            (2048, 1024, 1, "sum", "int8"),  # the row sums of a quantized matrix
            (2048, 1024, 0, "max", "int8"),
            (1, 4194304, 1, "sum", "float32"),  # a loss over all tokens
            (333, 1001, 0, "argmax", "float32"),
        )

    def small_workload(self, workload: Workload) -> Workload:
        along_rows = workload.size("axis") == 1
        return workload.with_dims(rows=7 if along_rows else 331, cols=331 if along_rows else 37)

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"x": workload.spec("rows", "cols", mean=1.0, limits=(-128, 128))}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        dtype = workload.text("dtype")
        if workload["operation"] == "argmax":
            dtype = "int64"
        elif workload["operation"] == "sum" and _is_integer(workload):
            dtype = "int32"
        return {"out": workload.spec(_results(workload), dtype=dtype)}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        return {"out": self.eager(workload)(inputs["x"].double())}

    def tolerance(self, workload: Workload) -> Tolerance:
        if _is_integer(workload) or workload["operation"] != "sum":
            return EXACT
        return Tolerance(rounding(workload), rounding(workload))

    def cost(self, workload: Workload) -> Cost:
        elements, each = (
            workload.size("rows") * workload.size("cols"),
            element_bytes(workload.text("dtype")),
        )
        result = _PLACE_BYTES if workload["operation"] == "argmax" else each
        moved = elements * each + _results(workload) * result
        return Cost(flops=float(elements), bytes=float(moved))

    def space(self, workload: Workload) -> SearchSpace:
        operation, axis = workload.text("operation"), workload.size("axis")
        forms, parameters = ["library", ATEN], list[Parameter]()
        if operation == "argmax":
            forms.append("two_pass")
        elif (most := _most_parts(workload)) > 1:
            forms.append("parts")
            parameters.append(PowerOfTwo("parts", 2, most, when={"form": ("parts",)}))
        if operation == "sum" and workload["dtype"] == "float32":
            forms.append(_PRODUCT)
        if axis == 1:
            form = "two_pass" if operation == "argmax" else "folded"
            forms += [form] if form not in forms else []
            least = 1 if operation == "argmax" else 2
            parameters.append(PowerOfTwo("fold", least, 4, when={"form": (form,)}))
        else:
            compiled = tuple(form for form in forms if not is_aten({"form": form}))
            parameters.append(Boolean("tile_always", when={"form": compiled}))
        return form_space(self.name, forms, parameters)

    def options(self, workload: Workload, config: Config) -> Mapping[str, Any]:
        return {"cpp.enable_tiling_heuristics": not config.get("tile_always", False)}

    def eager(self, workload: Workload) -> Form:
        return library(workload.text("operation"), workload.size("axis"))

    def form(self, workload: Workload, config: Config) -> Form:
        operation, axis = workload.text("operation"), workload.size("axis")
        fold = integer(config, "fold")
        forms: Mapping[str, Form] = {
            "library": library(operation, axis),
            "folded": folded(operation, fold),
            "parts": in_parts(operation, axis, integer(config, "parts")),
            "two_pass": two_pass(axis, fold),
            ATEN: library(operation, axis),
            _PRODUCT: product(axis),
        }
        return forms[str(config["form"])]


def _results(workload: Workload) -> int:
    return workload.size("rows" if workload.size("axis") == 1 else "cols")


def _is_integer(workload: Workload) -> bool:
    return workload.text("dtype") == "int8"


def _most_parts(workload: Workload) -> int:
    """The largest power of two that divides the reduced axis, up to 64."""
    length = workload.size("cols" if workload.size("axis") == 1 else "rows")
    return min(_MOST_PARTS, length & -length)
