"""The space of the row normalisations: rows held in registers, or read twice block by block."""

from __future__ import annotations

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.constraints import Preference
from search_spaces.kernels.limits import integer
from search_spaces.kernels.rows import ROW_CONSTRAINTS, stage_parameters, step_parameters
from search_spaces.params import Boolean, Choice, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: The longest row that is held in registers.
MAX_HELD_COLS = 32768
_LONGEST = 8


def norm_space(workload: Workload, kernel: str) -> SearchSpace:
    """`passes`: 1 holds whole rows in registers; 2 reads a row twice, in blocks of `BLOCK`."""
    held = workload.size("cols") <= MAX_HELD_COLS
    parameters: list[Parameter] = [
        Choice("passes", (1, 2) if held else (2,)),
        PowerOfTwo("num_warps", 1, 32),
    ]
    if held:
        when = {"passes": (1,)}
        parameters += step_parameters(workload, tallest=4, longest=_LONGEST, when=when)
        parameters += stage_parameters(workload, longest=_LONGEST, deepest=3)
    block, two = next_power_of_two(workload.size("cols")), {"passes": (2,)}
    parameters += [
        PowerOfTwo("BLOCK", min(1024, block), min(16384, block), when=two),
        Integer("block_stages", 1, 3, when=two),
        Boolean("stream"),
    ]
    return SearchSpace(
        parameters, CONSTRAINTS, kernel=kernel, admits=("rows_per_step", "steps", "stages", "BLOCK")
    )


def default_point(workload: Workload) -> Config:
    """One program per row, warps by the size of the row, as in Triton's own tutorial."""
    warps = min(max(next_power_of_two(workload.size("cols")) // 256, 1), 8)
    if workload.size("cols") > MAX_HELD_COLS:
        streamed = {"passes": 2, "num_warps": warps, "BLOCK": 4096, "block_stages": 1}
        return {**streamed, "stream": False}
    held = {"passes": 1, "num_warps": warps, "rows_per_step": 1, "steps": 1}
    return {**held, "stream": False}


def _needs_streaming(config: Config, workload: Workload, device: Device) -> bool:
    blocks = ceil_div(workload.size("cols"), integer(config, "BLOCK"))
    held = workload.size("cols") <= MAX_HELD_COLS
    return config["passes"] == 1 or blocks >= 2 or not held


def _pipelines_blocks(config: Config, workload: Workload, device: Device) -> bool:
    ahead = integer(config, "block_stages") - 1
    return ahead == 0 or ceil_div(workload.size("cols"), integer(config, "BLOCK")) > ahead


CONSTRAINTS = (
    *ROW_CONSTRAINTS,
    Preference("streaming", _needs_streaming, "a row of one block need not be read twice"),
    Preference("pipeline", _pipelines_blocks, "a row has too few blocks to load so far ahead"),
)
