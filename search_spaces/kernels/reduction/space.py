"""The space of the reductions: the tile of a program, and splits along the axis."""

from __future__ import annotations

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.constraints import Preference
from search_spaces.kernels.limits import (
    BLOCK_EXISTS,
    fits_registers,
    integer,
    keeps_threads_busy,
    pipelines_blocks,
    programs_at_once,
)
from search_spaces.params import Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: Largest tiles: kept elements and elements along the axis, for rows (axis 1) and columns (axis 0).
_MOST_KEPT, _MOST_ALONG = {1: 32, 0: 512}, {1: 16384, 0: 128}
#: The fewest adjacent elements of a tile, for rows and columns; a narrower matrix has fewer.
_LEAST_CONTIGUOUS = {1: 128, 0: 32}
#: Values that a thread holds at most and at least.
_MOST_HELD, _LEAST_HELD = 64, 1
_MOST_SPLITS = 1024
#: Programs for each multiprocessor beyond which an axis is not split, and what a default aims at.
_ENOUGH, _USUAL = 16, 8
#: Blocks that a split of a default has at least.
_USUAL_BLOCKS = 2


def sizes(workload: Workload) -> tuple[int, int]:
    """Elements of the output, and elements along the axis."""
    rows, cols = workload.sizes("rows", "cols")
    return (rows, cols) if workload.size("axis") == 1 else (cols, rows)


def reduction_space(workload: Workload) -> SearchSpace:
    """Tiles of up to 16,384 elements along a row or 512 columns side by side; 1,024 splits."""
    axis, (kept, length) = workload.size("axis"), sizes(workload)
    most_kept = min(_MOST_KEPT[axis], next_power_of_two(kept))
    most_along = min(_MOST_ALONG[axis], next_power_of_two(length))
    least_kept = 1 if axis == 1 else min(_LEAST_CONTIGUOUS[0], most_kept)
    least_along = min(_LEAST_CONTIGUOUS[1], most_along) if axis == 1 else 1
    splits = min(_MOST_SPLITS, next_power_of_two(length))
    parameters: list[Parameter] = [
        PowerOfTwo("BLOCK_KEEP", least_kept, most_kept),
        PowerOfTwo("BLOCK_RED", least_along, most_along),
        PowerOfTwo("splits", 1, splits),
        PowerOfTwo("num_warps", 1, 16),
        PowerOfTwo("stages", 1, 4),
    ]
    return SearchSpace(
        parameters, CONSTRAINTS, kernel="reduction", admits=("BLOCK_KEEP", "BLOCK_RED", "splits")
    )


def default_point(workload: Workload, device: Device) -> Config:
    """2,048 elements at a time, two words of 16 bytes or more for each thread of four warps; as
    many splits as give every multiprocessor eight programs, if there are blocks for them."""
    axis, (kept, length) = workload.size("axis"), sizes(workload)
    if axis == 1:
        along = min(2048, next_power_of_two(length))
        block_kept = min(2048 // along, _MOST_KEPT[1], next_power_of_two(kept))
    else:
        block_kept = min(128, next_power_of_two(kept))
        along = min(16, next_power_of_two(length))
    lanes = device.warp_size or 32
    warps = max(1, min(4, block_kept * along // (8 * lanes)))
    programs, blocks = ceil_div(kept, block_kept), ceil_div(length, along)
    most = min(_USUAL * programs_at_once(device) // programs, blocks // _USUAL_BLOCKS)
    splits = min(_MOST_SPLITS, 1 << max(most, 1).bit_length() - 1)
    usual = {"BLOCK_KEEP": block_kept, "BLOCK_RED": along, "splits": splits}
    return {**usual, "num_warps": warps, "stages": 1}


def _tile(config: Config, workload: Workload) -> int:
    return integer(config, "BLOCK_KEEP") * integer(config, "BLOCK_RED")


def _splits_have_blocks(config: Config, workload: Workload, device: Device) -> bool:
    blocks = ceil_div(sizes(workload)[1], integer(config, "BLOCK_RED"))
    return integer(config, "splits") <= blocks


def _needs_splits(config: Config, workload: Workload, device: Device) -> bool:
    splits = integer(config, "splits")
    programs = ceil_div(sizes(workload)[0], integer(config, "BLOCK_KEEP"))
    return splits == 1 or programs * splits <= _ENOUGH * programs_at_once(device)


def _blocks(config: Config, workload: Workload) -> int:
    blocks = ceil_div(sizes(workload)[1], integer(config, "BLOCK_RED"))
    return ceil_div(blocks, integer(config, "splits"))


CONSTRAINTS = (
    BLOCK_EXISTS,
    fits_registers(_tile, _MOST_HELD),
    keeps_threads_busy(_tile, _LEAST_HELD),
    Preference("splits", _splits_have_blocks, "some splits would have no block"),
    Preference("enough", _needs_splits, "there are enough programs with fewer splits"),
    pipelines_blocks(_blocks),
)
