"""Reductions of a matrix along its rows or its columns.

Memory-bound: the least traffic is one read of the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from search_spaces.block_sizes import ceil_div
from search_spaces.declaration.dimensions import check_dims
from search_spaces.kernel import EXACT, Cost, Kernel, Launch, TensorSpec, Tolerance
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES, ROUNDING
from search_spaces.kernels.launch_limits import MAX_SIZE, integer
from search_spaces.kernels.reduction.combination import combining
from search_spaces.kernels.reduction.space import default_point, reduction_space, sizes
from search_spaces.kernels.reduction.triton_kernels import reduction_kernel
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import compiled, generator, named, random_tensor

if TYPE_CHECKING:
    import torch

    from search_spaces.kernel import Tensors

OPERATIONS = ("sum", "mean", "max", "min", "argmax")
_INDEX_BYTES = 8


class Reduction(Kernel):
    """A reduction of x[rows, cols]; dims rows, cols, axis, operation and dtype.

    axis: 1 gives one result per row, 0 one per column. operation: sum, mean, max, min or argmax,
    which gives the first place of the largest value as int64. x has a mean of 1, so that sums are
    not rounding errors alone.
    """

    name = "reduction"

    def workloads(self) -> Sequence[Workload]:
        return [
            _workload(8192, 4096, 1, "sum", "bfloat16"),
            _workload(4096, 128256, 1, "max", "float32"),  # logits of Llama-3
            _workload(64, 151936, 1, "argmax", "bfloat16"),  # greedy decoding of Qwen3
            _workload(16, 1048576, 1, "sum", "float32"),  # few long rows
            _workload(1, 16777216, 1, "mean", "float32"),  # a loss over all tokens
            _workload(8192, 4096, 0, "sum", "bfloat16"),  # the gradient of a bias
            _workload(401408, 256, 0, "mean", "float16"),  # batch norm of ResNet-50, NHWC
            _workload(65536, 512, 1, "min", "float16"),
            _workload(8191, 4099, 0, "max", "float32"),
        ]

    def check_workload(self, workload: Workload) -> None:
        check_dims(
            self.name,
            workload,
            sizes={"rows": MAX_SIZE, "cols": MAX_SIZE},
            dtypes=DTYPES,
            choices={"operation": OPERATIONS, "axis": (0, 1)},
        )

    def small_workload(self, workload: Workload) -> Workload:
        few, many = 5, 333
        along_rows = workload.size("axis") == 1
        return workload.with_dims(
            rows=few if along_rows else many, cols=many if along_rows else few * 7
        )

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        spec = TensorSpec((workload.size("rows"), workload.size("cols")), workload.text("dtype"))
        x = random_tensor(spec, generator(seed, device), device)
        return {"x": x if device == "meta" else x.add_(1.0)}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        dtype = "int64" if _is_place(workload) else workload.text("dtype")
        return {"out": TensorSpec((sizes(workload)[0],), dtype)}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        splits = integer(config, "splits")
        if splits == 1:
            return {}
        shape = (splits, sizes(workload)[0])
        places = {"place": TensorSpec(shape, "int32")} if _is_place(workload) else {}
        return {"value": TensorSpec(shape, "float32"), **places}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        return {"out": _reduced(inputs["x"].double(), workload)}

    def tolerance(self, workload: Workload) -> Tolerance:
        if _is_place(workload):
            return EXACT
        relative = ROUNDING[workload.text("dtype")]
        return Tolerance(relative, relative)

    def cost(self, workload: Workload) -> Cost:
        elements = workload.size("rows") * workload.size("cols")
        each = ELEMENT_BYTES[workload.text("dtype")]
        results = sizes(workload)[0] * (_INDEX_BYTES if _is_place(workload) else each)
        return Cost(flops=float(elements), bytes=float(elements * each + results))

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

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        def eager(x: torch.Tensor) -> torch.Tensor:
            return _reduced(x, workload)

        return {"eager": named("out", eager, "x"), "compile": named("out", compiled(eager), "x")}


def _workload(rows: int, cols: int, axis: int, operation: str, dtype: str) -> Workload:
    return Workload.of(rows=rows, cols=cols, axis=axis, operation=operation, dtype=dtype)


def _is_place(workload: Workload) -> bool:
    return workload.text("operation") == "argmax"


def _reduced(x: torch.Tensor, workload: Workload) -> torch.Tensor:
    """The reduction by plain torch."""
    operation, axis = workload.text("operation"), workload.size("axis")
    name = {"max": "amax", "min": "amin"}.get(operation, operation)
    reduced: torch.Tensor = getattr(x, name)(dim=axis)
    return reduced
