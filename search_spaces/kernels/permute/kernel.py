"""Tensors of three or four dimensions with the dimensions in another order, in one launch.

Memory-bound: the least traffic is one read and one write of the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from math import prod
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.constraints import Constraint
from search_spaces.dims import Dims
from search_spaces.edges import ALL_EDGES
from search_spaces.errors import WorkloadError
from search_spaces.kernel import EXACT, Kernel, Launch, Tolerance
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES
from search_spaces.kernels.limits import (
    BLOCK_EXISTS,
    fits_registers,
    fits_shared,
    integer,
    keeps_threads_busy,
)
from search_spaces.kernels.permute.moves import Move, move_of, order_of, shape_of
from search_spaces.kernels.permute.triton_kernels import permute_kernel
from search_spaces.params import Boolean, Choice, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, TensorSpec, Value, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch

#: All orders of three and of four dimensions, the one that moves nothing apart.
ORDERS = tuple(
    "".join(order)
    for places in ("012", "0123")
    for order in permutations(places)
    if "".join(order) != places
)
#: A dimension, so that the end of the last tile still fits 32 bits.
_MOST_SIZE = 2**30
#: Elements that a thread holds at most and at least.
_MOST_HELD, _LEAST_HELD = 64, 2
#: Sides of a tile: at least one word of 16 bytes in the narrowest dtype, if there are as many.
_LEAST_SIDE, _MOST_SIDE, _USUAL_TILE = 8, 256, 4096
_SMALL = (2, 3, 19, 7)


class Permute(Kernel):
    """`x.permute(order)` of x[d0, d1, d2] or x[d0, d1, d2, d3]; dims d0 to d2 or d3, order and
    dtype.

    order: text with the dimension of x at each place of the output, such as 0213, which exchanges
    tokens and heads, 0231 (NCHW to NHWC) or 102. It has as many digits as x has dimensions. In
    YAML and in Python it is quoted.
    """

    name = "permute"
    edges = ALL_EDGES
    dims = Dims(**{f"d{place}": _MOST_SIZE for place in range(4)}, order=ORDERS, dtype=DTYPES)

    def workloads(self) -> Sequence[Workload]:
        return [
            _workload((1, 8192, 32, 128), "0213", "bfloat16"),  # Llama-3 8B's heads, 8,192 tokens
            _workload((4, 64, 4096, 128), "0213", "bfloat16"),  # and back, Llama-3 70B
            _workload((64, 256, 56, 56), "0231", "float16"),  # ResNet-50, NCHW to NHWC
            _workload((64, 56, 56, 256), "0312", "float16"),  # and back
            _workload((256, 3, 224, 224), "0231", "float32"),  # images of ResNet-50
            _workload((32, 1500, 20, 64), "0231", "float16"),  # Whisper large-v3's keys, transposed
            _workload((512, 256, 1024), "102", "float32"),  # tokens first to batch first, LSTM
            _workload((2048, 27, 128), "021", "float32"),  # DLRM's 27 features for interactions
            _workload((37, 65, 129, 255), "3210", "float32"),
        ]

    def check_workload(self, workload: Workload) -> None:
        where, order = f"{self.name} [{workload.key}]", workload.get("order")
        if isinstance(order, int):
            raise WorkloadError(
                f"{where}: order is the number {order}, not a text", 'quote it: order="0213"'
            )
        places = len(order) if isinstance(order, str) and order in ORDERS else 4
        absent = {f"d{place}" for place in range(places, 4)}
        kinds = {name: kind for name, kind in self.dims.items() if name not in absent}
        Dims(**kinds).check(self.name, workload)
        move = move_of(workload)
        longest = max(move.rows.size, move.cols.size)
        if longest > _MOST_SIZE:
            raise WorkloadError(
                f"{where}: neighbouring dimensions are {longest} together, more than the "
                f"{_MOST_SIZE} that a tile counts",
                "permute a part at a time",
            )

    def small_workload(self, workload: Workload) -> Workload:
        sizes = {f"d{place}": size for place, size in enumerate(_SMALL[: len(order_of(workload))])}
        return workload.with_dims(**sizes)

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        spec = workload.spec(*shape_of(workload))
        return {"x": spec}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        shape = shape_of(workload)
        moved = tuple(shape[place] for place in order_of(workload))
        return {"out": workload.spec(*moved)}

    def tolerance(self, workload: Workload) -> Tolerance:
        return EXACT

    def flops(self, workload: Workload) -> float:
        return float(prod(shape_of(workload)))

    def space(self, workload: Workload) -> SearchSpace:
        move = move_of(workload)
        parameters: list[Parameter] = [
            _side("BLOCK_R", move.rows.size, 1 if not move.transposes else _LEAST_SIDE),
            _side("BLOCK_C", move.cols.size, _LEAST_SIDE),
            PowerOfTwo("num_warps", 1, 16),
            Choice("tiles", ("row", "column")),
            Boolean("stream"),
        ]
        admits = ("BLOCK_R", "BLOCK_C")
        return SearchSpace(parameters, CONSTRAINTS, kernel=self.name, admits=admits)

    def default_config(self, workload: Workload, device: Device) -> Config:
        """Tiles of 4,096 elements by 4 warps: 64 x 64, or what the narrower side leaves."""
        move = move_of(workload)
        rows, cols = (next_power_of_two(axis.size) for axis in (move.rows, move.cols))
        wide = 64 if move.transposes else _MOST_SIDE
        block_c = min(cols, max(wide, min(_MOST_SIDE, _USUAL_TILE // rows)))
        block_r = min(rows, _MOST_SIDE, _USUAL_TILE // block_c)
        lanes = device.warp_size or 32
        warps = max(1, min(4, block_r * block_c // (_LEAST_HELD * lanes)))
        usual: dict[str, Value] = {"BLOCK_R": block_r, "BLOCK_C": block_c, "num_warps": warps}
        return {**usual, "tiles": "row", "stream": False}

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        move = move_of(workload)
        rows, cols, (first, second) = move.rows, move.cols, move.outer
        block_r, block_c = integer(config, "BLOCK_R"), integer(config, "BLOCK_C")
        constants = {
            "ROWS": rows.size,
            "COLS": cols.size,
            "OUTER": second.size,
            "ROW_IN": rows.in_stride,
            "ROW_OUT": rows.out_stride,
            "COL_OUT": cols.out_stride,
            "FIRST_IN": first.in_stride,
            "FIRST_OUT": first.out_stride,
            "SECOND_IN": second.in_stride,
            "SECOND_OUT": second.out_stride,
            "BLOCK_R": block_r,
            "BLOCK_C": block_c,
            "BY_COLUMN": config["tiles"] == "column",
            "TRANSPOSES": move.transposes,
            "WIDE": _reach(move, block_r, block_c) >= 2**31,
            "STREAM": config["stream"],
            "num_warps": config["num_warps"],
        }
        tiles = ceil_div(rows.size, block_r) * ceil_div(cols.size, block_c)
        grid = (tiles * first.size * second.size,)
        return [Launch(permute_kernel, grid, (tensors["x"], tensors["out"]), constants)]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        order = order_of(workload)

        def eager(x: torch.Tensor) -> torch.Tensor:
            return x.permute(order).contiguous()

        return eager


def _workload(shape: Sequence[int], order: str, dtype: str) -> Workload:
    sizes = {f"d{place}": size for place, size in enumerate(shape)}
    return Workload.of(**sizes, order=order, dtype=dtype)


def _side(name: str, size: int, least: int) -> PowerOfTwo:
    most = min(_MOST_SIDE, next_power_of_two(size))
    return PowerOfTwo(name, min(least, most), most)


def _reach(move: Move, block_r: int, block_c: int) -> int:
    """An offset beyond that of every element of the tiles, also of those that are masked."""
    elements = move.rows.size * move.cols.size * move.outer[0].size * move.outer[1].size
    edge = block_r * max(move.rows.in_stride, move.rows.out_stride)
    return elements + edge + block_c * move.cols.out_stride


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
