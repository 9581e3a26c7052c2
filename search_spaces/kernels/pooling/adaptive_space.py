"""The space of adaptive pooling: the tile of a program, and splits of the windows."""

from __future__ import annotations

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.bound import BoundSpace
from search_spaces.constraints import Preference
from search_spaces.kernels.limits import (
    BLOCK_EXISTS,
    fits_registers,
    integer,
    keeps_threads_busy,
    programs_at_once,
)
from search_spaces.params import Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: Elements that a thread holds at most and at least.
_MOST_HELD, _LEAST_HELD = 32, 1
#: Pixels of a window at a time, with channels or with pixels as neighbours in memory.
_LONGEST_LAST, _LONGEST_FIRST = 256, 4096
#: Programs for each multiprocessor beyond which windows are not split, and what a default aims at.
_ENOUGH, _USUAL = 16, 8
_MOST_SPLITS, _USUAL_BLOCKS = 256, 2
#: Blocks that are loaded at once at most, and elements of a thread in all of them.
_MOST_UNROLLED, _MOST_IN_FLIGHT = 16, 64
#: Pixels of a window that a default takes one after the other, and elements of its tile.
_FEW, _USUAL_TILE = 16, 1024


def channels_last(workload: Workload) -> bool:
    """Whether the channels of a pixel are neighbours in memory."""
    return workload.text("layout") == "nhwc"


def results(workload: Workload) -> tuple[int, int]:
    """Pixels and channels of a launch: one of the two covers all images."""
    pixels = workload.size("out_height") * workload.size("out_width")
    batch, channels = workload.sizes("batch", "channels")
    if channels_last(workload):
        return batch * pixels, channels
    return pixels, batch * channels


def result_count(workload: Workload) -> int:
    """Elements of the output."""
    pixels, channels = results(workload)
    return pixels * channels


def window(workload: Workload) -> tuple[int, int]:
    """Height and width of the largest window."""
    found = []
    for name in ("height", "width"):
        size, out = workload.size(name), workload.size(f"out_{name}")
        found.append(max(ceil_div((at + 1) * size, out) - at * size // out for at in range(out)))
    return found[0], found[1]


def programs(config: Config, workload: Workload) -> int:
    """Programs of a launch that does not split windows."""
    pixels, channels = results(workload)
    return ceil_div(pixels, integer(config, "BLOCK_P")) * ceil_div(
        channels, integer(config, "BLOCK_C")
    )


def is_unrolled(config: Config, workload: Workload) -> bool:
    """Whether all blocks of a window, or of its part, are loaded at once."""
    each = ceil_div(_blocks(config, workload), integer(config, "splits"))
    lanes = 32 * integer(config, "num_warps")
    few = each * _tile(config, workload) <= _MOST_IN_FLIGHT * lanes
    return each <= _MOST_UNROLLED and few


def adaptive_space(workload: Workload, kernel: str) -> SearchSpace:
    """Tiles of pixels, channels and places of the windows, which up to 256 programs share."""
    pixels, channels = results(workload)
    last = channels_last(workload)
    high, wide = window(workload)
    places, widest = next_power_of_two(high * wide), next_power_of_two(channels)
    blocks_c = (min(16, widest), min(256, widest)) if last else (1, min(128, widest))
    parameters: list[Parameter] = [
        PowerOfTwo("BLOCK_P", 1, min(32, next_power_of_two(pixels))),
        PowerOfTwo("BLOCK_R", 1, min(_LONGEST_LAST if last else _LONGEST_FIRST, places)),
        PowerOfTwo("BLOCK_C", *blocks_c),
        PowerOfTwo("num_warps", 1, 8),
        PowerOfTwo("splits", 1, min(_MOST_SPLITS, places)),
    ]
    return SearchSpace(
        parameters, CONSTRAINTS, kernel=kernel, admits=("BLOCK_P", "BLOCK_R", "BLOCK_C", "splits")
    )


def default_point(bound: BoundSpace) -> Config:
    """1,024 elements by 2 warps, 16 of each thread: channels first where they are neighbours.

    The pixels of a small window are loaded one by one, of others 16 at a time with channels last
    and a stretch of a row otherwise. Windows are split until every multiprocessor has eight
    programs.
    """
    workload = bound.workload
    high, wide = window(workload)
    pixels, _ = results(workload)
    most = {item.name: int(str(item.values()[-1])) for item in bound.parameters}
    usual = {"BLOCK_C": 64, "BLOCK_R": 16} if channels_last(workload) else {"BLOCK_R": _USUAL_TILE}
    if high * wide <= _FEW:
        usual["BLOCK_R"] = 1
    elif not channels_last(workload) and high * wide < _USUAL_TILE // 2:
        usual["BLOCK_R"] = 8
    usual["BLOCK_P"] = _fitting(pixels, min(8, most["BLOCK_P"]))
    config, left = {"splits": 1}, _USUAL_TILE
    order = ("BLOCK_C", "BLOCK_R", "BLOCK_P")
    for name in order if channels_last(workload) else ("BLOCK_R", "BLOCK_P", "BLOCK_C"):
        config[name] = min(left, most[name], usual.get(name, left))
        left //= config[name]
    for warps in (2, 1, 4, 8):
        point = bound.complete({**config, "num_warps": warps})
        if bound.feasible(point):
            return bound.complete({**point, "splits": _usual_splits(point, bound)})
    bound.require_feasible()
    return next(bound.enumerate())


def _fitting(size: int, most: int) -> int:
    """The largest power of two up to `most` whose blocks waste at most a quarter."""
    while most > 1 and 4 * ceil_div(size, most) * most > 5 * size:
        most //= 2
    return most


def _usual_splits(config: Config, bound: BoundSpace) -> int:
    aim = _USUAL * programs_at_once(bound.device) // programs(config, bound.workload)
    most = max(1, min(aim, _blocks(config, bound.workload) // _USUAL_BLOCKS, _MOST_SPLITS))
    return 1 << most.bit_length() - 1


def _tile(config: Config, workload: Workload) -> int:
    tile = integer(config, "BLOCK_P") * integer(config, "BLOCK_C")
    return tile * integer(config, "BLOCK_R")


def _blocks(config: Config, workload: Workload) -> int:
    high, wide = window(workload)
    return ceil_div(high * wide, integer(config, "BLOCK_R"))


def _splits_have_blocks(config: Config, workload: Workload, device: Device) -> bool:
    return integer(config, "splits") <= _blocks(config, workload)


def _needs_splits(config: Config, workload: Workload, device: Device) -> bool:
    splits = integer(config, "splits")
    most = _ENOUGH * programs_at_once(device)
    return splits == 1 or programs(config, workload) * splits <= most


CONSTRAINTS = (
    BLOCK_EXISTS,
    fits_registers(_tile, _MOST_HELD),
    keeps_threads_busy(_tile, _LEAST_HELD),
    Preference("splits", _splits_have_blocks, "some splits would have no block"),
    Preference("enough", _needs_splits, "there are enough programs with fewer splits"),
)
