"""The transpose of the last two dimensions, in one launch.

Memory-bound: the least traffic is one read and one write of the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import ceil_div
from search_spaces.constraints import Constraint
from search_spaces.dims import Dims
from search_spaces.edges import ALL_EDGES
from search_spaces.kernel import EXACT, Kernel, Launch, Tolerance
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES
from search_spaces.kernels.limits import (
    BLOCK_EXISTS,
    LARGEST_SIDE,
    block_parameter,
    fits_registers,
    fits_shared,
    integer,
    keeps_threads_busy,
)
from search_spaces.kernels.transpose.triton_kernels import transpose_kernel
from search_spaces.params import Boolean, Choice, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch

_MOST_BATCH = 65535
#: Elements that a thread holds at most and at least.
_MOST_HELD, _LEAST_HELD = 64, 2


class Transpose(Kernel):
    """out[batch, cols, rows] of x[batch, rows, cols]; dims batch, rows, cols and dtype."""

    name = "transpose"
    edges = ALL_EDGES
    dims = Dims(batch=_MOST_BATCH, rows=LARGEST_SIDE, cols=LARGEST_SIDE, dtype=DTYPES)
    small = {"batch": 2, "rows": 37, "cols": 71}

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (1, 8192, 8192, "bfloat16"),
            (1, 4096, 14336, "bfloat16"),  # a weight of Llama-3 8B
            (32, 3136, 256, "float16"),  # ResNet-50's NHWC to NCHW, 56 x 56
            (256, 2048, 128, "bfloat16"),  # keys of 256 heads
            (1, 65536, 64, "float32"),
            (1, 8191, 4099, "float32"),
        )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        spec = workload.spec(*workload.sizes("batch", "rows", "cols"))
        return {"x": spec}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        batch, rows, cols = workload.sizes("batch", "rows", "cols")
        return {"out": workload.spec(batch, cols, rows)}

    def tolerance(self, workload: Workload) -> Tolerance:
        return EXACT

    def flops(self, workload: Workload) -> float:
        batch, rows, cols = workload.sizes("batch", "rows", "cols")
        return float(batch * rows * cols)

    def space(self, workload: Workload) -> SearchSpace:
        parameters: list[Parameter] = [
            block_parameter("BLOCK_R", workload.size("rows"), 16, 256),
            block_parameter("BLOCK_C", workload.size("cols"), 16, 256),
            PowerOfTwo("num_warps", 1, 16),
            Choice("order", ("row", "column")),
            Boolean("stream"),
        ]
        return SearchSpace(parameters, CONSTRAINTS, kernel=self.name, admits=("BLOCK_R", "BLOCK_C"))

    def default_config(self, workload: Workload, device: Device) -> Config:
        """Tiles of 64 x 64 by 4 warps, fewer where the matrix is narrower."""
        bound = {item.name: item.values() for item in self.space(workload).parameters}
        tile = {name: min(64, int(str(bound[name][-1]))) for name in ("BLOCK_R", "BLOCK_C")}
        lanes = device.warp_size or 32
        warps = max(1, min(4, tile["BLOCK_R"] * tile["BLOCK_C"] // (_LEAST_HELD * lanes)))
        return {**tile, "num_warps": warps, "order": "row", "stream": False}

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        batch, rows, cols = workload.sizes("batch", "rows", "cols")
        block_r, block_c = integer(config, "BLOCK_R"), integer(config, "BLOCK_C")
        constants = {
            "BLOCK_R": block_r,
            "BLOCK_C": block_c,
            "EVEN": rows % block_r == 0 and cols % block_c == 0,
            "BY_COLUMN": config["order"] == "column",
            "STREAM": config["stream"],
            "num_warps": config["num_warps"],
        }
        grid = (ceil_div(rows, block_r) * ceil_div(cols, block_c), batch)
        arguments = (tensors["x"], tensors["out"], rows, cols)
        return [Launch(transpose_kernel, grid, arguments, constants)]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        def eager(x: torch.Tensor) -> torch.Tensor:
            return x.transpose(1, 2).contiguous()

        return eager


def _tile(config: Config, workload: Workload) -> int:
    return integer(config, "BLOCK_R") * integer(config, "BLOCK_C")


def _tile_fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    return fits_shared(_tile(config, workload) * ELEMENT_BYTES[workload.text("dtype")], device)


CONSTRAINTS = (
    BLOCK_EXISTS,
    fits_registers(_tile, _MOST_HELD),
    keeps_threads_busy(_tile, _LEAST_HELD),
    Constraint("shared", _tile_fits_shared, "the tile does not fit into shared memory"),
)
