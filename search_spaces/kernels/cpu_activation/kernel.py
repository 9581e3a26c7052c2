"""Activation functions on a CPU: formulas that Inductor compiles, or torch's own kernels.

Memory-bound where the tensor is larger than the caches, bound by exponentials and divisions else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from search_spaces.declaration.dimensions import check_dims, tolerance_of
from search_spaces.errors import WorkloadError
from search_spaces.kernel import EXACT, Cost, TensorSpec, Tolerance
from search_spaces.kernels.cpu_activation.forms import APPROXIMATE, FORMS, relu1_clamp
from search_spaces.kernels.cpu_forms import (
    FLOATS_AND_INT8,
    CpuRows,
    element_bytes,
    form_space,
    rounding,
)
from search_spaces.kernels.launch_limits import MAX_SIZE
from search_spaces.records import Config, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import generator, named, random_tensor, scripted

if TYPE_CHECKING:
    from search_spaces.kernels.cpu_forms import Form, Tensors

#: Functions of int8, whose results are integers.
_OF_INTEGERS = ("relu", "relu1")
_FLOPS = 10.0


class CpuActivation(CpuRows):
    """`function(x)` of x[rows, cols] on a CPU; dims rows, cols, function, dtype.

    function: relu, relu1 (clamped to 0 and 1), sigmoid, tanh, gelu, gelu_tanh, silu, or swiglu,
    whose x is [rows, 2 cols] with the gate in front; int8 takes relu and relu1. Optionally
    tolerance (relative error), which decides whether the tanh form of gelu is admissible in
    float32; it is in bfloat16.
    """

    name = "cpu_activation"

    def workloads(self) -> Sequence[Workload]:
        return [
            _workload(512, 3072, "gelu", "float32"),  # BERT-base: 512 tokens
            _workload(1500, 5120, "gelu", "bfloat16"),  # Whisper large-v3: the encoder
            _workload(512, 3072, "gelu", "float32").with_dims(tolerance=1e-3),
            _workload(256, 14336, "swiglu", "bfloat16"),  # Llama-3 8B: 256 tokens
            _workload(16, 28672, "swiglu", "float32"),  # Llama-3 70B: decoding 16 requests
            _workload(1024, 3072, "gelu_tanh", "float32"),  # GPT-2 small: 1,024 tokens
            _workload(2048, 1024, "sigmoid", "float32"),  # DLRM: the top network's layers
            _workload(12544, 64, "relu", "int8"),  # ResNet-50: the first layer of one image
            _workload(12544, 64, "relu1", "float32"),
            _workload(12544, 64, "relu1", "bfloat16"),
            _workload(1024, 4096, "tanh", "bfloat16"),
            _workload(333, 1001, "silu", "float32"),
        ]

    def check_workload(self, workload: Workload) -> None:
        check_dims(
            self.name,
            workload,
            sizes={"rows": MAX_SIZE, "cols": MAX_SIZE // 2},
            dtypes=FLOATS_AND_INT8,
            choices={"function": tuple(FORMS)},
            optional=("tolerance",),
        )
        if _is_integer(workload) and workload["function"] not in _OF_INTEGERS:
            raise WorkloadError(
                f"{self.name} [{workload.key}]: {workload['function']} of int8 is no integer",
                f"use one of {', '.join(_OF_INTEGERS)}, or dtype=float32",
            )

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        width = workload.size("cols") * (2 if _is_gated(workload) else 1)
        spec = TensorSpec((workload.size("rows"), width), workload.text("dtype"))
        source = generator(seed, device)
        return {"x": random_tensor(spec, source, device, scale=2.0, limits=(-128, 128))}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        return {"out": self.eager(workload)(inputs["x"].double())}

    def tolerance(self, workload: Workload) -> Tolerance:
        if _is_integer(workload):
            return EXACT
        relative = tolerance_of(workload, rounding(workload))
        # A gated function in two kernels is rounded twice.
        return Tolerance(relative, 2 * relative)

    def cost(self, workload: Workload) -> Cost:
        elements = workload.size("rows") * workload.size("cols")
        tensors = 3.0 if _is_gated(workload) else 2.0
        moved = tensors * elements * element_bytes(workload.text("dtype"))
        return Cost(flops=_FLOPS * elements, bytes=moved)

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

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        traced = scripted(self.eager(workload))
        found = {**super().baselines(workload), "torchscript": named("out", traced, "x")}
        if workload["function"] == "relu1":
            found["clamp"] = named("out", relu1_clamp, "x")
        return found


def _workload(rows: int, cols: int, function: str, dtype: str) -> Workload:
    return Workload.of(rows=rows, cols=cols, function=function, dtype=dtype)


def _is_gated(workload: Workload) -> bool:
    return workload.text("function") == "swiglu"


def _is_integer(workload: Workload) -> bool:
    return workload.text("dtype") == "int8"
