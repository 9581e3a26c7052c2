"""Element-wise operations of matrices, each one Triton launch.

Memory-bound: the least traffic is one read of each operand and one write of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.dims import Dims
from search_spaces.edges import ALL_EDGES
from search_spaces.kernel import Kernel, Launch, Tolerance
from search_spaces.kernels.dtypes import DTYPES, ROUNDING
from search_spaces.kernels.elements import (
    counts_wide,
    default_point,
    element_constants,
    element_grid,
    element_space,
)
from search_spaces.kernels.elementwise.triton_kernels import elementwise_kernel
from search_spaces.kernels.limits import integer
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch

#: The operands of each operation, and its operations per element.
OPERATIONS = {"add": "ab", "multiply": "ab", "fma": "abc", "affine": "abc", "cast": "a"}
_FLOPS = {"add": 1.0, "multiply": 1.0, "fma": 2.0, "affine": 2.0, "cast": 1.0}


def _operate(operation: str, *operands: torch.Tensor) -> torch.Tensor:
    """The operation in the dtype of its operands; `cast` leaves them as they are."""
    a, *others = operands
    if operation == "cast":
        return a
    if operation == "add":
        return a + others[0]
    product = a * others[0]
    return product if operation == "multiply" else product + others[1]


class Elementwise(Kernel):
    """An operation on a[rows, cols]; dims rows, cols, operation and dtype.

    operation: add (a + b), multiply (a b), fma (a b + c), affine (a b + c with b and c[cols], one
    value per column), cast (a in float32 or, from float32, in bfloat16).
    """

    name = "elementwise"
    edges = ALL_EDGES
    dims = Dims(rows=int, cols=int, operation=tuple(OPERATIONS), dtype=DTYPES)
    small = {"rows": 5, "cols": 333}

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (8192, 4096, "add", "bfloat16"),  # Llama-3 8B's residual, 8,192 tokens
            (16, 8192, "add", "bfloat16"),  # Llama-3 70B, decoding 16 requests
            (8192, 14336, "multiply", "bfloat16"),  # the gated product of Llama-3 8B
            (16384, 4096, "fma", "float32"),
            (401408, 256, "affine", "float16"),  # ResNet-50's folded batch norm, NHWC
            (65536, 768, "affine", "float32"),
            (8192, 7168, "cast", "bfloat16"),  # DeepSeek-V3's hidden states
            (8192, 8192, "cast", "float32"),
            (8191, 4099, "add", "float32"),
        )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        operation = workload.text("operation")
        whole, column = workload.spec("rows", "cols"), workload.spec("cols")
        found = dict.fromkeys(OPERATIONS[operation], whole)
        return found | ({"b": column, "c": column} if operation == "affine" else {})

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec("rows", "cols", dtype=_out_dtype(workload))}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        exact = [tensor.double() for tensor in inputs.values()]
        return {"out": _operate(workload.text("operation"), *exact)}

    def tolerance(self, workload: Workload) -> Tolerance:
        relative = max(ROUNDING[_out_dtype(workload)], ROUNDING[workload.text("dtype")])
        return Tolerance(relative, relative)

    def flops(self, workload: Workload) -> float:
        operation, cols = workload.text("operation"), workload.size("cols")
        elements = workload.size("rows") * cols
        return _FLOPS[operation] * elements

    def space(self, workload: Workload) -> SearchSpace:
        return element_space(_elements(workload), self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(_elements(workload))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        elements, operation = _elements(workload), workload.text("operation")
        arguments = (*(tensors.get(name) for name in "abc"), tensors["out"], elements)
        # Only a broadcast looks at the columns; other operations share binaries between shapes.
        cols = workload.size("cols") if operation == "affine" else 1
        constants = {"OPERATION": operation, "COLS": cols, **element_constants(elements, config)}
        constants["WIDE"] = counts_wide(elements, integer(config, "BLOCK"))
        grid = (element_grid(elements, config),)
        return [Launch(elementwise_kernel, grid, arguments, constants)]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        operation, out_dtype = workload.text("operation"), _out_dtype(workload)

        def eager(*operands: torch.Tensor) -> torch.Tensor:
            import torch

            return _operate(operation, *operands).to(getattr(torch, out_dtype))

        return eager


def _elements(workload: Workload) -> int:
    return workload.size("rows") * workload.size("cols")


def _out_dtype(workload: Workload) -> str:
    dtype = workload.text("dtype")
    if workload.text("operation") != "cast":
        return dtype
    return "bfloat16" if dtype == "float32" else "float32"
