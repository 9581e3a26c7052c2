"""The largest magnitudes of a matrix, from which the scales of quantization come.

Memory-bound: the least traffic is one read of the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.dims import Dims
from search_spaces.edges import ALL_EDGES
from search_spaces.kernel import EXACT, Kernel, Launch, Tolerance
from search_spaces.kernels.dtypes import DTYPES
from search_spaces.kernels.quantize.space import (
    SCALES,
    check_elements,
    default_point,
    group_launches,
    magnitude_space,
    part_specs,
    scale_shape,
    tensor_launches,
)
from search_spaces.kernels.quantize.torch_groups import largest_magnitudes
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch

#: Not used without codes.
_NO_CODE = 1.0


class Amax(Kernel):
    """The largest magnitudes of x[rows, cols], float32; dims rows, cols, scales and dtype.

    scales: the elements that have one, `row`, `block128` (128 adjacent ones of a row) or `tensor`.
    """

    name = "amax"
    edges = ALL_EDGES
    dims = Dims(rows=int, cols=int, scales=SCALES, dtype=DTYPES)

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (8192, 8192, "tensor", "bfloat16"),  # Llama-3 70B
            (14336, 4096, "tensor", "float32"),  # a weight of Llama-3 8B
            (4096, 14336, "row", "bfloat16"),  # Llama-3 8B, gated
            (16, 28672, "row", "float16"),  # Llama-3 70B, gated, decoding
            (8192, 7168, "block128", "bfloat16"),  # DeepSeek-V3
            (151936, 4096, "row", "bfloat16"),  # vocabulary of Qwen3 8B
            (999, 1003, "tensor", "float16"),
        )

    def check_workload(self, workload: Workload) -> None:
        super().check_workload(workload)
        check_elements(self.name, workload)

    def small_workload(self, workload: Workload) -> Workload:
        cols = {"row": 2501, "block128": 333, "tensor": 509}[workload.text("scales")]
        return workload.with_dims(rows=13 if cols < 1000 else 5, cols=cols)

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        spec = workload.spec("rows", "cols")
        return {"x": spec}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec(*scale_shape(workload), dtype="float32")}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        return part_specs(workload, config)

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        return {"out": largest_magnitudes(inputs["x"].double(), workload.text("scales"))}

    def tolerance(self, workload: Workload) -> Tolerance:
        return EXACT

    def flops(self, workload: Workload) -> float:
        elements = workload.size("rows") * workload.size("cols")
        return 2.0 * elements

    def space(self, workload: Workload) -> SearchSpace:
        return magnitude_space(workload, self.name, codes=False)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(workload)

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        if workload["scales"] == "tensor":
            return tensor_launches(workload, config, tensors, None, _NO_CODE)
        return group_launches(workload, config, tensors["x"], None, tensors["out"], _NO_CODE)

    def eager(self, workload: Workload) -> Callable[..., Any]:
        def eager(x: torch.Tensor) -> torch.Tensor:
            return largest_magnitudes(x, workload.text("scales")).float()

        return eager
