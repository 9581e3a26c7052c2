"""The space of the backward normalisations: rows held in registers, or two passes in tiles."""

from __future__ import annotations

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.constraints import Constraint, Preference
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.limits import (
    BLOCK_EXISTS,
    fits_shared,
    integer,
    keeps_threads_busy,
    programs_at_once,
    threads,
)
from search_spaces.params import Choice, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: The longest row that is held in registers: x, dy and two sums.
_MOST_HELD_COLS = 8192
#: Elements of the largest tile, and what a thread holds of each tensor.
_LARGEST_TILE, _MOST_OF_TILE, _LEAST_OF_TILE = 16384, 32, 2
#: 32-bit registers of a multiprocessor, what a thread needs besides its elements, and the values of
#: each element: x, dy, two sums and, for each column, the weight.
_REGISTERS, _OTHER_REGISTERS, _VALUES = 65536, 24, 5
_LEAST_COLS, _MOST_COLS, _MOST_ROWS, _MOST_THREADS = 64, 1024, 32, 512
#: Rows of sums that the last launch adds.
_LEAST_PARTS, _MOST_PARTS = 16, 512
#: Programs for each multiprocessor beyond which more of them only leave more sums.
_ENOUGH = 8


def backward_space(workload: Workload, kernel: str) -> SearchSpace:
    """`passes` 1 holds rows in registers; 2 finds the means of rows first, then works on tiles."""
    rows, cols = next_power_of_two(workload.size("rows")), next_power_of_two(workload.size("cols"))
    held = workload.size("cols") <= _MOST_HELD_COLS
    one, two = {"passes": (1,)}, {"passes": (2,)}
    parameters: list[Parameter] = [
        Choice("passes", (1, 2) if held else (2,)),
        PowerOfTwo("num_warps", 1, 32),
        PowerOfTwo("programs", min(_LEAST_PARTS, rows), min(_MOST_PARTS, rows)),
        Integer("stages", 1, 3),
    ]
    if held:
        parameters.append(PowerOfTwo("rows_per_step", 1, min(8, rows), when=one))
    widest = max(_LEAST_COLS, min(_MOST_COLS, cols))
    parameters += [
        PowerOfTwo("BLOCK_R", 1, min(_MOST_ROWS, rows), when=two),
        PowerOfTwo("BLOCK_C", _LEAST_COLS, widest, when=two),
    ]
    return SearchSpace(
        parameters,
        CONSTRAINTS,
        kernel=kernel,
        admits=("programs", "rows_per_step", "BLOCK_R", "BLOCK_C"),
    )


def default_point(workload: Workload) -> Config:
    """Rows held by a thread for each 16 elements, in 256 programs; longer rows in tiles of 2,048
    elements, in 16 programs for each 256 columns."""
    rows, cols = next_power_of_two(workload.size("rows")), next_power_of_two(workload.size("cols"))
    if workload.size("cols") <= _MOST_HELD_COLS:
        warps = max(1, min(16, cols // 512))
        usual = {"num_warps": warps, "programs": min(256, rows), "stages": 1}
        return {"passes": 1, **usual, "rows_per_step": 1}
    height = min(8, rows)
    usual = {"num_warps": max(1, height // 2), "programs": min(_LEAST_PARTS, rows), "stages": 1}
    return {"passes": 2, **usual, "BLOCK_R": height, "BLOCK_C": 256}


def tile_rows(config: Config) -> int:
    """Rows that a program works on at a time."""
    return integer(config, "rows_per_step") * integer(config, "BLOCK_R")


def _tile(config: Config, workload: Workload) -> int:
    cols = next_power_of_two(workload.size("cols"))
    return tile_rows(config) * integer(config, "BLOCK_C", cols)


def _fits_thread(config: Config, workload: Workload, device: Device) -> bool:
    lanes = threads(config, device)
    share = (_REGISTERS // lanes - _OTHER_REGISTERS) // _VALUES
    return _tile(config, workload) <= min(_LARGEST_TILE, lanes * min(_MOST_OF_TILE, share))


def _few_threads(config: Config, workload: Workload, device: Device) -> bool:
    return config["passes"] == 1 or threads(config, device) <= _MOST_THREADS


def _fits_in_flight(config: Config, workload: Workload, device: Device) -> bool:
    ahead = integer(config, "stages") - 1
    needed = 2 * ahead * _tile(config, workload) * ELEMENT_BYTES[workload.text("dtype")]
    return fits_shared(needed, device)


def _steps(config: Config, workload: Workload) -> int:
    groups = ceil_div(workload.size("rows"), tile_rows(config))
    return ceil_div(groups, integer(config, "programs"))


def _pipelines(config: Config, workload: Workload, device: Device) -> bool:
    return integer(config, "stages") <= _steps(config, workload)


def _programs_have_rows(config: Config, workload: Workload, device: Device) -> bool:
    groups = ceil_div(workload.size("rows"), tile_rows(config))
    least = min(_LEAST_PARTS, next_power_of_two(workload.size("rows")))
    return integer(config, "programs") <= max(next_power_of_two(groups), least)


def _needs_programs(config: Config, workload: Workload, device: Device) -> bool:
    if config["passes"] == 1:
        return True
    across = ceil_div(workload.size("cols"), integer(config, "BLOCK_C"))
    least = min(_LEAST_PARTS, next_power_of_two(workload.size("rows")))
    most = max(least, _ENOUGH * programs_at_once(device) // across)
    return integer(config, "programs") <= most


CONSTRAINTS = (
    BLOCK_EXISTS,
    Constraint("thread", _fits_thread, "a thread has too few registers for its elements"),
    Constraint("tile", _few_threads, f"a tile is for at most {_MOST_THREADS} threads"),
    keeps_threads_busy(_tile, _LEAST_OF_TILE),
    Constraint("in_flight", _fits_in_flight, "tiles in flight do not fit into shared memory"),
    Preference("pipeline", _pipelines, "a program has too few tiles to load so far ahead"),
    Preference("rows", _programs_have_rows, "some programs would have no rows"),
    Preference("enough", _needs_programs, "there are enough programs with fewer"),
)
