"""The space of the group norm: groups held in registers, or read twice in tiles."""

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
from search_spaces.params import Boolean, Choice, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: Values of the largest tile that a program holds as a whole.
_MOST_HELD = 32768
#: Values of a tile and running moments: what a thread holds of each.
_MOST_OF_TILE, _LEAST_OF_TILE = 32, 2
#: 32-bit registers of a multiprocessor, and what a thread needs besides its values.
_REGISTERS, _OTHER_REGISTERS = 65536, 24
_LEAST_PIXELS, _MOST_PIXELS, _MOST_GROUPS, _MOST_SPLITS = 4, 512, 32, 256
#: Channels of a tile that has channels one by one, and the most of a group.
_FEWEST_CHANNELS, _MOST_CHANNELS, MOST_MERGED = 32, 512, 128
_SHORTEST, _LONGEST = 1024, 8192
#: Programs for each multiprocessor beyond which a group is not split, and what a default aims at.
_ENOUGH, _USUAL = 16, 8
_USUAL_TILE, _USUAL_BYTES = 4096, 4096
WORD_BYTES = 16


def is_last(workload: Workload) -> bool:
    """Whether the channels of a pixel are neighbours in memory."""
    return workload.text("layout") == "nhwc"


def per_group(workload: Workload) -> int:
    """Channels of a group."""
    return workload.size("channels") // workload.size("groups")


def length(workload: Workload) -> int:
    """Places of a group: its pixels, or its elements where they are one stretch of memory."""
    pixels = workload.size("pixels")
    return pixels if is_last(workload) else pixels * per_group(workload)


def by_channel(config: Config) -> bool:
    """Whether the moments of channels are found first, and merged to those of groups."""
    return config["passes"] == 3


def width(workload: Workload) -> int:
    """Values of a place of a group in a tile."""
    return next_power_of_two(per_group(workload)) if is_last(workload) else 1


def block(config: Config, workload: Workload) -> int:
    """Places of a tile."""
    held = next_power_of_two(length(workload))
    if not is_last(workload):
        held = max(held, WORD_BYTES // ELEMENT_BYTES[workload.text("dtype")])
    return integer(config, "BLOCK", held)


def tile(config: Config, workload: Workload) -> int:
    """Values of a tile."""
    if by_channel(config):
        return block(config, workload) * integer(config, "BLOCK_C")
    return block(config, workload) * integer(config, "BLOCK_G") * width(workload)


def group_space(workload: Workload, kernel: str) -> SearchSpace:
    """`passes` 1 holds groups in registers; 2 reads them twice, in tiles of `BLOCK` places; 3 reads
    channels twice, in whole words of memory, and merges their moments in between."""
    places = next_power_of_two(length(workload))
    held = places * width(workload) <= _MOST_HELD
    merges = is_last(workload) and per_group(workload) <= MOST_MERGED
    two = {"passes": (2, 3) if merges else (2,)}
    parameters: list[Parameter] = [
        Choice("passes", (*((1,) if held else ()), 2, *((3,) if merges else ()))),
        PowerOfTwo("num_warps", 1, 32),
    ]
    if is_last(workload):
        most = min(_MOST_GROUPS, next_power_of_two(workload.size("groups")))
        parameters.append(PowerOfTwo("BLOCK_G", 1, most, when={"passes": (1, 2) if held else (2,)}))
        if merges:
            channels = min(_MOST_CHANNELS, next_power_of_two(workload.size("channels")))
            fewest = min(_FEWEST_CHANNELS, channels)
            parameters.append(PowerOfTwo("BLOCK_C", fewest, channels, when={"passes": (3,)}))
        largest = min(_MOST_PIXELS, places)
        least = min(_LEAST_PIXELS, largest, max(1, _USUAL_TILE // width(workload)))
        blocks = PowerOfTwo("BLOCK", least, largest, when=two)
    else:
        longest = max(_SHORTEST, min(_LONGEST, places))
        blocks = PowerOfTwo("BLOCK", _SHORTEST, longest, when=two)
    parameters += [
        blocks,
        Integer("block_stages", 1, 3, when=two),
        PowerOfTwo("splits", 1, min(_MOST_SPLITS, places), when=two),
        Boolean("stream"),
    ]
    return SearchSpace(
        parameters, CONSTRAINTS, kernel=kernel, admits=("BLOCK_G", "BLOCK_C", "BLOCK", "splits")
    )


def default_point(workload: Workload, device: Device) -> Config:
    """Groups of up to 16,384 values in registers, by a thread for each 16, or 4,096 with channels
    last. Others are read in tiles, by eight programs for each multiprocessor: of 4,096 elements, or
    with channels last of 4,096 bytes, up to 128 channels side by side."""
    config: dict[str, bool | int] = {}
    places = next_power_of_two(length(workload))
    if is_last(workload):
        groups = next_power_of_two(workload.size("groups"))
        config["BLOCK_G"] = min(groups, _MOST_GROUPS, max(1, 64 // width(workload)))
    values = places * width(workload) * config.get("BLOCK_G", 1)
    if values <= (_USUAL_TILE if is_last(workload) else 4 * _USUAL_TILE):
        warps = max(1, min(16, values // 512))
        return {**config, "passes": 1, "num_warps": warps, "stream": False}
    each = values // places
    if is_last(workload) and per_group(workload) <= MOST_MERGED:
        channels = workload.size("channels")
        each = min(128, next_power_of_two(channels))
        while each > _FEWEST_CHANNELS and 8 * ceil_div(channels, each) * each > 9 * channels:
            each //= 2
        config = {"passes": 3, "BLOCK_C": each}
    blocks, warps = max(1, _USUAL_TILE // each), 8
    if is_last(workload):
        # Two words for each thread of four warps.
        values = _USUAL_BYTES // ELEMENT_BYTES[workload.text("dtype")]
        blocks, warps = min(max(1, values // each), _MOST_PIXELS, places), 4
    warps = max(1, min(warps, blocks * each // 256))
    tiled = {"passes": 2, **config, "BLOCK": blocks, "num_warps": warps, "block_stages": 1}
    most = _USUAL * programs_at_once(device) // programs(tiled, workload)
    most = max(1, min(most, _tiles(tiled, workload) // 2, _MOST_SPLITS, places))
    return {**tiled, "splits": 1 << most.bit_length() - 1, "stream": False}


def _fits_thread(config: Config, workload: Workload, device: Device) -> bool:
    lanes = threads(config, device)
    share = _REGISTERS // lanes - _OTHER_REGISTERS
    if config["passes"] != 1:
        return tile(config, workload) <= lanes * min(_MOST_OF_TILE, share // 3)
    return tile(config, workload) <= lanes * min(2 * _MOST_OF_TILE, share)


def _fits_in_flight(config: Config, workload: Workload, device: Device) -> bool:
    ahead = integer(config, "block_stages") - 1
    needed = ahead * tile(config, workload) * ELEMENT_BYTES[workload.text("dtype")]
    return fits_shared(needed, device)


def _tiles(config: Config, workload: Workload) -> int:
    return ceil_div(length(workload), block(config, workload))


def _tile_of_many(config: Config, workload: Workload, device: Device) -> bool:
    held = next_power_of_two(length(workload)) * width(workload) <= _MOST_HELD
    return config["passes"] == 1 or _tiles(config, workload) >= 2 or not held


def _splits_have_tiles(config: Config, workload: Workload, device: Device) -> bool:
    return integer(config, "splits") <= _tiles(config, workload)


def _pipelines(config: Config, workload: Workload, device: Device) -> bool:
    each = ceil_div(_tiles(config, workload), integer(config, "splits"))
    return integer(config, "block_stages") <= each


def programs(config: Config, workload: Workload) -> int:
    """Programs of a launch that does not split groups."""
    if by_channel(config):
        blocks = ceil_div(workload.size("channels"), integer(config, "BLOCK_C"))
        return workload.size("batch") * blocks
    across = ceil_div(workload.size("groups"), integer(config, "BLOCK_G"))
    return workload.size("batch") * across


def _needs_splits(config: Config, workload: Workload, device: Device) -> bool:
    splits, most = integer(config, "splits"), _ENOUGH * programs_at_once(device)
    return splits == 1 or programs(config, workload) * splits <= most


CONSTRAINTS = (
    BLOCK_EXISTS,
    Constraint("thread", _fits_thread, "a thread has too few registers for its values"),
    keeps_threads_busy(tile, _LEAST_OF_TILE),
    Constraint("in_flight", _fits_in_flight, "tiles in flight do not fit into shared memory"),
    Preference("streaming", _tile_of_many, "a group of one tile need not be read twice"),
    Preference("pipeline", _pipelines, "there are too few tiles to load so far ahead"),
    Preference("splits", _splits_have_tiles, "some splits would have no tile"),
    Preference("enough", _needs_splits, "there are enough programs with fewer splits"),
)
