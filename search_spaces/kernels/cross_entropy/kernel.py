"""The cross-entropy of each row of logits, forward.

Memory-bound: the least traffic is one read of the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.declaration.dimensions import check_dims
from search_spaces.kernel import Cost, Kernel, Launch, TensorSpec, Tolerance
from search_spaces.kernels.cross_entropy.triton_kernels import cross_entropy_kernel
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES
from search_spaces.kernels.launch_limits import (
    BLOCK_EXISTS,
    MAX_SIZE,
    fits_registers,
    integer,
    keeps_threads_busy,
    pipelines_blocks,
)
from search_spaces.kernels.long_rows import reached_places, vector_of
from search_spaces.params import Boolean, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import compiled, generator, named, random_tensor

if TYPE_CHECKING:
    import torch

    from search_spaces.kernel import Tensors

#: Logits that a thread holds at most and at least.
_MOST_HELD, _LEAST_HELD = 64, 2
_LEAST_BLOCK = 256
#: Exponential, sum and maximum of one logit.
_FLOPS = 6.0
_INDEX_BYTES, _LOSS_BYTES = 8, 4
_TOLERANCE = Tolerance(1e-5, 1e-5)


class CrossEntropy(Kernel):
    """loss[rows] of logits x[rows, cols] and target[rows]; dims rows, cols and dtype.

    The loss of each row is float32; the logits are as they are, so that rounding them is no error.
    """

    name = "cross_entropy"

    def workloads(self) -> Sequence[Workload]:
        return [
            _workload(8192, 128256, "bfloat16"),  # Llama-3
            _workload(4096, 151936, "bfloat16"),  # Qwen3
            _workload(4096, 128256, "float32"),
            _workload(2048, 50257, "float16"),  # GPT-2
            _workload(65536, 1000, "float32"),  # ImageNet's classes
            _workload(16384, 32000, "bfloat16"),  # Mixtral
            _workload(100, 30522, "float32"),  # BERT
        ]

    def check_workload(self, workload: Workload) -> None:
        sizes = {"rows": MAX_SIZE, "cols": MAX_SIZE}
        check_dims(self.name, workload, sizes=sizes, dtypes=DTYPES)

    def small_workload(self, workload: Workload) -> Workload:
        return workload.with_dims(rows=7, cols=509)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        rows, cols = workload.size("rows"), workload.size("cols")
        source, logits = generator(seed, device), TensorSpec((rows, cols), workload.text("dtype"))
        target = TensorSpec((rows,), "int64")
        return {
            "x": random_tensor(logits, source, device, scale=2.0),
            "target": random_tensor(target, source, device, limits=(0, cols)),
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"loss": TensorSpec((workload.size("rows"),), "float32")}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        import torch

        x, target = inputs["x"].double(), inputs["target"]
        return {"loss": torch.nn.functional.cross_entropy(x, target, reduction="none")}

    def tolerance(self, workload: Workload) -> Tolerance:
        return _TOLERANCE

    def cost(self, workload: Workload) -> Cost:
        rows = workload.size("rows")
        logits = rows * workload.size("cols")
        moved = logits * ELEMENT_BYTES[workload.text("dtype")]
        return Cost(flops=_FLOPS * logits, bytes=float(moved + rows * (_INDEX_BYTES + _LOSS_BYTES)))

    def space(self, workload: Workload) -> SearchSpace:
        widest = max(_LEAST_BLOCK, min(16384, next_power_of_two(workload.size("cols"))))
        parameters: list[Parameter] = [
            PowerOfTwo("BLOCK", _LEAST_BLOCK, widest),
            PowerOfTwo("num_warps", 1, 32),
            Integer("stages", 1, 4),
            Boolean("stream"),
        ]
        return SearchSpace(parameters, CONSTRAINTS, kernel=self.name)

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
        arguments = tuple(tensors[name] for name in ("x", "target", "loss"))
        return [Launch(cross_entropy_kernel, (workload.size("rows"),), arguments, constants)]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        def eager(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            import torch

            return torch.nn.functional.cross_entropy(x.float(), target, reduction="none")

        return {
            "eager": named("loss", eager, "x", "target"),
            "compile": named("loss", compiled(eager), "x", "target"),
        }


def _workload(rows: int, cols: int, dtype: str) -> Workload:
    return Workload.of(rows=rows, cols=cols, dtype=dtype)


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
