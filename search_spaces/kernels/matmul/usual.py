"""The config of matmul without tuning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from search_spaces.bound import BoundSpace
from search_spaces.kernels.limits import nearest, programs_at_once
from search_spaces.kernels.matmul.space import default_point, output_tiles
from search_spaces.params import PowerOfTwo
from search_spaces.records import Config, Value

#: Usual tiles of 16-bit floats, the largest first. Descriptors move the largest one.
_USUAL: tuple[Mapping[str, Value], ...] = (
    {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3}
    | {"loads": "descriptor", "persistent": True},
    {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3},
    {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 4},
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 4},
)
#: The share of multiprocessors that are busy with enough tiles.
_ENOUGH = 0.9


def usual_config(bound: BoundSpace) -> Config:
    """The largest usual tile of which there is about one for every multiprocessor.

    Where there are fewer tiles of any size, the smallest one, with K split over as many programs as
    run at once.
    """
    if bound.workload["dtype"] == "float32":
        return default_point(bound)
    most = programs_at_once(bound.device)
    for tile in _USUAL:
        for config in _feasible(bound, tile):
            if output_tiles(config, bound.workload) >= _ENOUGH * most:
                return config
    for splits in (16, 8, 4, 2):
        for config in _feasible(bound, {**_USUAL[-1], "SPLIT_K": splits}):
            if output_tiles(config, bound.workload) * splits <= most:
                return config
    return default_point(bound)


def _feasible(bound: BoundSpace, tile: Mapping[str, Value]) -> Iterator[Config]:
    """A tile cut to the problem, in grouped order and in plain order, where it is feasible."""
    known = {item.name: item for item in bound.parameters}
    if not tile.keys() <= known.keys():
        return
    cut = {
        name: nearest(known[name], value) if isinstance(known[name], PowerOfTwo) else value
        for name, value in tile.items()
        if isinstance(value, int)
    }
    for group in (8, 1):
        config = bound.complete({**tile, **cut, "GROUP_M": group})
        if bound.feasible(config):
            yield config
