"""The largest magnitudes of a matrix, from which the scales of quantisation come.

Memory-bound: the least traffic is one read of the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from search_spaces.declaration.dimensions import check_dims
from search_spaces.kernel import EXACT, Cost, Kernel, Launch, TensorSpec, Tolerance
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES
from search_spaces.kernels.launch_limits import MAX_SIZE
from search_spaces.kernels.quantise.space import (
    SCALES,
    check_elements,
    default_point,
    group_launches,
    magnitude_space,
    part_specs,
    scale_shape,
    tensor_launches,
)
from search_spaces.kernels.quantise.torch_groups import largest_magnitudes
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import compiled, generator, named, random_tensor

if TYPE_CHECKING:
    import torch

    from search_spaces.kernel import Tensors

_OUT_BYTES = 4
#: Not used without codes.
_NO_CODE = 1.0


class Amax(Kernel):
    """The largest magnitudes of x[rows, cols], float32; dims rows, cols, scales and dtype.

    scales: the elements that have one, `row`, `block128` (128 adjacent ones of a row) or `tensor`.
    """

    name = "amax"

    def workloads(self) -> Sequence[Workload]:
        return [
            _workload(8192, 8192, "tensor", "bfloat16"),  # Llama-3 70B
            _workload(14336, 4096, "tensor", "float32"),  # a weight of Llama-3 8B
            _workload(4096, 14336, "row", "bfloat16"),  # Llama-3 8B, gated
            _workload(16, 28672, "row", "float16"),  # Llama-3 70B, gated, decoding
            _workload(8192, 7168, "block128", "bfloat16"),  # DeepSeek-V3
            _workload(151936, 4096, "row", "bfloat16"),  # vocabulary of Qwen3 8B
            _workload(999, 1003, "tensor", "float16"),
        ]

    def check_workload(self, workload: Workload) -> None:
        sizes = {"rows": MAX_SIZE, "cols": MAX_SIZE}
        check_dims(self.name, workload, sizes=sizes, dtypes=DTYPES, choices={"scales": SCALES})
        check_elements(self.name, workload)

    def small_workload(self, workload: Workload) -> Workload:
        cols = {"row": 2501, "block128": 333, "tensor": 509}[workload.text("scales")]
        return workload.with_dims(rows=13 if cols < 1000 else 5, cols=cols)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        spec = TensorSpec((workload.size("rows"), workload.size("cols")), workload.text("dtype"))
        return {"x": random_tensor(spec, generator(seed, device), device)}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": TensorSpec(scale_shape(workload), "float32")}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        return part_specs(workload, config)

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        return {"out": largest_magnitudes(inputs["x"].double(), workload.text("scales"))}

    def tolerance(self, workload: Workload) -> Tolerance:
        return EXACT

    def cost(self, workload: Workload) -> Cost:
        elements = workload.size("rows") * workload.size("cols")
        moved = elements * ELEMENT_BYTES[workload.text("dtype")]
        return Cost(
            flops=2.0 * elements, bytes=float(moved + prod(scale_shape(workload)) * _OUT_BYTES)
        )

    def space(self, workload: Workload) -> SearchSpace:
        return magnitude_space(workload, self.name, codes=False)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(workload)

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        if workload["scales"] == "tensor":
            return tensor_launches(workload, config, tensors, None, _NO_CODE)
        return group_launches(workload, config, tensors["x"], None, tensors["out"], _NO_CODE)

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        def eager(x: torch.Tensor) -> torch.Tensor:
            return largest_magnitudes(x, workload.text("scales")).float()

        return {"eager": named("out", eager, "x"), "compile": named("out", compiled(eager), "x")}


def _workload(rows: int, cols: int, scales: str, dtype: str) -> Workload:
    return Workload.of(rows=rows, cols=cols, scales=scales, dtype=dtype)
