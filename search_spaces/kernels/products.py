"""What families of matrix products share: the tolerance, constraints and features of tiles.

The parameters are those of matmul: BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, num_warps, num_stages and,
where a family has them, loads, persistent, SPLIT_K and precision. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import sqrt
from typing import NamedTuple, TypeAlias

from search_spaces.block_sizes import ceil_div
from search_spaces.bound import BoundSpace, Features
from search_spaces.constraints import Constraint, Preference
from search_spaces.dims import tolerance_of
from search_spaces.kernel import Tolerance
from search_spaces.kernels.dtypes import ROUNDING
from search_spaces.kernels.features import product_tile_features
from search_spaces.kernels.limits import (
    DESCRIPTORS,
    TENSOR_FLOATS,
    fits_shared,
    integer,
    programs_at_once,
    threads,
)
from search_spaces.kernels.matmul.space import default_point
from search_spaces.params import Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload

#: Float32 sums of a thread: a thread has 255 registers, and operands and addresses need some.
_MOST_SUMS = 128
#: Sums of one instruction of a warp, 16 x 8, and those from which a usual config adds a warp.
_LEAST_SUMS, _USUAL_SUMS = 128, 512
#: Steps along K for which loading ahead gains little.
_FEW_STEPS = 2
#: Programs for each multiprocessor beyond which K is not split.
_ENOUGH = 8


class Product(NamedTuple):
    """The product [rows, depth] @ [depth, cols] that a launch computes."""

    rows: int
    cols: int
    depth: int
    element_bytes: int
    #: Products of the launch.
    products: int = 1
    #: Second factors, with tiles and sums of their own.
    factors: int = 1
    #: Tiles of the size of the output's in shared memory, besides those of the factors.
    staged: float = 0


ProductOf: TypeAlias = Callable[[Config, Workload], Product]


def product_tolerance(workload: Workload, roundings: int = 1) -> Tolerance:
    """The workload's own, else the rounding error of the output or of K sums in float32.

    roundings: independent ones to the dtype that an output goes through.
    """
    usual = ROUNDING[workload.text("dtype")] * sqrt(roundings)
    if workload["dtype"] == "float32":
        usual = max(1e-6 * sqrt(workload.size("K")), usual)
    relative = tolerance_of(workload, usual)
    # Errors are roughly normal over outputs of the order of one: 8 standard deviations.
    return Tolerance(relative, 8 * relative)


def narrowed(
    parameters: Iterable[Parameter], *, depth: int, deepest: int, most_stages: int
) -> dict[str, Parameter]:
    """matmul's parameters by name, with BLOCK_K up to `deepest` and num_stages up to `most_stages`.

    depth: K. Where a program may have few steps along K, one stage is offered too.
    """
    found = {item.name: item for item in parameters}
    block, stages = found["BLOCK_K"], found["num_stages"]
    if isinstance(block, PowerOfTwo):
        low = min(block.low, deepest)
        found["BLOCK_K"] = replace(block, low=low, high=max(low, min(block.high, deepest)))
    if isinstance(stages, Integer):
        least = 1 if depth <= _FEW_STEPS * deepest else stages.low
        found["num_stages"] = replace(stages, low=least, high=min(stages.high, most_stages))
    return found


def usual_point(bound: BoundSpace) -> Config:
    """matmul's config without tuning, with no more warps than a small tile keeps busy."""
    config = default_point(bound)
    sums = integer(config, "BLOCK_M") * integer(config, "BLOCK_N")
    warps = max(1, min(integer(config, "num_warps"), sums // _USUAL_SUMS))
    fewer = {**config, "num_warps": warps}
    return fewer if bound.feasible(fewer) else config


def tiles(product: Product, config: Config) -> int:
    """Tiles of the output of each product."""
    return _along(product, config, "M") * _along(product, config, "N")


def stage_bytes(product: Product, config: Config) -> int:
    """Shared memory of one stage: a tile of each factor."""
    sides = integer(config, "BLOCK_M") + product.factors * integer(config, "BLOCK_N")
    return sides * integer(config, "BLOCK_K") * product.element_bytes


def product_features(product_of: ProductOf) -> Features:
    """The features of a tile, and log2 of the products per operand element that it loads."""

    def features(config: Config, workload: Workload, device: Device) -> tuple[float, ...]:
        product = product_of(config, workload)
        rows = integer(config, "BLOCK_M")
        cols = integer(config, "BLOCK_N") * product.factors
        return product_tile_features(
            config,
            device,
            rows=rows,
            cols=cols,
            stage_bytes=stage_bytes(product, config),
            programs=tiles(product, config) * product.products * integer(config, "SPLIT_K"),
        )

    return features


def product_constraints(product_of: ProductOf) -> tuple[Constraint, ...]:
    """What every launch of such a product keeps."""

    def registers(config: Config, workload: Workload, device: Device) -> bool:
        sums = integer(config, "BLOCK_M") * integer(config, "BLOCK_N")
        held = sums * product_of(config, workload).factors
        # Other precisions of float32 than TF32 hold more of the factors.
        most = _MOST_SUMS if config.get("precision", "tf32") == "tf32" else _MOST_SUMS // 2
        return held <= most * threads(config, device)

    def warps(config: Config, workload: Workload, device: Device) -> bool:
        sums = integer(config, "BLOCK_M") * integer(config, "BLOCK_N")
        return sums >= _LEAST_SUMS * integer(config, "num_warps")

    def shared(config: Config, workload: Workload, device: Device) -> bool:
        product = product_of(config, workload)
        output = integer(config, "BLOCK_M") * integer(config, "BLOCK_N") * product.element_bytes
        stages = stage_bytes(product, config) * integer(config, "num_stages")
        return fits_shared(stages + int(product.staged * output), device)

    def group(config: Config, workload: Workload, device: Device) -> bool:
        if config["GROUP_M"] == 1:
            return True
        product = product_of(config, workload)
        rows, cols = _along(product, config, "M"), _along(product, config, "N")
        return rows > 1 < cols and rows * cols > programs_at_once(device)

    def split_work(config: Config, workload: Workload, device: Device) -> bool:
        splits = integer(config, "SPLIT_K")
        return splits == 1 or _along(product_of(config, workload), config, "K") >= 2 * splits

    def split_need(config: Config, workload: Workload, device: Device) -> bool:
        splits, product = integer(config, "SPLIT_K"), product_of(config, workload)
        programs = tiles(product, config) * product.products * splits
        return splits == 1 or programs <= _ENOUGH * programs_at_once(device)

    def persistent(config: Config, workload: Workload, device: Device) -> bool:
        product = product_of(config, workload)
        several = tiles(product, config) * product.products > programs_at_once(device)
        return several or not config.get("persistent")

    return (
        Constraint("registers", registers, f"a thread would hold more than {_MOST_SUMS} sums"),
        Preference("warps", warps, "warps would multiply the same rows and columns"),
        Constraint("shared", shared, "tiles x stages do not fit into shared memory"),
        Preference("group", group, "all tiles run at once, so their order does not matter"),
        Preference("split_work", split_work, "each split would have fewer than two steps of K"),
        Preference("split_need", split_need, "there are tiles enough without splitting so much"),
        Preference("persistent", persistent, "all tiles run at once, one per program"),
        DESCRIPTORS,
        TENSOR_FLOATS,
        _OPERANDS,
    )


def _along(product: Product, config: Config, dim: str) -> int:
    size = {"M": product.rows, "N": product.cols, "K": product.depth}[dim]
    return ceil_div(size, integer(config, f"BLOCK_{dim}"))


def _has_operands(config: Config, workload: Workload, device: Device) -> bool:
    return config.get("precision") != "ieee" or config.get("loads") != "descriptor"


_OPERANDS = Constraint(
    "operands", _has_operands, "without tensor cores, whole tiles of descriptors fill registers"
)
