"""Row softmax, fused into one Triton kernel.

Memory-bound: the least traffic is one read and one write of the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from search_spaces.errors import WorkloadError
from search_spaces.kernel import Cost, Launch, TensorSpec, Tolerance
from search_spaces.kernels.cudnn import softmax_forward
from search_spaces.kernels.dtypes import ELEMENT_BYTES, ROUNDING
from search_spaces.kernels.rows import (
    RowKernel,
    row_constants,
    step_constants,
    step_grid,
    workloads,
)
from search_spaces.kernels.softmax.space import default_point, softmax_space
from search_spaces.kernels.softmax.triton_kernels import softmax_kernel
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import compiled, generator, named, random_tensor

if TYPE_CHECKING:
    import torch

    from search_spaces.kernel import Tensors


class Softmax(RowKernel):
    """`softmax(x, -1)` of x[rows, cols]; dims rows, cols (at most 32768) and dtype."""

    name = "softmax"
    max_cols = 32768

    def workloads(self) -> Sequence[Workload]:
        return workloads(
            (8192, 8192, "bfloat16"),
            (8192, 8192, "float16"),
            (4096, 32768, "float32"),
            (65536, 1024, "bfloat16"),
            (32768, 1000, "float32"),
            (16384, 5003, "bfloat16"),
            (131072, 128, "float16"),
            (128, 16384, "float32"),
        )

    def check_workload(self, workload: Workload) -> None:
        cols = workload.get("cols")
        if isinstance(cols, int) and cols > self.max_cols:
            raise WorkloadError(
                f"{self.name} [{workload.key}]: cols is {cols}, more than the {self.max_cols} "
                "that this kernel holds in registers",
                "use online_softmax, which takes rows of any length",
            )
        super().check_workload(workload)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        spec = TensorSpec((workload.size("rows"), workload.size("cols")), workload.text("dtype"))
        return {"x": random_tensor(spec, generator(seed, device), device, scale=2.0)}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        return {"out": inputs["x"].double().softmax(dim=-1)}

    def tolerance(self, workload: Workload) -> Tolerance:
        relative = ROUNDING[workload.text("dtype")]
        # A single probability may be near one, where rounding to the output's dtype alone may be
        # off by half of `relative`.
        return Tolerance(relative, relative)

    def cost(self, workload: Workload) -> Cost:
        elements = workload.size("rows") * workload.size("cols")
        moved = 2.0 * elements * ELEMENT_BYTES[workload.text("dtype")]
        return Cost(flops=4.0 * elements, bytes=moved)

    def space(self, workload: Workload) -> SearchSpace:
        return softmax_space(workload)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(workload, device)

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        x, out = tensors["x"], tensors["out"]
        constants = {**row_constants(x, out, config), **step_constants(workload, config)}
        arguments = (x, out, workload.size("rows"), x.stride(0), out.stride(0))
        return [Launch(softmax_kernel, step_grid(workload, config), arguments, constants)]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        def eager(x: torch.Tensor) -> torch.Tensor:
            return x.softmax(dim=-1)

        return {
            "eager": named("out", eager, "x"),
            "compile": named("out", compiled(eager), "x"),
            "vendor": named("out", softmax_forward, "x"),
        }
