"""The spaces of the linear cross-entropy: tiles of logits, and how the vocabulary is divided."""

from __future__ import annotations

from collections.abc import Callable

from search_spaces.block_sizes import ceil_div
from search_spaces.bound import BoundSpace
from search_spaces.constraints import Constraint, Preference
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.features import product_tile_features
from search_spaces.kernels.limits import (
    block_parameter,
    fits_shared,
    integer,
    nearest,
    programs_at_once,
    threads,
)
from search_spaces.params import Choice, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: Usual tiles without tuning; the default config is the first that is feasible.
_USUAL: tuple[dict[str, int], ...] = (
    {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3},
    {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32, "num_warps": 8, "num_stages": 2},
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2},
)
_USUAL_SLICES = 16
#: Every block divides a slice.
_SLICE_MULTIPLE = 256
_MOST_SLICE_BYTES = 2**30
_FEWEST_SLICES, _MOST_SLICES = 4, 32
_BLOCKS = ("BLOCK_M", "BLOCK_N", "BLOCK_K")
_MOST_STEPS = 16
#: Float32 sums that a thread holds at most and at least.
_MOST_SUMS, _LEAST_SUMS = 128, 8
#: From this many tokens on, tiles are as large as those of a square product.
_MANY_TOKENS = 1024


def forward_space(workload: Workload) -> SearchSpace:
    """Tiles, and `steps` tiles side by side, which a program merges before it stores results."""
    parameters = [*_tiles(workload), PowerOfTwo("steps", 1, _MOST_STEPS)]
    steps = Preference("steps", _fills_device, "programs would be fewer than multiprocessors")
    return SearchSpace(
        parameters,
        (*_TILE_CONSTRAINTS, steps),
        kernel="linear_cross_entropy",
        admits=_BLOCKS,
        features=_features(lambda workload, config: workload.size("vocab")),
    )


def backward_space(workload: Workload) -> SearchSpace:
    """Tiles of all three products, and the slices of the vocabulary."""
    parameters = [*_tiles(workload), PowerOfTwo("slices", _FEWEST_SLICES, _MOST_SLICES)]
    memory = Constraint("memory", _slice_is_small, "a slice would have more than 1 GiB")
    return SearchSpace(
        parameters,
        (*_TILE_CONSTRAINTS, memory),
        kernel="linear_cross_entropy_backward",
        admits=_BLOCKS,
        features=_features(slice_words),
    )


def slice_words(workload: Workload, config: Config) -> int:
    """Words of each slice but the last, which may have fewer."""
    words = ceil_div(workload.size("vocab"), integer(config, "slices"))
    return ceil_div(words, _SLICE_MULTIPLE) * _SLICE_MULTIPLE


def default_point(bound: BoundSpace) -> Config:
    """A usual tile, cut to the problem, with one step or 16 slices."""
    for tile in _USUAL:
        for group in (8, 1):
            usual = {**tile, "GROUP_M": group, "steps": 1, "slices": _USUAL_SLICES}
            config = {item.name: nearest(item, usual[item.name]) for item in bound.parameters}
            if bound.feasible(config):
                return config
    bound.require_feasible()
    return next(bound.enumerate())


def _tiles(workload: Workload) -> list[Parameter]:
    tokens = workload.size("tokens")
    many = tokens >= _MANY_TOKENS
    return [
        block_parameter("BLOCK_M", tokens, 64 if many else 16, 256 if many else 128),
        block_parameter("BLOCK_N", workload.size("vocab"), 64, 256),
        block_parameter("BLOCK_K", workload.size("dim"), 32, 128),
        Choice("GROUP_M", (1, 8)),
        PowerOfTwo("num_warps", 4, 8),
        Integer("num_stages", 2, 5),
    ]


def _features(
    columns: Callable[[Workload, Config], int],
) -> Callable[[Config, Workload, Device], tuple[float, ...]]:
    """The features of a tile of logits, and log2 of the products per element that it loads."""

    def features(config: Config, workload: Workload, device: Device) -> tuple[float, ...]:
        rows, cols = integer(config, "BLOCK_M"), integer(config, "BLOCK_N")
        tiles = ceil_div(workload.size("tokens"), rows) * ceil_div(columns(workload, config), cols)
        return product_tile_features(
            config,
            device,
            rows=rows,
            cols=cols,
            stage_bytes=_stage_bytes(config, workload),
            programs=ceil_div(tiles, integer(config, "steps")),
        )

    return features


def _stage_bytes(config: Config, workload: Workload) -> int:
    """Shared memory of one stage: a tile of each operand."""
    sides = integer(config, "BLOCK_M") + integer(config, "BLOCK_N")
    return sides * integer(config, "BLOCK_K") * ELEMENT_BYTES[workload.text("dtype")]


def _sums(config: Config) -> int:
    return integer(config, "BLOCK_M") * integer(config, "BLOCK_N")


def _rows(config: Config, workload: Workload) -> int:
    return ceil_div(workload.size("tokens"), integer(config, "BLOCK_M"))


def _fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    return fits_shared(_stage_bytes(config, workload) * integer(config, "num_stages"), device)


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    return _sums(config) <= _MOST_SUMS * threads(config, device)


def _keeps_threads_busy(config: Config, workload: Workload, device: Device) -> bool:
    return _sums(config) >= _LEAST_SUMS * threads(config, device)


def _groups_rows(config: Config, workload: Workload, device: Device) -> bool:
    return config["GROUP_M"] == 1 or _rows(config, workload) > 1


def _fills_device(config: Config, workload: Workload, device: Device) -> bool:
    steps = integer(config, "steps")
    parts = ceil_div(ceil_div(workload.size("vocab"), integer(config, "BLOCK_N")), steps)
    return steps == 1 or parts * _rows(config, workload) >= programs_at_once(device)


def _slice_is_small(config: Config, workload: Workload, device: Device) -> bool:
    words = slice_words(workload, config) * workload.size("tokens")
    small = words * ELEMENT_BYTES[workload.text("dtype")] <= _MOST_SLICE_BYTES
    return small or integer(config, "slices") == _MOST_SLICES


_TILE_CONSTRAINTS = (
    Constraint("shared", _fits_shared, "tiles x stages do not fit into shared memory"),
    Constraint("registers", _fits_registers, f"a thread would hold more than {_MOST_SUMS} sums"),
    Preference("busy", _keeps_threads_busy, f"threads would hold fewer than {_LEAST_SUMS} sums"),
    Preference("group", _groups_rows, "there is a single row of tiles"),
)
