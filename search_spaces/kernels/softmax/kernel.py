"""Row softmax, fused into one Triton kernel.

Memory-bound: the least traffic is one read and one write of the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.dims import Dims
from search_spaces.edges import ALL_EDGES
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Launch
from search_spaces.kernels.cudnn import softmax_forward
from search_spaces.kernels.dtypes import DTYPES
from search_spaces.kernels.limits import LARGEST_SIDE
from search_spaces.kernels.rows import RowKernel, row_constants, step_constants, step_grid
from search_spaces.kernels.softmax.space import default_point, softmax_space
from search_spaces.kernels.softmax.triton_kernels import softmax_kernel
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch


class Softmax(RowKernel):
    """`softmax(x, -1)` of x[rows, cols]; dims rows, cols (at most 32768) and dtype."""

    name = "softmax"
    edges = ALL_EDGES
    dims = Dims(rows=LARGEST_SIDE, cols=32768, dtype=DTYPES)
    # A single probability may be near one, where rounding to the output's dtype alone may be off by
    # half of the tolerance.
    elementwise = 1

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
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
        cols, most = workload.get("cols"), self.dims["cols"]
        if isinstance(cols, int) and isinstance(most, int) and cols > most:
            raise WorkloadError(
                f"{self.name} [{workload.key}]: cols is {cols}, more than the {most} that this "
                "kernel holds in registers",
                "use online_softmax, which takes rows of any length",
            )
        super().check_workload(workload)

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"x": workload.spec("rows", "cols", scale=2.0)}

    def flops(self, workload: Workload) -> float:
        elements = workload.size("rows") * workload.size("cols")
        return 4.0 * elements

    def space(self, workload: Workload) -> SearchSpace:
        return softmax_space(workload)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(workload, device)

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        x, out = tensors["x"], tensors["out"]
        constants = {**row_constants(x, out, config), **step_constants(workload, config)}
        arguments = (x, out, workload.size("rows"), x.stride(0), out.stride(0))
        return [Launch(softmax_kernel, step_grid(workload, config), arguments, constants)]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        def eager(x: torch.Tensor) -> torch.Tensor:
            return x.softmax(dim=-1)

        return eager

    def alternatives(self, workload: Workload) -> Mapping[str, Callable[..., Any]]:
        return {"vendor": softmax_forward}
