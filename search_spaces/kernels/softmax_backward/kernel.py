"""The backward pass of softmax and log-softmax, of rows of any length.

Memory-bound: the least traffic is one read of two matrices and one write of a third. A row that is
read twice comes from a cache the second time, if it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from search_spaces.declaration.dimensions import check_dims
from search_spaces.kernel import Cost, Kernel, Launch, TensorSpec, Tolerance
from search_spaces.kernels.cudnn import log_softmax_backward, softmax_backward
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES, ROUNDING
from search_spaces.kernels.launch_limits import MAX_SIZE, integer
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
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import compiled, generator, named, random_tensor

if TYPE_CHECKING:
    import torch

    from search_spaces.kernel import Tensors

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

    def workloads(self) -> Sequence[Workload]:
        return [
            _workload(4096, 128256, "bfloat16", log=True),  # the loss of Llama-3
            _workload(8192, 50257, "float16", log=True),  # the loss of GPT-2
            _workload(98304, 1024, "float16"),  # scores of GPT-2, 8 x 12 heads
            _workload(65536, 512, "bfloat16"),  # scores of BERT-large, 8 x 16 heads
            _workload(30000, 1500, "float32"),  # scores of Whisper large-v3, 20 heads
            _workload(8192, 8192, "bfloat16"),
            _workload(256, 1000, "float32", log=True),  # ImageNet's classes, ResNet-50
            _workload(16, 1048576, "float32"),  # few long rows
            _workload(99, 50257, "float32"),
        ]

    def check_workload(self, workload: Workload) -> None:
        sizes = {"rows": MAX_SIZE, "cols": MAX_COLS}
        check_dims(self.name, workload, sizes=sizes, dtypes=DTYPES, flags=("log",))

    def small_workload(self, workload: Workload) -> Workload:
        return workload.with_dims(rows=3, cols=5003 if workload.size("cols") > 5003 else 501)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        cols, source = workload.size("cols"), generator(seed, device)
        spec = TensorSpec((workload.size("rows"), cols), workload.text("dtype"))
        x = random_tensor(spec, source, device, scale=2.0)
        scale = 1.0 if workload["log"] else min(max(cols / 8.0, 1.0), _MOST_SCALE)
        dy = random_tensor(spec, source, device, scale=scale)
        if device == "meta":
            return {"y": x, "dy": dy}
        y = x.float().log_softmax(dim=-1) if workload["log"] else x.float().softmax(dim=-1)
        return {"y": y.to(x.dtype), "dy": dy}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        shape = (workload.size("rows"), workload.size("cols"))
        return {"dx": TensorSpec(shape, workload.text("dtype"))}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        splits = integer(config, "splits")
        if splits == 1:
            return {}
        return {"total": TensorSpec((workload.size("rows"), splits), "float32")}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        y, dy = inputs["y"].double(), inputs["dy"].double()
        if workload["log"]:
            return {"dx": dy - y.exp() * dy.sum(dim=-1, keepdim=True)}
        return {"dx": y * (dy - (y * dy).sum(dim=-1, keepdim=True))}

    def tolerance(self, workload: Workload) -> Tolerance:
        relative = ROUNDING[workload.text("dtype")]
        return Tolerance(relative, relative)

    def cost(self, workload: Workload) -> Cost:
        elements = workload.size("rows") * workload.size("cols")
        moved = 3.0 * elements * ELEMENT_BYTES[workload.text("dtype")]
        return Cost(flops=4.0 * elements, bytes=moved)

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

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        log = bool(workload["log"])

        def eager(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
            import torch

            # What autograd calls.
            calls = torch.ops.aten
            backward = calls._log_softmax_backward_data if log else calls._softmax_backward_data
            dx: torch.Tensor = backward(dy, y, -1, y.dtype)
            return dx

        return {
            "eager": named("dx", eager, "y", "dy"),
            "compile": named("dx", compiled(eager), "y", "dy"),
            "vendor": named("dx", log_softmax_backward if log else softmax_backward, "y", "dy"),
        }


def _workload(rows: int, cols: int, dtype: str, *, log: bool = False) -> Workload:
    return Workload.of(rows=rows, cols=cols, dtype=dtype, log=log)
