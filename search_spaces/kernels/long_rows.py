"""What families over rows of any length share: the space, and the constants of a launch.

With `passes` 1 a program holds whole rows in registers, as `rows` says. With `passes` 2 it reads a
row twice in blocks of `BLOCK`, `block_stages` of them in flight. Where rows are few, `splits`
programs share a row, and a second launch combines what they found. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces.block_sizes import alignment, ceil_div, next_power_of_two
from search_spaces.constraints import Constraint, Preference
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.limits import (
    MAX_THREADS,
    fits_shared,
    integer,
    programs_at_once,
    threads,
)
from search_spaces.kernels.rows import ROW_CONSTRAINTS, stage_parameters, step_parameters
from search_spaces.params import Boolean, Choice, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: The longest row: places in a row, and in the block behind it, are 32-bit integers.
MAX_COLS = 2**30
#: Elements of all tensors that a program may hold of a row.
_MOST_HELD = 32768
_LONGEST, _MOST_SPLITS = 8, 256
_SMALLEST_BLOCK, _LARGEST_BLOCK = 1024, 16384
_WORD_BYTES = 16
#: 32-bit registers of a multiprocessor, what a thread needs besides its elements, and the most it
#: can have for them.
_REGISTERS, _OTHER_REGISTERS, _MOST_OF_THREAD = 65536, 24, 128
#: Elements of all tensors that a thread holds of a block, and of a row in the usual config.
_MOST_OF_BLOCK, _USUAL_OF_THREAD = 32, 32
#: Programs for each multiprocessor beyond which a row is not split.
_ENOUGH = 8


def held_cols(tensors: int) -> int:
    """The longest row of which a program holds `tensors` tensors in registers."""
    return _MOST_HELD // tensors


def long_row_space(workload: Workload, kernel: str, *, tensors: int) -> SearchSpace:
    """Rows held in registers, where they are short enough, and rows read twice in blocks.

    tensors: inputs of rows x cols that a program holds.
    """
    held = workload.size("cols") <= held_cols(tensors)
    parameters: list[Parameter] = [
        Choice("passes", (1, 2) if held else (2,)),
        PowerOfTwo("num_warps", 1, 32),
    ]
    if held:
        when = {"passes": (1,)}
        parameters += step_parameters(workload, tallest=8, longest=_LONGEST, when=when)
        parameters += stage_parameters(workload, longest=_LONGEST, deepest=3)
    row, two = next_power_of_two(workload.size("cols")), {"passes": (2,)}
    largest = max(_SMALLEST_BLOCK, min(_LARGEST_BLOCK, row))
    parameters += [
        PowerOfTwo("BLOCK", _SMALLEST_BLOCK, largest, when=two),
        Integer("block_stages", 1, 4, when=two),
        PowerOfTwo("splits", 1, min(_MOST_SPLITS, max(row // _SMALLEST_BLOCK, 1)), when=two),
        Boolean("stream"),
    ]
    return SearchSpace(
        parameters,
        _constraints(tensors),
        kernel=kernel,
        admits=("rows_per_step", "steps", "stages", "BLOCK", "block_stages", "splits"),
    )


def default_long_row(workload: Workload, device: Device, *, tensors: int) -> Config:
    """One program per row, whose threads hold up to 32 elements of all tensors; a longer row in
    blocks.

    Enough rows for the device have one program of 32 warps each, so that what is in flight comes
    from few rows and is still in the caches when it is read again; a block is as long as their
    registers hold or, where rows begin within a word of 16 bytes, short. Fewer rows are split.
    """
    row, rows = next_power_of_two(workload.size("cols")), workload.size("rows")
    if workload.size("cols") <= held_cols(tensors):
        lanes = device.warp_size or 32
        warps = max(1, min(16, tensors * row // (_USUAL_OF_THREAD * lanes)))
        held = {"passes": 1, "num_warps": warps, "rows_per_step": 1, "steps": 1}
        return {**held, "stream": False}
    at_once = programs_at_once(device)
    streamed = {"passes": 2, "block_stages": 1, "stream": True}
    whole = workload.size("cols") * ELEMENT_BYTES[workload.text("dtype")] % _WORD_BYTES == 0
    if 2 * rows > at_once * 3 // 2:
        block = _LARGEST_BLOCK // tensors if whole else 2 * _SMALLEST_BLOCK
        warps = MAX_THREADS // (device.warp_size or 32)
        return {**streamed, "num_warps": warps, "BLOCK": block, "splits": 1}
    splits = 1
    while 2 * splits * rows <= _ENOUGH * at_once and 2 * splits <= ceil_div(
        workload.size("cols"), _SMALLEST_BLOCK
    ):
        splits *= 2
    return {**streamed, "num_warps": 8, "BLOCK": _SMALLEST_BLOCK, "splits": min(splits, 64)}


# -- the launch ------------------------------------------------------------------------------------
def held_constants(workload: Workload, config: Config) -> Mapping[str, Any]:
    """Constants of a launch that holds whole rows, besides those of `rows.step_constants`."""
    return {
        "COLS": workload.size("cols"),
        "ALIGN": alignment(workload.size("cols")),
        "STREAM": config["stream"],
        "num_warps": config["num_warps"],
    }


def vector_of(workload: Workload) -> int:
    """Elements of 16 bytes."""
    return _WORD_BYTES // ELEMENT_BYTES[workload.text("dtype")]


def reached_places(workload: Workload) -> int:
    """Places of the longest row, counted as `row_blocks` says."""
    cols, vector = workload.size("cols"), vector_of(workload)
    return cols if cols % vector == 0 else cols + vector - 1


def block_constants(workload: Workload, config: Config) -> dict[str, Any]:
    """Constants of a launch that reads rows in blocks; `row_blocks` explains them."""
    cols, block = workload.size("cols"), integer(config, "BLOCK")
    vector, splits = vector_of(workload), integer(config, "splits")
    aligned = cols % vector == 0
    part = ceil_div(reached_places(workload), block * splits) * block
    return {
        "COLS": cols,
        "BLOCK": block,
        "VEC": vector,
        "PART": part,
        "SPLITS": splits,
        "EVEN": aligned and part * splits == cols,
        "STREAM": config["stream"],
        "LOAD_STAGES": config["block_stages"],
        "num_warps": config["num_warps"],
    }


# -- the space -------------------------------------------------------------------------------------
def _row_blocks(config: Config, workload: Workload) -> int:
    return ceil_div(workload.size("cols"), integer(config, "BLOCK"))


def _block_of_many(config: Config, workload: Workload, device: Device) -> bool:
    held = workload.size("cols") <= _MOST_HELD
    return config["passes"] == 1 or _row_blocks(config, workload) >= 2 or not held


def _pipelines_blocks(config: Config, workload: Workload, device: Device) -> bool:
    if config["passes"] == 1:
        return True
    blocks = ceil_div(_row_blocks(config, workload), integer(config, "splits"))
    return integer(config, "block_stages") <= blocks


def _splits_have_blocks(config: Config, workload: Workload, device: Device) -> bool:
    return config["passes"] == 1 or integer(config, "splits") <= _row_blocks(config, workload)


def _needs_splits(config: Config, workload: Workload, device: Device) -> bool:
    splits = integer(config, "splits")
    most = _ENOUGH * programs_at_once(device)
    return splits == 1 or workload.size("rows") * splits <= most


def _constraints(tensors: int) -> tuple[Constraint, ...]:
    def fits_thread(config: Config, workload: Workload, device: Device) -> bool:
        if config["passes"] == 2:
            held, most = integer(config, "BLOCK"), _MOST_OF_BLOCK
        else:
            cols = next_power_of_two(workload.size("cols"))
            held, most = integer(config, "rows_per_step") * cols, _MOST_OF_THREAD
        share = _REGISTERS // threads(config, device) - _OTHER_REGISTERS
        return tensors * held <= threads(config, device) * min(most, share)

    def fits_in_flight(config: Config, workload: Workload, device: Device) -> bool:
        if config["passes"] == 2:
            tile, stages = integer(config, "BLOCK"), integer(config, "block_stages")
        else:
            cols = next_power_of_two(workload.size("cols"))
            tile, stages = integer(config, "rows_per_step") * cols, integer(config, "stages")
        needed = tensors * (stages - 1) * tile * ELEMENT_BYTES[workload.text("dtype")]
        return fits_shared(needed, device)

    return (
        *ROW_CONSTRAINTS,
        Constraint("thread", fits_thread, "a thread has too few registers for its elements"),
        Constraint(
            "in_flight", fits_in_flight, "what is in flight does not fit into shared memory"
        ),
        Preference("streaming", _block_of_many, "a row of one block need not be read twice"),
        Preference("pipeline", _pipelines_blocks, "there are too few blocks to load so far ahead"),
        Preference("splits", _splits_have_blocks, "some splits would have no block"),
        Preference("enough", _needs_splits, "there are enough programs with fewer splits"),
    )
