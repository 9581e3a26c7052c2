"""Reductions of a matrix along its rows or its columns.

Memory-bound: the least traffic is one read of the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import ceil_div
from search_spaces.dims import Dims
from search_spaces.edges import ALL_EDGES
from search_spaces.kernel import EXACT, Kernel, Launch, Tolerance
from search_spaces.kernels.dtypes import DTYPES, ROUNDING
from search_spaces.kernels.limits import LARGEST_SIDE, integer
from search_spaces.kernels.reduction.combination import combining
from search_spaces.kernels.reduction.space import default_point, reduction_space, sizes
from search_spaces.kernels.reduction.triton_kernels import reduction_kernel
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch

OPERATIONS = ("sum", "mean", "max", "min", "argmax")


class Reduction(Kernel):
    """A reduction of x[rows, cols]; dims rows, cols, axis, operation and dtype.

    axis: 1 gives one result per row, 0 one per column. operation: sum, mean, max, min or argmax,
    which gives the first place of the largest value as int64. x has a mean of 1, so that sums are
    not rounding errors alone.
    """

    name = "reduction"
    edges = ALL_EDGES
    dims = Dims(
        rows=LARGEST_SIDE, cols=LARGEST_SIDE, axis=(0, 1), operation=OPERATIONS, dtype=DTYPES
    )

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (8192, 4096, 1, "sum", "bfloat16"),
            (4096, 128256, 1, "max", "float32"),  # logits of Llama-3
            (64, 151936, 1, "argmax", "bfloat16"),  # greedy decoding of Qwen3
            (16, 1048576, 1, "sum", "float32"),  # few long rows
            (1, 16777216, 1, "mean", "float32"),  # a loss over all tokens
            (8192, 4096, 0, "sum", "bfloat16"),  # the gradient of a bias
            (401408, 256, 0, "mean", "float16"),  # batch norm of ResNet-50, NHWC
            (65536, 512, 1, "min", "float16"),
            (8191, 4099, 0, "max", "float32"),
        )

    def small_workload(self, workload: Workload) -> Workload:
        few, many = 5, 333
        along_rows = workload.size("axis") == 1
        return workload.with_dims(
            rows=few if along_rows else many, cols=many if along_rows else few * 7
        )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"x": workload.spec("rows", "cols", mean=1.0)}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        dtype = "int64" if _is_place(workload) else workload.text("dtype")
        return {"out": workload.spec(sizes(workload)[0], dtype=dtype)}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        splits = integer(config, "splits")
        if splits == 1:
            return {}
        shape = (splits, sizes(workload)[0])
        places = {"place": workload.spec(*shape, dtype="int32")} if _is_place(workload) else {}
        return {"value": workload.spec(*shape, dtype="float32"), **places}

    def tolerance(self, workload: Workload) -> Tolerance:
        if _is_place(workload):
            return EXACT
        relative = ROUNDING[workload.text("dtype")]
        return Tolerance(relative, relative)

    def flops(self, workload: Workload) -> float:
        elements = workload.size("rows") * workload.size("cols")
        return float(elements)

    def space(self, workload: Workload) -> SearchSpace:
        return reduction_space(workload)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(workload, device)

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        x, out = tensors["x"], tensors["out"]
        value, place = tensors.get("value"), tensors.get("place")
        kept, length = sizes(workload)
        operation, splits = workload.text("operation"), integer(config, "splits")
        constants = {
            "AXIS": workload.size("axis"),
            "OPERATION": operation,
            "BLOCK_KEEP": config["BLOCK_KEEP"],
            "BLOCK_RED": config["BLOCK_RED"],
            "SPLITS": splits,
            "LOAD_STAGES": config["stages"],
            "num_warps": config["num_warps"],
        }
        grid = (ceil_div(kept, integer(config, "BLOCK_KEEP")), splits)
        arguments = (x, out, value, place, kept, length, x.stride(0))
        launches = [Launch(reduction_kernel, grid, arguments, constants)]
        if splits > 1:
            launches.append(combining(value, place, out, operation, splits, kept, length))
        return launches

    def eager(self, workload: Workload) -> Callable[..., Any]:
        def eager(x: torch.Tensor) -> torch.Tensor:
            return _reduced(x, workload)

        return eager


def _is_place(workload: Workload) -> bool:
    return workload.text("operation") == "argmax"


def _reduced(x: torch.Tensor, workload: Workload) -> torch.Tensor:
    """The reduction by plain torch."""
    operation, axis = workload.text("operation"), workload.size("axis")
    name = {"max": "amax", "min": "amin"}.get(operation, operation)
    reduced: torch.Tensor = getattr(x, name)(dim=axis)
    return reduced
