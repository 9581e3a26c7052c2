"""The cross-entropy of each row of logits, forward.

Memory-bound: the least traffic is one read of the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.dims import Dims
from search_spaces.kernel import Kernel, Launch
from search_spaces.kernels.cross_entropy.triton_kernels import cross_entropy_kernel
from search_spaces.kernels.dtypes import DTYPES
from search_spaces.kernels.limits import (
    BLOCK_EXISTS,
    LARGEST_SIDE,
    fits_registers,
    integer,
    keeps_threads_busy,
    pipelines_blocks,
)
from search_spaces.kernels.long_rows import reached_places, vector_of
from search_spaces.params import Boolean, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch

#: Logits that a thread holds at most and at least.
_MOST_HELD, _LEAST_HELD = 64, 2
_LEAST_BLOCK = 256
#: Exponential, sum and maximum of one logit.
_FLOPS = 6.0


class CrossEntropy(Kernel):
    """loss[rows] and lse[rows] of logits x[rows, cols] and target[rows]; dims rows, cols and dtype.

    lse is the logarithm of the sum of exponentials of a row, which the gradient needs: loss and
    target do not give it back where the target's logit is infinite or large. Both are float32; the
    logits are as they are, so that rounding them is no error.
    """

    name = "cross_entropy"
    edges = (
        "inf",
        "nan",
        "zero",
        "equal",
        "tiny",
        "denormal",
        "half inf",
        "half -inf",
        "half nan",
        "lowest",
        "largest",
        "half lowest",
    )
    dims = Dims(rows=int, cols=LARGEST_SIDE, dtype=DTYPES)
    small = {"rows": 7, "cols": 509}
    output = ("loss", "lse")
    elementwise = 1

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (8192, 128256, "bfloat16"),  # Llama-3
            (4096, 151936, "bfloat16"),  # Qwen3
            (4096, 128256, "float32"),
            (2048, 50257, "float16"),  # GPT-2
            (65536, 1000, "float32"),  # ImageNet's classes
            (16384, 32000, "bfloat16"),  # Mixtral
            (100, 30522, "float32"),  # BERT
        )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        target = workload.spec("rows", dtype="int64", limits=(0, workload.size("cols")))
        return {"x": workload.spec("rows", "cols", scale=2.0), "target": target}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return dict.fromkeys(("loss", "lse"), workload.spec("rows", dtype="float32"))

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        loss, lse = loss_of(inputs["x"].double(), inputs["target"])
        return {"loss": loss, "lse": lse}

    def flops(self, workload: Workload) -> float:
        rows = workload.size("rows")
        logits = rows * workload.size("cols")
        return _FLOPS * logits

    def space(self, workload: Workload) -> SearchSpace:
        widest = max(_LEAST_BLOCK, min(16384, next_power_of_two(workload.size("cols"))))
        parameters: list[Parameter] = [
            PowerOfTwo("BLOCK", _LEAST_BLOCK, widest),
            PowerOfTwo("num_warps", 1, 32),
            Integer("stages", 1, 4),
            Boolean("stream"),
        ]
        return SearchSpace(parameters, CONSTRAINTS, kernel=self.name, admits=("BLOCK",))

    def default_config(self, workload: Workload, device: Device) -> Config:
        """Blocks of 4,096 logits by 8 warps, fewer where rows are shorter."""
        block = max(_LEAST_BLOCK, min(4096, next_power_of_two(workload.size("cols"))))
        warps = max(1, min(8, block // (_LEAST_HELD * (device.warp_size or 32))))
        return {"BLOCK": block, "num_warps": warps, "stages": 1, "stream": False}

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        cols, vector = workload.size("cols"), vector_of(workload)
        part = _blocks(config, workload) * integer(config, "BLOCK")
        constants = {
            "COLS": cols,
            "BLOCK": config["BLOCK"],
            "VEC": vector,
            "PART": part,
            "EVEN": cols % vector == 0 and part == cols,
            "LOAD_STAGES": config["stages"],
            "STREAM": config["stream"],
            "num_warps": config["num_warps"],
        }
        arguments = tuple(tensors[name] for name in ("x", "target", "loss", "lse"))
        return [Launch(cross_entropy_kernel, (workload.size("rows"),), arguments, constants)]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        def eager(x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return loss_of(x.float(), target)

        return eager


def loss_of(x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and lse of each row of logits by plain torch, in their dtype.

    NaN where torch's cross-entropy is: a row with an infinite logit, or with -inf alone.
    """
    top = x.amax(1, keepdim=True)
    away = x - top
    log_sum = away.exp().sum(1, keepdim=True).log()
    loss = log_sum - away.gather(1, target.unsqueeze(1))
    return loss.squeeze(1), (top + log_sum).squeeze(1)


def _block(config: Config, workload: Workload) -> int:
    return integer(config, "BLOCK")


def _blocks(config: Config, workload: Workload) -> int:
    return ceil_div(reached_places(workload), integer(config, "BLOCK"))


CONSTRAINTS = (
    BLOCK_EXISTS,
    fits_registers(_block, _MOST_HELD),
    keeps_threads_busy(_block, _LEAST_HELD),
    pipelines_blocks(_blocks),
)
