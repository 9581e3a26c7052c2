"""The backward pass of softmax and log-softmax, of rows of any length.

Memory-bound: the least traffic is one read of two matrices and one write of a third. A row that is
read twice comes from a cache the second time, if it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.dims import Dims
from search_spaces.edges import ALL_EDGES
from search_spaces.kernel import Kernel, Launch
from search_spaces.kernels.cudnn import log_softmax_backward, softmax_backward
from search_spaces.kernels.dtypes import DTYPES
from search_spaces.kernels.limits import LARGEST_SIDE, integer
from search_spaces.kernels.long_rows import (
    MAX_COLS,
    block_constants,
    default_long_row,
    held_constants,
    long_row_space,
)
from search_spaces.kernels.rows import step_constants, step_grid
from search_spaces.kernels.softmax_backward.triton_kernels import (
    held_softmax_backward_kernel,
    softmax_backward_kernel,
)
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, generator, random_tensor

if TYPE_CHECKING:
    import torch

#: The largest standard deviation of dy, which float16 holds.
_MOST_SCALE = 4096.0


class SoftmaxBackward(Kernel):
    """dx[rows, cols] from y = softmax(x) and the gradient dy of y, of rows of any length; dims
    rows, cols, log and dtype.

    log: whether y is the log-softmax of x. Rows of up to 16,384 elements can be held in registers
    (passes 1). Others are read twice (passes 2), and several programs share a row where rows are
    few (splits). dy is large for long rows, as the loss scaling of mixed precision makes it.
    """

    name = "softmax_backward"
    edges = ALL_EDGES
    dims = Dims(rows=LARGEST_SIDE, cols=MAX_COLS, dtype=DTYPES, log=bool)
    output = "dx"
    elementwise = 1

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (4096, 128256, "bfloat16", True),  # the loss of Llama-3
            (8192, 50257, "float16", True),  # the loss of GPT-2
            (98304, 1024, "float16", False),  # scores of GPT-2, 8 x 12 heads
            (65536, 512, "bfloat16", False),  # scores of BERT-large, 8 x 16 heads
            (30000, 1500, "float32", False),  # scores of Whisper large-v3, 20 heads
            (8192, 8192, "bfloat16", False),
            (256, 1000, "float32", True),  # ImageNet's classes, ResNet-50
            (16, 1048576, "float32", False),  # few long rows
            (99, 50257, "float32", False),
        )

    def small_workload(self, workload: Workload) -> Workload:
        return workload.with_dims(rows=3, cols=5003 if workload.size("cols") > 5003 else 501)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        cols, source = workload.size("cols"), generator(seed, device)
        spec = workload.spec("rows", cols)
        x = random_tensor(spec, source, device, scale=2.0)
        scale = 1.0 if workload["log"] else min(max(cols / 8.0, 1.0), _MOST_SCALE)
        dy = random_tensor(spec, source, device, scale=scale)
        if device == "meta":
            return {"y": x, "dy": dy}
        y = x.float().log_softmax(dim=-1) if workload["log"] else x.float().softmax(dim=-1)
        return {"y": y.to(x.dtype), "dy": dy}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"dx": workload.spec("rows", "cols")}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        splits = integer(config, "splits")
        if splits == 1:
            return {}
        return {"total": workload.spec("rows", splits, dtype="float32")}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        y, dy = inputs["y"].double(), inputs["dy"].double()
        if workload["log"]:
            return {"dx": dy - y.exp() * dy.sum(dim=-1, keepdim=True)}
        return {"dx": y * (dy - (y * dy).sum(dim=-1, keepdim=True))}

    def flops(self, workload: Workload) -> float:
        elements = workload.size("rows") * workload.size("cols")
        return 4.0 * elements

    def space(self, workload: Workload) -> SearchSpace:
        return long_row_space(workload, self.name, tensors=2)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_long_row(workload, device, tensors=2)

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        rows, kind = workload.size("rows"), {"LOG": workload["log"]}
        operands = (tensors["y"], tensors["dy"], tensors["dx"])
        if config["passes"] == 1:
            held = {**held_constants(workload, config), **step_constants(workload, config), **kind}
            grid = step_grid(workload, config)
            return [Launch(held_softmax_backward_kernel, grid, (*operands, rows), held)]
        constants = {**block_constants(workload, config), **kind}
        splits = integer(config, "splits")
        phases = ("whole",) if splits == 1 else ("sum", "write")
        arguments = (*operands, tensors.get("total"))
        return [
            Launch(softmax_backward_kernel, (rows, splits), arguments, constants | {"PHASE": phase})
            for phase in phases
        ]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        log = bool(workload["log"])

        def eager(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
            import torch

            # What autograd calls.
            calls = torch.ops.aten
            backward = calls._log_softmax_backward_data if log else calls._softmax_backward_data
            dx: torch.Tensor = backward(dy, y, -1, y.dtype)
            return dx

        return eager

    def alternatives(self, workload: Workload) -> Mapping[str, Callable[..., Any]]:
        return {"vendor": log_softmax_backward if workload["log"] else softmax_backward}
