"""The space of the matmul family: which tiles, splits, loads and precisions a workload may take."""

from __future__ import annotations

from search_spaces.block_sizes import ceil_div
from search_spaces.bound import BoundSpace
from search_spaces.constraints import Constraint, Preference
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.features import product_tile_features
from search_spaces.kernels.limits import (
    DESCRIPTORS,
    admitted_tiles,
    block_parameter,
    fits_shared,
    has_capability,
    integer,
    nearest_values,
    programs_at_once,
    threads,
)
from search_spaces.params import Boolean, Choice, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: Usual tiles without tuning; the default config is the first that is feasible.
_USUAL: tuple[dict[str, int], ...] = (
    {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3},
    {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3},
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2},
)
_USUAL_FLOAT32: tuple[dict[str, int], ...] = (
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3},
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 16, "num_warps": 4, "num_stages": 2},
)


def takes_descriptors(workload: Workload) -> bool:
    """Whether rows are whole multiples of 16 bytes, as tensor descriptors need them."""
    element = ELEMENT_BYTES[workload.text("dtype")]
    return all(workload.size(dim) * element % 16 == 0 for dim in ("K", "N"))


def matmul_space(workload: Workload) -> SearchSpace:
    """Tiles of 16 to 256 a side, narrowed to what the sizes can use.

    Large squares start at 64 x 64. Small or slender problems, which leave multiprocessors idle or
    wait for memory, get smaller tiles, longer strides of K and splits of K.
    """
    m, n, k = workload.sizes("M", "N", "K")
    single = workload["dtype"] == "float32"
    large = m >= 2048 and n >= 2048
    deepest = 64 if single else 128 if large else 256
    shallowest = 16 if single else 32
    parameters: list[Parameter] = [
        block_parameter("BLOCK_M", m, 64 if large else 16 if m <= 64 else 32, 256),
        block_parameter("BLOCK_N", n, 64 if large else 16 if n <= 64 else 32, 256),
        block_parameter("BLOCK_K", k, shallowest, deepest),
        Choice("GROUP_M", (1, 8)),
        PowerOfTwo("num_warps", 4 if large else 2, 8),
        Integer("num_stages", 2, 5 if large else 6),
    ]
    pointers = None
    if takes_descriptors(workload):
        parameters.append(Choice("loads", ("pointer", "descriptor")))
        parameters.append(Boolean("persistent", when={"loads": ("descriptor",)}))
        pointers = {"loads": ("pointer",)}
    if not large:
        parameters.append(PowerOfTwo("SPLIT_K", 1, 16, when=pointers))
    if single:
        parameters.append(Choice("precision", ("ieee", "tf32x3", "tf32")))
    return SearchSpace(
        parameters,
        CONSTRAINTS,
        kernel="matmul",
        features=features,
        admits=admitted_tiles(takes_descriptors(workload)),
    )


def features(config: Config, workload: Workload, device: Device) -> tuple[float, ...]:
    """The features of its tiles, and log2 of the products per operand element a tile loads."""
    rows, cols = integer(config, "BLOCK_M"), integer(config, "BLOCK_N")
    return product_tile_features(
        config,
        device,
        rows=rows,
        cols=cols,
        stage_bytes=_stage_bytes(config, workload),
        programs=output_tiles(config, workload) * integer(config, "SPLIT_K"),
    )


def default_point(bound: BoundSpace) -> Config:
    """The config without tuning: a usual tile, cut to the problem and the device."""
    usual = _USUAL_FLOAT32 if bound.workload["dtype"] == "float32" else _USUAL
    for tile in usual:
        config = bound.complete(nearest_values(bound, tile))
        for group in (8, 1):
            grouped = {**config, "GROUP_M": group}
            if bound.feasible(grouped):
                return grouped
    bound.require_feasible()
    return next(bound.enumerate())


def output_tiles(config: Config, workload: Workload) -> int:
    """Tiles of the output."""
    return _tiles(config, workload, "M") * _tiles(config, workload, "N")


def _tiles(config: Config, workload: Workload, dim: str) -> int:
    return ceil_div(workload.size(dim), integer(config, f"BLOCK_{dim}"))


def _stage_bytes(config: Config, workload: Workload) -> int:
    """Shared memory of one stage: a tile of each operand."""
    sides = integer(config, "BLOCK_M") + integer(config, "BLOCK_N")
    return sides * integer(config, "BLOCK_K") * ELEMENT_BYTES[workload.text("dtype")]


def _fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    """All stages and, in a persistent program, the output tile that is still being stored."""
    needed = _stage_bytes(config, workload) * integer(config, "num_stages")
    if config.get("persistent"):
        output = integer(config, "BLOCK_M") * integer(config, "BLOCK_N")
        needed += output * ELEMENT_BYTES[workload.text("dtype")]
    return fits_shared(needed, device)


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    """Up to 512 float32 sums a thread: more than fit, since a few spills sometimes pay."""
    sums = integer(config, "BLOCK_M") * integer(config, "BLOCK_N")
    return sums <= 512 * threads(config, device)


def _groups_rows(config: Config, workload: Workload, device: Device) -> bool:
    rows, cols = _tiles(config, workload, "M"), _tiles(config, workload, "N")
    queued = rows > 1 < cols and rows * cols > programs_at_once(device)
    return config["GROUP_M"] == 1 or queued


def _split_has_work(config: Config, workload: Workload, device: Device) -> bool:
    splits = integer(config, "SPLIT_K")
    return splits == 1 or _tiles(config, workload, "K") >= 2 * splits


def _split_is_needed(config: Config, workload: Workload, device: Device) -> bool:
    splits = integer(config, "SPLIT_K")
    programs = output_tiles(config, workload) * splits
    return splits == 1 or programs <= 8 * programs_at_once(device)


def _persistence_pays(config: Config, workload: Workload, device: Device) -> bool:
    tiles = output_tiles(config, workload)
    return not config.get("persistent") or tiles > programs_at_once(device)


def _has_tensor_floats(config: Config, workload: Workload, device: Device) -> bool:
    return config.get("precision", "ieee") == "ieee" or has_capability(device, 80)


CONSTRAINTS = (
    Constraint("shared", _fits_shared, "tiles x stages do not fit into shared memory"),
    Constraint("registers", _fits_registers, "a thread would hold more than 512 sums"),
    Preference("group", _groups_rows, "all tiles run at once, so their order does not matter"),
    Preference("split_work", _split_has_work, "each split would have fewer than two steps of K"),
    Preference("split_need", _split_is_needed, "there are tiles enough without splitting so much"),
    Preference("persistent", _persistence_pays, "all tiles run at once, one per program"),
    DESCRIPTORS,
    Constraint("tensor_floats", _has_tensor_floats, "TF32 needs cuda:80 or newer"),
)
