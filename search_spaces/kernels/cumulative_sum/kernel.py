"""Cumulative sums along the rows of a matrix.

Memory-bound: the least traffic is one read and one write of the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.constraints import Constraint, Preference
from search_spaces.dims import Dims
from search_spaces.edges import ALL_EDGES
from search_spaces.kernel import Kernel, Launch
from search_spaces.kernels.cumulative_sum.triton_kernels import (
    cumulative_sum_kernel,
    span_sums_kernel,
)
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES
from search_spaces.kernels.limits import (
    BLOCK_EXISTS,
    fits_registers,
    fits_shared,
    integer,
    keeps_threads_busy,
    pipelines_blocks,
    programs_at_once,
)
from search_spaces.params import Boolean, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch

#: Rows and columns, so that the end of the last block still fits 32 bits.
_MOST_SIZE = 2**30
_MOST_SPLITS, _MOST_PANELS, _LARGEST_BLOCK = 1024, 8, 8192
#: The most rows and the fewest columns of a tile, where rows are short and where they are long.
_LONG_COLS, _SHORT, _LONG = 2048, (32, 64), (4, 256)
#: Elements that a thread holds at most and at least.
_MOST_HELD, _LEAST_HELD = 32, 2
#: Programs for each multiprocessor beyond which rows are not split.
_ENOUGH = 8
#: Blocks of a span in the usual config.
_USUAL_BLOCKS = 4


class CumulativeSum(Kernel):
    """`x.cumsum(1)` of x[rows, cols]; dims rows, cols and dtype.

    Sums are float32 whatever the dtype, and so are those of the baselines: sums of long rows in 16
    bits are mostly rounding errors. `splits` programs share a row where there are few, in `panels`
    that stay in the last-level cache between the two launches of each.
    """

    name = "cumulative_sum"
    edges = ALL_EDGES
    dims = Dims(rows=_MOST_SIZE, cols=_MOST_SIZE, dtype=DTYPES)
    elementwise = 1

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (64, 128256, "float32"),  # top-p sampling over Llama-3's vocabulary
            (256, 151936, "bfloat16"),  # the same for Qwen3
            (163840, 256, "float32"),  # Mamba-2 2.7B: chunks of 80 heads, 8 x 65,536
            (1, 16777216, "float32"),  # one long row
            (16, 1048576, "float32"),
            (8192, 4096, "float16"),
            (32, 65536, "float32"),  # places of tokens in GPT-OSS 20B's 32 experts
            (1023, 50257, "float32"),  # GPT-2's vocabulary
        )

    def small_workload(self, workload: Workload) -> Workload:
        rows = min(3, workload.size("rows"))
        return workload.with_dims(rows=rows, cols=2777 if workload.size("cols") > 2777 else 77)

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        cols = workload.size("cols")
        return {"x": workload.spec("rows", cols, scale=1 / sqrt(cols))}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec("rows", "cols")}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        splits = integer(config, "splits")
        if splits == 1:
            return {}
        return {"sum": workload.spec("rows", splits, dtype="float32")}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        return {"out": inputs["x"].double().cumsum(1)}

    def flops(self, workload: Workload) -> float:
        return float(workload.size("rows") * workload.size("cols"))

    def space(self, workload: Workload) -> SearchSpace:
        rows, cols = workload.sizes("rows", "cols")
        block = min(_LARGEST_BLOCK, next_power_of_two(cols))
        most_rows, smallest = _LONG if cols >= _LONG_COLS else _SHORT
        splits = min(_MOST_SPLITS, next_power_of_two(ceil_div(cols, _LONG[1])))
        several = PowerOfTwo("splits", 2, splits).values() if splits > 1 else ()
        parameters: list[Parameter] = [
            PowerOfTwo("BLOCK_R", 1, min(most_rows, next_power_of_two(rows))),
            PowerOfTwo("BLOCK_C", min(smallest, block), block),
            PowerOfTwo("splits", 1, splits),
            PowerOfTwo("num_warps", 1, 16),
            Integer("stages", 1, 3),
            Boolean("stream"),
        ]
        if several:
            parameters.append(Boolean("backwards", when={"splits": several}))
            parameters.append(PowerOfTwo("panels", 1, _MOST_PANELS, when={"splits": several}))
        return SearchSpace(
            parameters,
            CONSTRAINTS,
            kernel=self.name,
            admits=("BLOCK_R", "BLOCK_C", "splits", "backwards", "panels"),
        )

    def default_config(self, workload: Workload, device: Device) -> Config:
        """Blocks of 1,024 elements by 4 warps; long rows are split until programs are enough."""
        rows, cols = workload.sizes("rows", "cols")
        block_c = min(1024, next_power_of_two(cols))
        block_r = max(1, min(_SHORT[0], next_power_of_two(rows), 1024 // block_c))
        lanes = device.warp_size or 32
        warps = max(1, min(4, block_r * block_c // (_LEAST_HELD * lanes)))
        usual = {"BLOCK_R": block_r, "BLOCK_C": block_c, "splits": 1, "num_warps": warps}
        usual["stages"] = 1
        bound = self.space(workload).bind(workload, device)
        found = bound.complete(usual)
        blocks, programs = ceil_div(cols, block_c), ceil_div(rows, block_r)
        while programs * integer(found, "splits") < 2 * programs_at_once(device):
            splits = 2 * integer(found, "splits")
            more = bound.complete({**usual, "splits": splits})
            if splits * _USUAL_BLOCKS > blocks or not bound.feasible(more):
                break
            found = more
        return found

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        rows, cols = workload.sizes("rows", "cols")
        block_r, block_c = integer(config, "BLOCK_R"), integer(config, "BLOCK_C")
        splits, span = integer(config, "splits"), _span(config, workload)
        constants = {
            "COLS": cols,
            "SPAN": span,
            "SPLITS": splits,
            "BLOCK_R": block_r,
            "BLOCK_C": block_c,
            "EVEN": rows % block_r == 0 and cols % block_c == 0,
            "LOAD_STAGES": config["stages"],
            "num_warps": config["num_warps"],
        }
        own = {"BACKWARDS": config.get("backwards", False), "STREAM": config["stream"]}
        x, sums, groups = tensors["x"], tensors.get("sum"), ceil_div(rows, block_r)
        launches = []
        for first, spans in _panels(config):
            grid = (groups, spans)
            if sums is not None:
                launches.append(Launch(span_sums_kernel, grid, (x, sums, rows, first), constants))
            arguments = (x, sums, tensors["out"], rows, first)
            launches.append(Launch(cumulative_sum_kernel, grid, arguments, {**constants, **own}))
        return launches

    def eager(self, workload: Workload) -> Callable[..., Any]:
        def eager(x: torch.Tensor) -> torch.Tensor:
            import torch

            return x.cumsum(1, dtype=torch.float32).to(x.dtype)

        return eager


def _span(config: Config, workload: Workload) -> int:
    """Columns of one split, whole blocks."""
    return _blocks(config, workload) * integer(config, "BLOCK_C")


def _blocks(config: Config, workload: Workload) -> int:
    """Blocks of one split."""
    blocks = ceil_div(workload.size("cols"), integer(config, "BLOCK_C"))
    return ceil_div(blocks, integer(config, "splits"))


def _panels(config: Config) -> Iterator[tuple[int, int]]:
    """The first span and the number of spans of each panel."""
    spans = integer(config, "splits") // integer(config, "panels")
    return ((panel * spans, spans) for panel in range(integer(config, "panels")))


def _tile(config: Config, workload: Workload) -> int:
    return integer(config, "BLOCK_R") * integer(config, "BLOCK_C")


def _splits_have_blocks(config: Config, workload: Workload, device: Device) -> bool:
    splits = integer(config, "splits")
    return (splits - 1) * _span(config, workload) < workload.size("cols")


def _needs_splits(config: Config, workload: Workload, device: Device) -> bool:
    splits = integer(config, "splits")
    programs = ceil_div(workload.size("rows"), integer(config, "BLOCK_R"))
    return splits == 1 or programs * splits <= _ENOUGH * programs_at_once(device)


def _panels_fill_device(config: Config, workload: Workload, device: Device) -> bool:
    panels, splits = integer(config, "panels"), integer(config, "splits")
    programs = ceil_div(workload.size("rows"), integer(config, "BLOCK_R"))
    enough = programs * (splits // panels) >= programs_at_once(device)
    return panels == 1 or (splits > panels and enough)


def _stages_fit_shared(config: Config, workload: Workload, device: Device) -> bool:
    in_flight = integer(config, "stages") - 1
    needed = in_flight * _tile(config, workload) * ELEMENT_BYTES[workload.text("dtype")]
    return in_flight == 0 or fits_shared(needed, device)


CONSTRAINTS = (
    BLOCK_EXISTS,
    fits_registers(_tile, _MOST_HELD),
    keeps_threads_busy(_tile, _LEAST_HELD),
    Preference("splits", _splits_have_blocks, "some splits would have no block"),
    Preference("enough", _needs_splits, "there are enough programs with fewer splits"),
    Preference("panels", _panels_fill_device, "a panel would have too few programs"),
    pipelines_blocks(_blocks),
    Constraint("shared", _stages_fit_shared, "the blocks in flight do not fit into shared memory"),
)
