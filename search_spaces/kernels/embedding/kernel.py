"""Gathered rows of an embedding table.

Memory-bound: the least traffic is one read and one write of the gathered rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.dims import Dims
from search_spaces.edges import ALL_EDGES
from search_spaces.kernel import EXACT, Cost, Kernel, Launch, Tolerance
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES
from search_spaces.kernels.embedding.triton_kernels import embedding_kernel
from search_spaces.kernels.limits import BLOCK_EXISTS, fits_registers, integer, keeps_threads_busy
from search_spaces.params import Boolean, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch

#: Elements that a thread holds at most and at least.
_MOST_HELD, _LEAST_HELD = 64, 2
_INDEX_BYTES = 8


class Embedding(Kernel):
    """out[tokens, dim] = table[index]; dims tokens, vocab, dim and dtype.

    table is [vocab, dim]; index is [tokens] of int64, uniform over the table.
    """

    name = "embedding"
    edges = ALL_EDGES
    dims = Dims(tokens=int, vocab=int, dim=int, dtype=DTYPES)
    small = {"tokens": 13, "vocab": 29, "dim": 301}

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (8192, 128256, 4096, "bfloat16"),  # Llama-3 8B
            (64, 128256, 8192, "bfloat16"),  # Llama-3 70B, decoding 64 requests
            (16384, 151936, 2048, "bfloat16"),  # Qwen3 1.7B
            (2048, 51866, 1280, "float16"),  # Whisper large-v3's decoder
            (1048576, 1000000, 64, "float32"),  # a table of DLRM
            (4095, 30522, 771, "float32"),
        )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        index = workload.spec("tokens", dtype="int64", limits=(0, workload.size("vocab")))
        return {"index": index, "table": workload.spec("vocab", "dim")}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec("tokens", "dim")}

    def tolerance(self, workload: Workload) -> Tolerance:
        return EXACT

    def cost(self, workload: Workload) -> Cost:
        tokens, each = workload.size("tokens"), ELEMENT_BYTES[workload.text("dtype")]
        elements = tokens * workload.size("dim")
        distinct = min(tokens, workload.size("vocab")) * workload.size("dim")
        moved = (elements + distinct) * each + tokens * _INDEX_BYTES
        return Cost(flops=float(elements), bytes=float(moved))

    def space(self, workload: Workload) -> SearchSpace:
        widest = min(8192, next_power_of_two(workload.size("dim")))
        parameters: list[Parameter] = [
            PowerOfTwo("BLOCK_T", 1, min(32, next_power_of_two(workload.size("tokens")))),
            PowerOfTwo("BLOCK_D", min(64, widest), widest),
            PowerOfTwo("num_warps", 1, 16),
            Boolean("stream"),
        ]
        return SearchSpace(parameters, CONSTRAINTS, kernel=self.name, admits=("BLOCK_T", "BLOCK_D"))

    def default_config(self, workload: Workload, device: Device) -> Config:
        """1,024 elements by 4 warps: columns of a row, or the rows of several tokens."""
        block = min(1024, next_power_of_two(workload.size("dim")))
        tokens = min(32, 1024 // block, next_power_of_two(workload.size("tokens")))
        warps = max(1, min(4, tokens * block // (_LEAST_HELD * (device.warp_size or 32))))
        return {"BLOCK_T": tokens, "BLOCK_D": block, "num_warps": warps, "stream": False}

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        tokens, dim = workload.sizes("tokens", "dim")
        constants = {
            "DIM": dim,
            "BLOCK_T": config["BLOCK_T"],
            "BLOCK_D": config["BLOCK_D"],
            "STREAM": config["stream"],
            "num_warps": config["num_warps"],
        }
        grid = (
            ceil_div(tokens, integer(config, "BLOCK_T")),
            ceil_div(dim, integer(config, "BLOCK_D")),
        )
        arguments = (tensors["index"], tensors["table"], tensors["out"], tokens)
        return [Launch(embedding_kernel, grid, arguments, constants)]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        def eager(index: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
            import torch

            return torch.nn.functional.embedding(index, table)

        return eager


def _tile(config: Config, workload: Workload) -> int:
    return integer(config, "BLOCK_T") * integer(config, "BLOCK_D")


CONSTRAINTS = (
    BLOCK_EXISTS,
    fits_registers(_tile, _MOST_HELD),
    keeps_threads_busy(_tile, _LEAST_HELD),
)
