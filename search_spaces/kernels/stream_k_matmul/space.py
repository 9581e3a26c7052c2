"""The space of stream-K: matmul's tiles, and how many of them programs share. Imports no torch."""

from __future__ import annotations

from dataclasses import replace

from search_spaces.block_sizes import ceil_div
from search_spaces.bound import BoundSpace
from search_spaces.constraints import Constraint, Preference
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.limits import fits_shared, integer, programs_at_once, threads
from search_spaces.kernels.matmul.space import matmul_space
from search_spaces.kernels.products import (
    Product,
    narrowed,
    product_constraints,
    product_features,
    stage_bytes,
    tiles,
    usual_point,
)
from search_spaces.params import Integer, PowerOfTwo
from search_spaces.records import Config, Device, Value, Workload
from search_spaces.space import SearchSpace

_SLENDER, _DEEPEST, _DEEPEST_SLENDER, _MOST_STAGES = 64, 128, 256, 5
#: Tiles so few that most programs would add parts of the same one.
_FEW_TILES = 4
#: Registers of a multiprocessor where the device does not say, and of a thread besides its sums.
_REGISTERS, _OTHER_REGISTERS = 65536, 40


def product_of(config: Config, workload: Workload) -> Product:
    """The product; with descriptors, an output tile leaves while the next one is computed."""
    return Product(
        rows=workload.size("M"),
        cols=workload.size("N"),
        depth=workload.size("K"),
        element_bytes=ELEMENT_BYTES[workload.text("dtype")],
        staged=1 if config.get("loads") == "descriptor" else 0,
    )


def stream_k_space(workload: Workload) -> SearchSpace:
    """matmul's tiles; `resident` programs per multiprocessor, which share the last tiles.

    `waves`: how many whole waves of tiles are shared besides those of the last, partial one.
    """
    slender = min(workload.size("M"), workload.size("N")) <= _SLENDER
    deepest = _DEEPEST_SLENDER if slender else _DEEPEST
    space = matmul_space(workload)
    found = narrowed(
        space.parameters, depth=workload.size("K"), deepest=deepest, most_stages=_MOST_STAGES
    )
    for name in ("persistent", "SPLIT_K"):
        found.pop(name, None)
    warps = found["num_warps"]
    if not slender and isinstance(warps, PowerOfTwo):
        # Two loops of tiles leave fewer registers than one: two warps would spill.
        found["num_warps"] = replace(warps, low=4)
    own = (PowerOfTwo("resident", 1, 2), Integer("waves", 0, 1))
    return SearchSpace(
        [*found.values(), *own],
        CONSTRAINTS,
        kernel="stream_k_matmul",
        features=_FEATURES,
        admits=space.admits,
    )


def default_point(bound: BoundSpace) -> Config:
    """Large tiles with many stages of descriptors, where rows have whole words; else matmul's.

    A program runs for a whole share of the product, so that one on a multiprocessor, which loads
    far ahead, keeps the tensor cores busy. Few tiles are smaller, since each adds up the parts of
    all programs that share it.
    """
    for tile in _usual_tiles(bound.workload):
        config = bound.complete({**tile, "GROUP_M": 1, "loads": "descriptor"})
        if "loads" in config and bound.feasible(config):
            return config
    config = usual_point(bound)
    shared = {**config, "waves": 1}
    return shared if bound.feasible(shared) else config


def _usual_tiles(workload: Workload) -> list[dict[str, Value]]:
    """Tiles to try with descriptors: as high as the product where that is one row of tiles."""
    m, n = workload.sizes("M", "N")
    if workload["dtype"] == "float32":
        single: dict[str, Value] = {"precision": "tf32x3", "resident": 2, "waves": 1}
        tile = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 8, "num_stages": 4}
        return [single | tile]
    if ceil_div(m, 128) * ceil_div(n, 256) < _FEW_TILES:
        return [{"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 128, "num_warps": 4, "num_stages": 4}]
    rows, cols = (256, 128) if 128 < m <= 256 else (128, 256)
    return [{"BLOCK_M": rows, "BLOCK_N": cols, "BLOCK_K": 32, "num_warps": 8, "num_stages": 5}]


def _programs_fit(config: Config, workload: Workload, device: Device) -> bool:
    resident = integer(config, "resident")
    product, held = product_of(config, workload), threads(config, device) * _OTHER_REGISTERS
    sums = integer(config, "BLOCK_M") * integer(config, "BLOCK_N")
    shared = stage_bytes(product, config) * integer(config, "num_stages")
    fits = resident * (sums + held) <= (device.registers or _REGISTERS)
    return resident == 1 or (fits and fits_shared(resident * shared, device))


def _shares_waves(config: Config, workload: Workload, device: Device) -> bool:
    programs = programs_at_once(device) * integer(config, "resident")
    count = tiles(product_of(config, workload), config)
    return config["waves"] == 0 or (count > programs and count % programs > 0)


CONSTRAINTS = (
    *product_constraints(product_of),
    Constraint("resident", _programs_fit, "a multiprocessor does not hold that many programs"),
    Preference("waves", _shares_waves, "tiles fill no wave, or fill all waves"),
)
_FEATURES = product_features(product_of)
