"""Chains of element-wise operations with broadcast rows and columns, each one Triton launch.

Memory-bound: the least traffic is one read of each operand and one write of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.constraints import Preference
from search_spaces.dims import Dims
from search_spaces.edges import SPECIAL_EDGES
from search_spaces.kernel import Kernel, Launch, Tolerance
from search_spaces.kernels.dtypes import DTYPES, ROUNDING
from search_spaces.kernels.elementwise_chain.triton_kernels import elementwise_chain_kernel
from search_spaces.kernels.limits import (
    BLOCK_EXISTS,
    fits_registers,
    integer,
    keeps_threads_busy,
    programs_at_once,
)
from search_spaces.params import Boolean, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, TensorSpec, Value, Workload
from search_spaces.shape_tensor import torch_dtype
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch

#: The kinds of b, c and d in each chain, as far as it has them, and its operations per element.
CHAINS: Mapping[str, tuple[str, ...]] = {
    "scale_shift_gate": ("column", "column", "row"),
    "fma_multiply": ("whole", "whole", "whole"),
    "modulate": ("column", "column"),
    "scaled_residual": ("whole", "column"),
    "rescale": ("row", "column"),
    "standardize": ("row", "row"),
}
_FLOPS = {"scale_shift_gate": 3.0, "fma_multiply": 3.0, "modulate": 3.0}
#: Rows and columns, so that the end of the last tile still fits 32 bits.
_MOST_SIZE = 2**30
#: Elements of a tile that a thread holds at most and at least, of each operand.
_MOST_HELD, _LEAST_HELD = 32, 4
_MOST_ROWS, _LEAST_COLS, _MOST_COLS, _MOST_STEPS = 64, 64, 4096, 8


class ElementwiseChain(Kernel):
    """Several operations on a[rows, cols] in one kernel; dims rows, cols, chain, dtype and
    out_dtype.

    chain: scale_shift_gate, (a b + c) d with b and c one value per column and d one per row;
    fma_multiply, the same with whole matrices; modulate, a (1 + b) + c with b and c per column;
    scaled_residual, a + b c with c per column; rescale, a b c with b per row and c per column;
    standardize, (a - b) c with b and c per row.

    dtype: of all operands. out_dtype: of the result, which is cast in the same kernel. Operands but
    a are values around one, so that results do not cancel.
    """

    name = "elementwise_chain"
    edges = SPECIAL_EDGES
    dims = Dims(
        rows=_MOST_SIZE, cols=_MOST_SIZE, chain=tuple(CHAINS), dtype=DTYPES, out_dtype=DTYPES
    )
    small = {"rows": 37, "cols": 333}

    def workloads(self) -> Sequence[Workload]:
        half = "bfloat16"
        return self.dims.workloads(
            (16384, 2880, "scale_shift_gate", half, half),  # GPT-OSS 20B: an expert's bias
            (4096, 3072, "modulate", half, half),  # FLUX.1's adaLN, 1024 x 1024 pixels
            (100352, 384, "scaled_residual", "float16", "float16"),  # ConvNeXt-S, stage 3
            (8192, 14336, "rescale", "float32", half),  # Llama-3 8B's sums of int8
            (65536, 768, "standardize", "float32", half),
            (8192, 8192, "fma_multiply", "float32", "float32"),
            (16, 8192, "rescale", half, half),  # Llama-3 70B, decoding 16 requests
            (4099, 1001, "scale_shift_gate", "float32", "float16"),
        )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        shapes = _shapes(workload)
        near_one = {name: workload.spec(*shapes[name], mean=1.0, scale=0.25) for name in shapes}
        return {**near_one, "a": workload.spec(*shapes["a"])}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec("rows", "cols", dtype=workload.text("out_dtype"))}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        return {"out": _chained(workload, [tensor.double() for tensor in inputs.values()])}

    def tolerance(self, workload: Workload) -> Tolerance:
        # torch rounds after each of up to three operations, to values of the order of one.
        relative = max(ROUNDING[workload.text(name)] for name in ("dtype", "out_dtype"))
        return Tolerance(relative, 4 * relative)

    def flops(self, workload: Workload) -> float:
        elements = workload.size("rows") * workload.size("cols")
        each = _FLOPS.get(workload.text("chain"), 2.0)
        return each * elements

    def space(self, workload: Workload) -> SearchSpace:
        cols = min(_MOST_COLS, next_power_of_two(workload.size("cols")))
        rows = min(_MOST_ROWS, next_power_of_two(workload.size("rows")))
        parameters: list[Parameter] = [
            PowerOfTwo("BLOCK_R", 1, rows),
            PowerOfTwo("BLOCK_C", min(_LEAST_COLS, cols), cols),
            PowerOfTwo("num_warps", 1, 16),
            PowerOfTwo("steps", 1, _MOST_STEPS),
            Boolean("stream"),
        ]
        return SearchSpace(parameters, CONSTRAINTS, kernel=self.name, admits=("BLOCK_R", "BLOCK_C"))

    def default_config(self, workload: Workload, device: Device) -> Config:
        """Tiles of 1,024 elements by 4 warps: whole rows as far as they go."""
        block_c = min(1024, next_power_of_two(workload.size("cols")))
        rows = min(_MOST_ROWS, next_power_of_two(workload.size("rows")))
        block_r = max(1, min(rows, 1024 // block_c))
        lanes = device.warp_size or 32
        warps = max(1, min(4, block_r * block_c // (_LEAST_HELD * lanes)))
        usual: dict[str, Value] = {"BLOCK_R": block_r, "BLOCK_C": block_c, "num_warps": warps}
        return {**usual, "steps": 1, "stream": False}

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        rows, cols, chain = workload.size("rows"), workload.size("cols"), workload.text("chain")
        kinds = (*CHAINS[chain], "none")[:3]
        held, block_c = _rows_of_program(config), integer(config, "BLOCK_C")
        constants = {
            "COLS": cols,
            "CHAIN": chain,
            **dict(zip("BCD", kinds, strict=True)),
            "BLOCK_R": config["BLOCK_R"],
            "BLOCK_C": block_c,
            "EVEN": rows % held == 0 and cols % block_c == 0,
            "STEPS": config["steps"],
            "STREAM": config["stream"],
            "num_warps": config["num_warps"],
        }
        arguments = (*(tensors.get(name) for name in "abcd"), tensors["out"], rows)
        grid = (_programs(config, workload),)
        return [Launch(elementwise_chain_kernel, grid, arguments, constants)]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        out = workload.text("out_dtype")

        def eager(*operands: torch.Tensor) -> torch.Tensor:
            return _chained(workload, operands).to(torch_dtype(out))

        return eager


def _shapes(workload: Workload) -> dict[str, tuple[int, ...]]:
    """The shape of every operand, as it broadcasts against a."""
    rows, cols = workload.sizes("rows", "cols")
    shapes: dict[str, tuple[int, ...]] = {
        "whole": (rows, cols),
        "row": (rows, 1),
        "column": (cols,),
    }
    kinds = ("whole", *CHAINS[workload.text("chain")])
    return {name: shapes[kind] for name, kind in zip("abcd", kinds, strict=False)}


def _chained(workload: Workload, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """The chain in the dtype of its operands, as users of torch write it."""
    chain, (a, b, c, *rest) = workload.text("chain"), operands
    if rest:
        return (a * b + c) * rest[0]
    if chain == "modulate":
        return a * (1 + b) + c
    if chain == "scaled_residual":
        return a + b * c
    return a * b * c if chain == "rescale" else (a - b) * c


def _rows_of_program(config: Config) -> int:
    return integer(config, "BLOCK_R") * integer(config, "steps")


def _programs(config: Config, workload: Workload) -> int:
    wide = ceil_div(workload.size("cols"), integer(config, "BLOCK_C"))
    return wide * ceil_div(workload.size("rows"), _rows_of_program(config))


def _tile(config: Config, workload: Workload) -> int:
    return integer(config, "BLOCK_R") * integer(config, "BLOCK_C")


def _fills_device(config: Config, workload: Workload, device: Device) -> bool:
    return config["steps"] == 1 or _programs(config, workload) >= programs_at_once(device)


CONSTRAINTS = (
    BLOCK_EXISTS,
    fits_registers(_tile, _MOST_HELD),
    keeps_threads_busy(_tile, _LEAST_HELD),
    Preference("fill", _fills_device, "programs would be fewer than multiprocessors"),
)
