"""Activation functions on a CPU: formulas that Inductor compiles, or torch's own kernels.

Memory-bound where the tensor is larger than the caches, bound by exponentials and divisions else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.dims import Dims, tolerance_of
from search_spaces.errors import WorkloadError
from search_spaces.kernel import EXACT, Tolerance
from search_spaces.kernels.cpu_activation.forms import APPROXIMATE, FORMS, relu1_clamp
from search_spaces.kernels.cpu_forms import FLOATS_AND_INT8, CpuRows, form_space, rounding
from search_spaces.kernels.limits import MAX_SIZE
from search_spaces.records import Config, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import scripted

if TYPE_CHECKING:
    from search_spaces.kernels.cpu_forms import Form, Tensors

#: Functions of int8, whose results are integers.
_OF_INTEGERS = ("relu", "relu1")


class CpuActivation(CpuRows):
    """`function(x)` of x[rows, cols] on a CPU; dims rows, cols, function, dtype.

    function: relu, relu1 (clamped to 0 and 1), sigmoid, tanh, gelu, gelu_tanh, silu, or swiglu,
    whose x is [rows, 2 cols] with the gate in front; int8 takes relu and relu1. Optionally
    tolerance (relative error), which decides whether the tanh form of gelu is admissible in
    float32; it is in bfloat16.
    """

    name = "cpu_activation"
    dims = Dims(
        rows=int, cols=MAX_SIZE // 2, function=tuple(FORMS), dtype=FLOATS_AND_INT8, tolerance=float
    )

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (512, 3072, "gelu", "float32"),  # BERT-base: 512 tokens
            (1500, 5120, "gelu", "bfloat16"),  # Whisper large-v3: the encoder
            (512, 3072, "gelu", "float32", 1e-3),
            (256, 14336, "swiglu", "bfloat16"),  # Llama-3 8B: 256 tokens
            (16, 28672, "swiglu", "float32"),  # Llama-3 70B: decoding 16 requests
            (1024, 3072, "gelu_tanh", "float32"),  # GPT-2 small: 1,024 tokens
            (2048, 1024, "sigmoid", "float32"),  # DLRM: the top network's layers
            (12544, 64, "relu", "int8"),  # ResNet-50: the first layer of one image
            (12544, 64, "relu1", "float32"),
            (12544, 64, "relu1", "bfloat16"),
            (1024, 4096, "tanh", "bfloat16"),
            (333, 1001, "silu", "float32"),
        )

    def check_workload(self, workload: Workload) -> None:
        super().check_workload(workload)
        if _is_integer(workload) and workload["function"] not in _OF_INTEGERS:
            raise WorkloadError(
                f"{self.name} [{workload.key}]: {workload['function']} of int8 is no integer",
                f"use one of {', '.join(_OF_INTEGERS)}, or dtype=float32",
            )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        width = workload.size("cols") * (2 if workload["function"] == "swiglu" else 1)
        return {"x": workload.spec("rows", width, scale=2.0, limits=(-128, 128))}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        return {"out": self.eager(workload)(inputs["x"].double())}

    def tolerance(self, workload: Workload) -> Tolerance:
        if _is_integer(workload):
            return EXACT
        relative = tolerance_of(workload, rounding(workload))
        # A gated function in two kernels is rounded twice.
        return Tolerance(relative, 2 * relative)

    def flops(self, workload: Workload) -> float:
        elements = workload.size("rows") * workload.size("cols")
        return 10.0 * elements

    def space(self, workload: Workload) -> SearchSpace:
        function, allowed = workload.text("function"), self.tolerance(workload).relative
        forms = [
            form for form in FORMS[function] if APPROXIMATE.get((function, form), 0.0) <= allowed
        ]
        return form_space(self.name, forms)

    def eager(self, workload: Workload) -> Form:
        return FORMS[workload.text("function")]["library"]

    def form(self, workload: Workload, config: Config) -> Form:
        return FORMS[workload.text("function")][str(config["form"])]

    def alternatives(self, workload: Workload) -> Mapping[str, Callable[..., Any]]:
        clamped = {"clamp": relu1_clamp} if workload["function"] == "relu1" else {}
        return {"torchscript": scripted(self.eager(workload)), **clamped}


def _is_integer(workload: Workload) -> bool:
    return workload.text("dtype") == "int8"
