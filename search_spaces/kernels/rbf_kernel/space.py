"""The space of the radial basis function: tiles, their order, precision of the products."""

from __future__ import annotations

from search_spaces.block_sizes import ceil_div
from search_spaces.constraints import Constraint, Preference
from search_spaces.dims import tolerance_of
from search_spaces.kernels.features import tile_features
from search_spaces.kernels.limits import fits_shared, integer, programs_at_once
from search_spaces.kernels.pairwise import (
    TILE_CONSTRAINTS,
    steps,
    sums,
    tile_bytes,
    tile_parameters,
)
from search_spaces.params import Boolean, Choice, Integer
from search_spaces.records import Config, Device, Value, Workload
from search_spaces.space import SearchSpace

#: Configs without tuning, the first feasible one. Results are written once and read by others.
USUAL: tuple[dict[str, Value], ...] = tuple(
    {"BLOCK_M": side, "BLOCK_N": side, "BLOCK_K": 32, "num_warps": warps, "num_stages": stages}
    | {"norms": "launch", "GROUP_M": group, "stream": True}
    for side, warps in ((128, 4), (128, 8), (64, 4))
    for stages in (3, 2, 1)
    for group in (8, 1)
)
#: Relative error of a result whose products are TF32, for inputs as `make_inputs` draws them.
_TF32_ERROR = 5e-5


def rbf_space(workload: Workload) -> SearchSpace:
    """Tiles [BLOCK_M, BLOCK_N] of the output, BLOCK_K coordinates at a time."""
    rows, cols = workload.sizes("rows", "cols")
    deepest = 64 if workload["dtype"] == "float32" else 128
    parameters = tile_parameters(workload, rows, cols, deepest=deepest)
    parameters += [Integer("num_stages", 1, 4), Choice("GROUP_M", (1, 8)), Boolean("stream")]
    return SearchSpace(
        parameters,
        CONSTRAINTS,
        kernel="rbf_kernel",
        features=features,
        admits=("BLOCK_M", "BLOCK_N", "BLOCK_K"),
    )


def features(config: Config, workload: Workload, device: Device) -> tuple[float, ...]:
    """The features of the tiles."""
    rows, cols = _tiles(config, workload)
    return tile_features(
        device,
        shared_bytes=_shared_bytes(config, workload),
        sums=sums(config, workload),
        warps=integer(config, "num_warps"),
        programs=rows * cols,
    )


def _tiles(config: Config, workload: Workload) -> tuple[int, int]:
    return (
        ceil_div(workload.size("rows"), integer(config, "BLOCK_M")),
        ceil_div(workload.size("cols"), integer(config, "BLOCK_N")),
    )


def _shared_bytes(config: Config, workload: Workload) -> int:
    """All stages of both operands."""
    sides = integer(config, "BLOCK_M") + integer(config, "BLOCK_N")
    return tile_bytes(config, workload, sides * integer(config, "num_stages"))


def _fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    return fits_shared(_shared_bytes(config, workload), device)


def _pipelines(config: Config, workload: Workload, device: Device) -> bool:
    return integer(config, "num_stages") <= steps(config, workload)


def _groups_rows(config: Config, workload: Workload, device: Device) -> bool:
    rows, cols = _tiles(config, workload)
    queued = rows > 1 < cols and rows * cols > programs_at_once(device)
    return config["GROUP_M"] == 1 or queued


def _is_precise(config: Config, workload: Workload, device: Device) -> bool:
    return config.get("precision") != "tf32" or tolerance_of(workload, 0.0) >= _TF32_ERROR


CONSTRAINTS = (
    *TILE_CONSTRAINTS,
    Constraint("shared", _fits_shared, "tiles x stages do not fit into shared memory"),
    Preference("pipeline", _pipelines, "a program has too few steps to load so far ahead"),
    Preference("group", _groups_rows, "all tiles run at once, so their order does not matter"),
    Constraint("precise", _is_precise, "TF32 products are outside the tolerance"),
)
