"""Element-wise operations of matrices, each one Triton launch.

Memory-bound: the least traffic is one read of each operand and one write of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from search_spaces.declaration.dimensions import check_dims
from search_spaces.kernel import Cost, Kernel, Launch, TensorSpec, Tolerance
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES, ROUNDING
from search_spaces.kernels.elements import (
    default_point,
    element_constants,
    element_grid,
    element_space,
)
from search_spaces.kernels.elementwise.triton_kernels import elementwise_kernel
from search_spaces.kernels.launch_limits import MAX_SIZE
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import compiled, generator, named, random_tensor

if TYPE_CHECKING:
    import torch

    from search_spaces.kernel import Tensors

#: The operands of each operation, and its operations per element.
OPERATIONS = {"add": "ab", "multiply": "ab", "fma": "abc", "affine": "abc", "cast": "a"}
_FLOPS = {"add": 1.0, "multiply": 1.0, "fma": 2.0, "affine": 2.0, "cast": 1.0}
_SMALL_ROWS, _SMALL_COLS = 5, 333


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

    def workloads(self) -> Sequence[Workload]:
        return [
            _workload(8192, 4096, "add", "bfloat16"),  # Llama-3 8B's residual, 8,192 tokens
            _workload(16, 8192, "add", "bfloat16"),  # Llama-3 70B, decoding 16 requests
            _workload(8192, 14336, "multiply", "bfloat16"),  # the gated product of Llama-3 8B
            _workload(16384, 4096, "fma", "float32"),
            _workload(401408, 256, "affine", "float16"),  # ResNet-50's folded batch norm, NHWC
            _workload(65536, 768, "affine", "float32"),
            _workload(8192, 7168, "cast", "bfloat16"),  # DeepSeek-V3's hidden states
            _workload(8192, 8192, "cast", "float32"),
            _workload(8191, 4099, "add", "float32"),
        ]

    def check_workload(self, workload: Workload) -> None:
        check_dims(
            self.name,
            workload,
            sizes={"rows": MAX_SIZE, "cols": MAX_SIZE},
            dtypes=DTYPES,
            choices={"operation": tuple(OPERATIONS)},
        )

    def small_workload(self, workload: Workload) -> Workload:
        return workload.with_dims(rows=_SMALL_ROWS, cols=_SMALL_COLS)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        source, dtype = generator(seed, device), workload.text("dtype")
        rows, cols = workload.size("rows"), workload.size("cols")
        names = OPERATIONS[workload.text("operation")]
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(names, (rows, cols))
        if workload.text("operation") == "affine":
            shapes |= {"b": (cols,), "c": (cols,)}
        return {
            name: random_tensor(TensorSpec(shape, dtype), source, device)
            for name, shape in shapes.items()
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        shape = (workload.size("rows"), workload.size("cols"))
        return {"out": TensorSpec(shape, _out_dtype(workload))}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        exact = [tensor.double() for tensor in inputs.values()]
        return {"out": _operate(workload.text("operation"), *exact)}

    def tolerance(self, workload: Workload) -> Tolerance:
        relative = max(ROUNDING[_out_dtype(workload)], ROUNDING[workload.text("dtype")])
        return Tolerance(relative, relative)

    def cost(self, workload: Workload) -> Cost:
        operation, cols = workload.text("operation"), workload.size("cols")
        elements = workload.size("rows") * cols
        whole = 1 if operation == "affine" else len(OPERATIONS[operation])
        each = ELEMENT_BYTES[workload.text("dtype")]
        moved = elements * (whole * each + ELEMENT_BYTES[_out_dtype(workload)])
        moved += 2 * cols * each if operation == "affine" else 0
        return Cost(flops=_FLOPS[operation] * elements, bytes=float(moved))

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
        grid = (element_grid(elements, config),)
        return [Launch(elementwise_kernel, grid, arguments, constants)]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        operation, out_dtype = workload.text("operation"), _out_dtype(workload)
        names = OPERATIONS[operation]

        def eager(*operands: torch.Tensor) -> torch.Tensor:
            import torch

            return _operate(operation, *operands).to(getattr(torch, out_dtype))

        return {
            "eager": named("out", eager, *names),
            "compile": named("out", compiled(eager), *names),
        }


def _workload(rows: int, cols: int, operation: str, dtype: str) -> Workload:
    return Workload.of(rows=rows, cols=cols, operation=operation, dtype=dtype)


def _elements(workload: Workload) -> int:
    return workload.size("rows") * workload.size("cols")


def _out_dtype(workload: Workload) -> str:
    dtype = workload.text("dtype")
    if workload.text("operation") != "cast":
        return dtype
    return "bfloat16" if dtype == "float32" else "float32"
