"""The transpose of the last two dimensions, in one launch.

Memory-bound: the least traffic is one read and one write of the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from search_spaces.block_sizes import ceil_div
from search_spaces.constraints import Constraint
from search_spaces.declaration.dimensions import check_dims
from search_spaces.kernel import EXACT, Cost, Kernel, Launch, TensorSpec, Tolerance
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES
from search_spaces.kernels.launch_limits import (
    BLOCK_EXISTS,
    MAX_SIZE,
    block_parameter,
    fits_registers,
    fits_shared,
    integer,
    keeps_threads_busy,
)
from search_spaces.kernels.transpose.triton_kernels import transpose_kernel
from search_spaces.params import Boolean, Choice, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import compiled, generator, named, random_tensor

if TYPE_CHECKING:
    import torch

    from search_spaces.kernel import Tensors

_MOST_BATCH = 65535
#: Elements that a thread holds at most and at least.
_MOST_HELD, _LEAST_HELD = 64, 2


class Transpose(Kernel):
    """out[batch, cols, rows] of x[batch, rows, cols]; dims batch, rows, cols and dtype."""

    name = "transpose"

    def workloads(self) -> Sequence[Workload]:
        return [
            _workload(1, 8192, 8192, "bfloat16"),
            _workload(1, 4096, 14336, "bfloat16"),  # a weight of Llama-3 8B
            _workload(32, 3136, 256, "float16"),  # ResNet-50's NHWC to NCHW, 56 x 56
            _workload(256, 2048, 128, "bfloat16"),  # keys of 256 heads
            _workload(1, 65536, 64, "float32"),
            _workload(1, 8191, 4099, "float32"),
        ]

    def check_workload(self, workload: Workload) -> None:
        sizes = {"batch": _MOST_BATCH, "rows": MAX_SIZE, "cols": MAX_SIZE}
        check_dims(self.name, workload, sizes=sizes, dtypes=DTYPES)

    def small_workload(self, workload: Workload) -> Workload:
        return workload.with_dims(batch=2, rows=37, cols=71)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        spec = TensorSpec(_shape(workload), workload.text("dtype"))
        return {"x": random_tensor(spec, generator(seed, device), device)}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        batch, rows, cols = _shape(workload)
        return {"out": TensorSpec((batch, cols, rows), workload.text("dtype"))}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        return {"out": inputs["x"].transpose(1, 2).double()}

    def tolerance(self, workload: Workload) -> Tolerance:
        return EXACT

    def cost(self, workload: Workload) -> Cost:
        batch, rows, cols = _shape(workload)
        elements = float(batch * rows * cols)
        return Cost(flops=elements, bytes=2 * elements * ELEMENT_BYTES[workload.text("dtype")])

    def space(self, workload: Workload) -> SearchSpace:
        parameters: list[Parameter] = [
            block_parameter("BLOCK_R", workload.size("rows"), 16, 256),
            block_parameter("BLOCK_C", workload.size("cols"), 16, 256),
            PowerOfTwo("num_warps", 1, 16),
            Choice("order", ("row", "column")),
            Boolean("stream"),
        ]
        return SearchSpace(parameters, CONSTRAINTS, kernel=self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        """Tiles of 64 x 64 by 4 warps, fewer where the matrix is narrower."""
        bound = {item.name: item.values() for item in self.space(workload).parameters}
        tile = {name: min(64, int(str(bound[name][-1]))) for name in ("BLOCK_R", "BLOCK_C")}
        lanes = device.warp_size or 32
        warps = max(1, min(4, tile["BLOCK_R"] * tile["BLOCK_C"] // (_LEAST_HELD * lanes)))
        return {**tile, "num_warps": warps, "order": "row", "stream": False}

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        batch, rows, cols = _shape(workload)
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

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        def eager(x: torch.Tensor) -> torch.Tensor:
            return x.transpose(1, 2).contiguous()

        return {"eager": named("out", eager, "x"), "compile": named("out", compiled(eager), "x")}


def _workload(batch: int, rows: int, cols: int, dtype: str) -> Workload:
    return Workload.of(batch=batch, rows=rows, cols=cols, dtype=dtype)


def _shape(workload: Workload) -> tuple[int, int, int]:
    return workload.size("batch"), workload.size("rows"), workload.size("cols")


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
