"""The space of the nearest center: tiles, precision of the products, ranges of centers."""

from __future__ import annotations

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.constraints import Constraint, Preference
from search_spaces.dims import tolerance_of
from search_spaces.kernels.features import tile_features
from search_spaces.kernels.limits import fits_shared, integer, programs_at_once
from search_spaces.kernels.pairwise import (
    TILE_CONSTRAINTS,
    default_point,
    steps,
    sums,
    tile_bytes,
    tile_parameters,
)
from search_spaces.params import Boolean, Choice, Integer, PowerOfTwo
from search_spaces.records import Config, Device, Value, Workload
from search_spaces.space import SearchSpace

_MOST_SPLITS, _LEAST_CENTERS = 16, 128
#: Rows, and programs for each multiprocessor, beyond which centers are not split.
_FEW_ROWS, _ENOUGH = 2**17, 4
#: Relative error of a distance whose products are TF32, for inputs as `make_inputs` draws them.
_TF32_ERROR = 5e-3
#: Configs without tuning, the first feasible one: points, centers and coordinates of a tile, warps
#: and stages. A tile of points stays on chip while the centers pass by, where BLOCK_K holds all
#: their coordinates; with more, steps of 64 leave room for centers that are loaded ahead.
_WHOLE = ((128, 128, 128, 4, 2), (128, 64, 128, 4, 2))
_PARTS = ((128, 128, 64, 4, 2), (128, 64, 64, 4, 2))
_WHOLE_FLOAT32 = ((128, 64, 128, 4, 3), (128, 64, 128, 4, 2))
_PARTS_FLOAT32 = ((128, 128, 32, 4, 3), (128, 64, 32, 4, 2))
_SMALLEST = ((64, 64, 32, 4, 2), (64, 64, 32, 4, 1))
_LONGEST_WHOLE = 128


def _usual(workload: Workload) -> list[dict[str, Value]]:
    """float32 finds the nearest center by TF32 products, and computes its distance again."""
    whole, single = workload.size("dim") <= _LONGEST_WHOLE, workload["dtype"] == "float32"
    wholes, parts = (_WHOLE_FLOAT32, _PARTS_FLOAT32) if single else (_WHOLE, _PARTS)
    tiles = wholes if whole else parts
    found: list[dict[str, Value]] = [
        {"BLOCK_M": rows, "BLOCK_N": centers, "BLOCK_K": block, "num_warps": warps}
        | {"num_stages": stages, "norms": "launch", "minimum": "places", "recompute": single}
        for rows, centers, block, warps, stages in (*tiles, *_SMALLEST)
    ]
    return found


def nearest_space(workload: Workload) -> SearchSpace:
    """Points [BLOCK_M, BLOCK_K] meet centers [BLOCK_N, BLOCK_K]; few points split the centers."""
    rows, centers = workload.sizes("rows", "centers")
    single = workload["dtype"] == "float32"
    deepest = 128 if single else 256
    parameters = tile_parameters(workload, rows, centers, deepest=deepest)
    parameters.append(Integer("num_stages", 1, 4))
    parameters.append(Choice("minimum", ("pairs", "places")))
    if single:
        parameters.append(Boolean("recompute"))
    splits = min(_MOST_SPLITS, next_power_of_two(centers // _LEAST_CENTERS))
    if splits > 1 and rows <= _FEW_ROWS:
        parameters.append(PowerOfTwo("splits", 1, splits))
    return SearchSpace(
        parameters,
        CONSTRAINTS,
        kernel="nearest_center",
        features=features,
        admits=("BLOCK_M", "BLOCK_N", "BLOCK_K", "splits"),
    )


def default_nearest(workload: Workload, device: Device) -> Config:
    """A usual tile; few points split the centers until every multiprocessor has a program."""
    bound = nearest_space(workload).bind(workload, device)
    precisions = ("tf32", "ieee") if workload["dtype"] == "float32" else ()
    config = default_point(bound, _usual(workload), precisions)
    while "splits" in config and _programs(config, workload) < programs_at_once(device):
        more = {**config, "splits": 2 * integer(config, "splits")}
        if not bound.feasible(more):
            break
        config = more
    return config


def features(config: Config, workload: Workload, device: Device) -> tuple[float, ...]:
    """The features of the tiles."""
    return tile_features(
        device,
        shared_bytes=_shared_bytes(config, workload),
        sums=sums(config, workload),
        warps=integer(config, "num_warps"),
        programs=_programs(config, workload),
    )


def _programs(config: Config, workload: Workload) -> int:
    return ceil_div(workload.size("rows"), integer(config, "BLOCK_M")) * integer(config, "splits")


def _shared_bytes(config: Config, workload: Workload) -> int:
    """All stages of the centers and of the points, which stay where BLOCK_K holds them whole."""
    stages, rows = integer(config, "num_stages"), integer(config, "BLOCK_M")
    held = rows if steps(config, workload) == 1 else rows * stages
    return tile_bytes(config, workload, held + integer(config, "BLOCK_N") * stages)


def _fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    return fits_shared(_shared_bytes(config, workload), device)


def _pipelines(config: Config, workload: Workload, device: Device) -> bool:
    loads = steps(config, workload)
    if loads == 1:
        blocks = ceil_div(workload.size("centers"), integer(config, "BLOCK_N"))
        loads = ceil_div(blocks, integer(config, "splits"))
    return integer(config, "num_stages") <= loads


def _splits_have_centers(config: Config, workload: Workload, device: Device) -> bool:
    splits = integer(config, "splits")
    blocks = ceil_div(workload.size("centers"), integer(config, "BLOCK_N"))
    return splits == 1 or (splits - 1) * ceil_div(blocks, splits) < blocks


def _needs_splits(config: Config, workload: Workload, device: Device) -> bool:
    enough = _ENOUGH * programs_at_once(device)
    return config.get("splits", 1) == 1 or _programs(config, workload) <= enough


def _distance_is_precise(config: Config, workload: Workload, device: Device) -> bool:
    if config.get("precision") != "tf32" or config.get("recompute"):
        return True
    return tolerance_of(workload, 0.0) >= _TF32_ERROR


CONSTRAINTS = (
    *TILE_CONSTRAINTS,
    Constraint("shared", _fits_shared, "tiles x stages do not fit into shared memory"),
    Preference("pipeline", _pipelines, "a program has too few tiles to load so far ahead"),
    Preference("splits", _splits_have_centers, "some splits would have no center"),
    Preference("enough", _needs_splits, "there are enough programs with fewer splits"),
    Constraint(
        "distance", _distance_is_precise, "a distance from TF32 products is outside the tolerance"
    ),
)
