"""Softmax and log-softmax of rows of any length, also masked.

Memory-bound: the least traffic is one read and one write of the matrix. A row that is read twice
comes from a cache the second time, if it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from search_spaces.declaration.dimensions import check_dims
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Cost, Kernel, Launch, TensorSpec, Tolerance
from search_spaces.kernels.cudnn import log_softmax_forward, softmax_forward
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES, ROUNDING
from search_spaces.kernels.launch_limits import MAX_SIZE, integer
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
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import compiled, generator, named, random_tensor

if TYPE_CHECKING:
    import torch

    from search_spaces.kernel import Tensors

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

    def workloads(self) -> Sequence[Workload]:
        return [
            _workload(4096, 128256, "bfloat16", log=True),  # log-probabilities of Llama-3
            _workload(100, 50257, "float32"),  # sampling from GPT-2
            _workload(64, 151936, "bfloat16"),  # sampling from Qwen3, 64 sequences
            _workload(1, 128256, "float32"),  # sampling from Llama-3, one sequence
            _workload(2048, 50257, "float16"),  # GPT-2
            _workload(512, 51866, "float16", log=True),  # beam search of Whisper large-v3
            _workload(98304, 1024, "float16", mask="causal"),  # scores of GPT-2, 8 x 12 heads
            _workload(131072, 4096, "bfloat16", mask="causal"),  # scores of Llama-3 8B, 32 heads
            _workload(65536, 512, "bfloat16", mask="boolean"),  # scores of BERT-large, 8 x 16 heads
            _workload(128, 128256, "bfloat16", mask="boolean"),  # allowed tokens of Llama-3
            _workload(13, 100003, "float32"),
        ]

    def check_workload(self, workload: Workload) -> None:
        check_dims(
            self.name,
            workload,
            sizes={"rows": MAX_SIZE, "cols": MAX_COLS},
            dtypes=DTYPES,
            flags=("log",),
            choices={"mask": MASKS},
        )
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
        shape, source = _shape(workload), generator(seed, device)
        spec = TensorSpec(shape, workload.text("dtype"))
        inputs = {"x": random_tensor(spec, source, device, scale=2.0)}
        if workload.text("mask") == "boolean":
            seen = random_tensor(TensorSpec(shape, "bool"), source, device)
            if device != "meta":
                # Each row has at least one element that is seen.
                seen[:, 0] = True
            inputs["mask"] = seen
        return inputs

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": TensorSpec(_shape(workload), workload.text("dtype"))}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        splits = integer(config, "splits")
        if splits == 1:
            return {}
        partial = TensorSpec((workload.size("rows"), splits), "float32")
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
        rows, cols = _shape(workload)
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

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        eager, mask, log = _torch(workload), workload.text("mask"), bool(workload["log"])
        names = ("x", "mask") if mask == "boolean" else ("x",)
        found = {
            "eager": named("out", eager, *names),
            "compile": named("out", compiled(eager), *names),
        }
        if mask == "none":
            vendor = log_softmax_forward if log else softmax_forward
            found["vendor"] = named("out", vendor, "x")
        return found


def _workload(
    rows: int, cols: int, dtype: str, *, log: bool = False, mask: str = "none"
) -> Workload:
    return Workload.of(rows=rows, cols=cols, dtype=dtype, log=log, mask=mask)


def _shape(workload: Workload) -> tuple[int, int]:
    return workload.size("rows"), workload.size("cols")


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
