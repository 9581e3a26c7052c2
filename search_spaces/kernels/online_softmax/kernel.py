"""Softmax and log-softmax of rows of any length, also masked.

Memory-bound: the least traffic is one read and one write of the matrix. A row that is read twice
comes from a cache the second time, if it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.dims import Dims
from search_spaces.edges import ALL_EDGES
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Cost, Kernel, Launch, Tolerance
from search_spaces.kernels.cudnn import log_softmax_forward, softmax_forward
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES, ROUNDING
from search_spaces.kernels.limits import LARGEST_SIDE, integer
from search_spaces.kernels.long_rows import (
    MAX_COLS,
    block_constants,
    default_long_row,
    held_constants,
    long_row_space,
)
from search_spaces.kernels.online_softmax.triton_kernels import (
    held_softmax_kernel,
    online_softmax_kernel,
)
from search_spaces.kernels.rows import step_constants, step_grid
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, generator, random_tensor

if TYPE_CHECKING:
    import torch

MASKS = ("none", "causal", "boolean")
#: The mean error of rounding to the smallest float16 numbers, 2**-24 apart, is below this.
_FLOAT16_ERROR = 2.0**-25


class OnlineSoftmax(Kernel):
    """softmax[rows, cols] or log-softmax of x[rows, cols], of rows of any length; dims rows, cols,
    log, mask and dtype.

    log: whether the result is the logarithm of the softmax. mask: none; causal for the scores of
    self-attention, whose rows are those of square matrices [cols, cols] one after another, and
    query i sees keys 0 to i; or boolean, with an input mask[rows, cols] that is true where an
    element is seen, as padding masks and masks of allowed tokens are. A mask and log exclude each
    other, since the logarithm of a hidden element is minus infinity.

    Rows of up to 32,768 elements can be held in registers (passes 1). Others are read twice
    (passes 2), and several programs share a row where rows are few (splits).
    """

    name = "online_softmax"
    edges = ALL_EDGES
    dims = Dims(rows=LARGEST_SIDE, cols=MAX_COLS, dtype=DTYPES, log=bool, mask=MASKS)

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (4096, 128256, "bfloat16", True, "none"),  # log-probabilities of Llama-3
            (100, 50257, "float32", False, "none"),  # sampling from GPT-2
            (64, 151936, "bfloat16", False, "none"),  # sampling from Qwen3, 64 sequences
            (1, 128256, "float32", False, "none"),  # sampling from Llama-3, one sequence
            (2048, 50257, "float16", False, "none"),  # GPT-2
            (512, 51866, "float16", True, "none"),  # beam search of Whisper large-v3
            (98304, 1024, "float16", False, "causal"),  # scores of GPT-2, 8 x 12 heads
            (131072, 4096, "bfloat16", False, "causal"),  # scores of Llama-3 8B, 32 heads
            (65536, 512, "bfloat16", False, "boolean"),  # scores of BERT-large, 8 x 16 heads
            (128, 128256, "bfloat16", False, "boolean"),  # allowed tokens of Llama-3
            (13, 100003, "float32", False, "none"),
        )

    def check_workload(self, workload: Workload) -> None:
        super().check_workload(workload)
        where, mask = f"{self.name} [{workload.key}]", workload.text("mask")
        if workload["log"] and mask != "none":
            raise WorkloadError(
                f"{where}: the logarithm of a hidden element is minus infinity",
                "give log=false or mask=none",
            )
        if mask == "causal" and workload.size("rows") % workload.size("cols"):
            raise WorkloadError(
                f"{where}: rows are not those of square matrices of scores",
                "give rows = batch x heads x cols, or mask=boolean",
            )

    def small_workload(self, workload: Workload) -> Workload:
        if workload.text("mask") == "causal":
            return workload.with_dims(rows=35, cols=35)
        return workload.with_dims(rows=3, cols=5003 if workload.size("cols") > 5003 else 501)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        shape, source = workload.sizes("rows", "cols"), generator(seed, device)
        spec = workload.spec(*shape)
        inputs = {"x": random_tensor(spec, source, device, scale=2.0)}
        if workload.text("mask") == "boolean":
            seen = random_tensor(workload.spec(*shape, dtype="bool"), source, device)
            if device != "meta":
                # Each row has at least one element that is seen.
                seen[:, 0] = True
            inputs["mask"] = seen
        return inputs

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec(*workload.sizes("rows", "cols"))}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        splits = integer(config, "splits")
        if splits == 1:
            return {}
        partial = workload.spec("rows", splits, dtype="float32")
        return {"top": partial, "total": partial}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        x, mask = inputs["x"].double(), workload.text("mask")
        if mask == "boolean":
            x = x.masked_fill(~inputs["mask"], float("-inf"))
        elif mask == "causal":
            import torch

            keys, rows = (torch.arange(size, device=x.device) for size in reversed(x.shape))
            x = x.masked_fill(keys > (rows % x.shape[1])[:, None], float("-inf"))
        return {"out": x.log_softmax(dim=-1) if workload["log"] else x.softmax(dim=-1)}

    def tolerance(self, workload: Workload) -> Tolerance:
        dtype = workload.text("dtype")
        relative = ROUNDING[dtype]
        if dtype == "float16" and not workload["log"]:
            # Probabilities of long rows are that small; their mean square is at least 1 / cols**2.
            relative += _FLOAT16_ERROR * workload.size("cols")
        return Tolerance(relative, ROUNDING[dtype])

    def cost(self, workload: Workload) -> Cost:
        rows, cols = workload.sizes("rows", "cols")
        mask, each = workload.text("mask"), ELEMENT_BYTES[workload.text("dtype")]
        read = (cols + 1) / 2 if mask == "causal" else float(cols)
        moved = rows * ((read + cols) * each + (cols if mask == "boolean" else 0))
        return Cost(flops=4.0 * rows * read, bytes=moved)

    def space(self, workload: Workload) -> SearchSpace:
        return long_row_space(workload, self.name, tensors=1)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_long_row(workload, device, tensors=1)

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        rows, mask = workload.size("rows"), workload.text("mask")
        kind = {"MASK": mask, "LOG": workload["log"]}
        operands = (tensors["x"], tensors.get("mask"), tensors["out"])
        if config["passes"] == 1:
            held = {**held_constants(workload, config), **step_constants(workload, config), **kind}
            grid = step_grid(workload, config)
            return [Launch(held_softmax_kernel, grid, (*operands, rows), held)]
        constants = {**block_constants(workload, config), **kind}
        if mask == "causal":
            constants["EVEN"] = False
        splits = integer(config, "splits")
        phases = ("whole",) if splits == 1 else ("sum", "write")
        arguments = (*operands, tensors.get("top"), tensors.get("total"))
        return [
            Launch(online_softmax_kernel, (rows, splits), arguments, {**constants, "PHASE": phase})
            for phase in phases
        ]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        return _torch(workload)

    def alternatives(self, workload: Workload) -> Mapping[str, Callable[..., Any]]:
        if workload["mask"] != "none":
            return {}
        return {"vendor": log_softmax_forward if workload["log"] else softmax_forward}


def _torch(workload: Workload) -> Callable[..., torch.Tensor]:
    """The operation as users of torch write it."""
    cols, mask = workload.size("cols"), workload.text("mask")

    def log_softmax(x: torch.Tensor) -> torch.Tensor:
        return x.log_softmax(dim=-1)

    def softmax(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(dim=-1)

    def causal_softmax(x: torch.Tensor) -> torch.Tensor:
        import torch

        hidden = torch.ones(cols, cols, dtype=torch.bool, device=x.device).triu(1)
        scores = x.view(-1, cols, cols).masked_fill(hidden, float("-inf"))
        return scores.softmax(dim=-1).view(x.shape)

    def boolean_softmax(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(~mask, float("-inf")).softmax(dim=-1)

    by_mask: dict[str, Callable[..., torch.Tensor]] = {
        "none": log_softmax if workload["log"] else softmax,
        "causal": causal_softmax,
        "boolean": boolean_softmax,
    }
    return by_mask[mask]
