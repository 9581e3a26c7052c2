"""The space of the matrix chain: the order of association, and tiles that all products share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from search_spaces.block_sizes import next_power_of_two
from search_spaces.bound import BoundSpace
from search_spaces.constraints import Constraint, Preference
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.features import tile_features
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
from search_spaces.kernels.matrix_chain.products import (
    DIMS,
    ORDERS,
    cheapest_order,
    flops_of,
    product_config,
    products_of,
    tiles_of,
)
from search_spaces.params import Boolean, Choice, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: An order with more operations than this many times the fewest cannot win.
_MOST_WORK = 4
#: Sums of a thread at most, and where products need more registers.
_MOST_SUMS, _MOST_SUMS_OF = 256, {"ieee": 64, "tf32x3": 64}
#: Usual tiles without tuning, from large to small, and those of last resort.
_USUAL: tuple[dict[str, int], ...] = (
    {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3},
    {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 128, "num_warps": 4, "num_stages": 4},
    {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 128, "num_warps": 4, "num_stages": 4},
)
_USUAL_FLOAT32: tuple[dict[str, int], ...] = (
    {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 4},
    {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3},
)
_SMALL: tuple[dict[str, int], ...] = (
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3},
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 16, "num_warps": 4, "num_stages": 2},
)


def takes_descriptors(workload: Workload) -> bool:
    """Whether rows of all matrices are whole multiples of 16 bytes, as descriptors need them."""
    element = ELEMENT_BYTES[workload.text("dtype")]
    return all(workload.size(dim) * element % 16 == 0 for dim in DIMS[1:])


def chain_space(workload: Workload) -> SearchSpace:
    """Five orders; tiles of 32 to 256 a side, which a smaller product cuts to its sizes."""
    single = workload["dtype"] == "float32"
    rows = max(workload.size(dim) for dim in DIMS[:-1])
    cols = max(workload.size(dim) for dim in DIMS[1:])
    parameters: list[Parameter] = [
        Choice("order", tuple(ORDERS)),
        block_parameter("BLOCK_M", rows, 32, 256),
        block_parameter("BLOCK_N", cols, 32, 256),
        block_parameter("BLOCK_K", cols, 16 if single else 32, 64 if single else 128),
        Choice("GROUP_M", (1, 8)),
        PowerOfTwo("num_warps", 4, 8),
        Integer("num_stages", 2, 4),
    ]
    pointers = None
    if takes_descriptors(workload):
        parameters.append(Choice("loads", ("pointer", "descriptor")))
        parameters.append(Boolean("persistent", when={"loads": ("descriptor",)}))
        pointers = {"loads": ("pointer",)}
    parameters.append(PowerOfTwo("SPLIT_K", 1, 8, when=pointers))
    if single:
        parameters.append(Choice("precision", ("ieee", "tf32x3", "tf32")))
    return SearchSpace(
        parameters,
        CONSTRAINTS,
        kernel="matrix_chain",
        features=features,
        admits=admitted_tiles(takes_descriptors(workload)),
    )


def features(config: Config, workload: Workload, device: Device) -> tuple[float, ...]:
    """The features of the tiles of the largest product."""
    largest = max(products_of(workload, f"{config['order']}"), key=lambda product: product.flops)
    cut = product_config(largest.workload, config)
    return tile_features(
        device,
        shared_bytes=_shared_bytes(cut, workload),
        sums=integer(cut, "BLOCK_M") * integer(cut, "BLOCK_N"),
        warps=integer(cut, "num_warps"),
        programs=tiles_of(largest.workload, cut) * integer(cut, "SPLIT_K"),
    )


def default_point(bound: BoundSpace) -> Config:
    """The config without tuning: the order of the fewest operations and the largest usual tile
    of which its largest product has one for every fourth multiprocessor, else the smallest.

    As long as a product has fewer programs, K is split; with more, adding the parts costs more
    than idle multiprocessors do.
    """
    order, found = cheapest_order(bound.workload), list(_usual_configs(bound))
    filling = (item for item in found if _tiles_of_largest(item, bound.workload)
               >= programs_at_once(bound.device) // 4)  # fmt: skip
    config = next(filling, found[-1] if found else None)
    if config is not None:
        return _split(bound, config)
    for tile in _SMALL:
        config = bound.complete({"order": order, **nearest_values(bound, tile)})
        if bound.feasible(config):
            return config
    bound.require_feasible()
    return next(bound.enumerate())


def _usual_configs(bound: BoundSpace) -> Iterator[Config]:
    """The feasible usual tiles, in the cheapest order."""
    order = cheapest_order(bound.workload)
    single = bound.workload["dtype"] == "float32"
    for tile in _USUAL_FLOAT32 if single else _USUAL:
        for group in (1, 8) if tile["BLOCK_M"] < 128 else (8, 1):
            config = bound.complete(
                {"order": order, **nearest_values(bound, tile), "GROUP_M": group}
            )
            if bound.feasible(config):
                yield config
                break


def _tiles_of_largest(config: Config, workload: Workload) -> int:
    largest = max(products_of(workload, f"{config['order']}"), key=lambda product: product.flops)
    return tiles_of(largest.workload, product_config(largest.workload, config))


def _split(bound: BoundSpace, config: Config) -> Config:
    """The config with K split until no product has a program for less than every fourth one."""
    least = programs_at_once(bound.device) // 4
    while "SPLIT_K" in config:
        more = {**config, "SPLIT_K": 2 * integer(config, "SPLIT_K")}
        idle = any(tiles_of(product, cut) * integer(cut, "SPLIT_K") < least
                   for product, cut in _cut(config, bound.workload))  # fmt: skip
        if not idle or not bound.feasible(more):
            break
        config = more
    return config


@cache
def _products(workload: Workload, order: str) -> tuple[Workload, ...]:
    """The sizes of every product; the same for thousands of configs."""
    return tuple(product.workload for product in products_of(workload, order))


@cache
def _longest(workload: Workload, order: str) -> Mapping[str, int]:
    """The longest tile that some product has along each side."""
    products = _products(workload, order)
    sizes = {dim: max(product.size(dim) for product in products) for dim in "MNK"}
    return {dim: max(16, next_power_of_two(size)) for dim, size in sizes.items()}


@cache
def _work(workload: Workload, order: str) -> float:
    """The operations of an order, as a multiple of the fewest."""
    return flops_of(workload, order) / flops_of(workload, cheapest_order(workload))


def _cut(config: Config, workload: Workload) -> Iterator[tuple[Workload, Config]]:
    """Sizes and config of every product."""
    for product in _products(workload, f"{config['order']}"):
        yield product, product_config(product, config)


def _is_queued(config: Config, workload: Workload, device: Device) -> bool:
    """Whether some product has more tiles than run at once."""
    at_once = programs_at_once(device)
    return any(tiles_of(product, cut) > at_once for product, cut in _cut(config, workload))


def _shared_bytes(config: Config, workload: Workload) -> int:
    """All stages and, in a persistent program, the output tile that is still being stored."""
    element = ELEMENT_BYTES[workload.text("dtype")]
    rows, cols = integer(config, "BLOCK_M"), integer(config, "BLOCK_N")
    stages = (rows + cols) * integer(config, "BLOCK_K") * integer(config, "num_stages")
    return (stages + (rows * cols if config.get("persistent") else 0)) * element


def _order_is_cheap(config: Config, workload: Workload, device: Device) -> bool:
    return _work(workload, f"{config['order']}") <= _MOST_WORK


def _fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    return fits_shared(_shared_bytes(config, workload), device)


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    sums = integer(config, "BLOCK_M") * integer(config, "BLOCK_N")
    most = _MOST_SUMS_OF.get(f"{config.get('precision')}", _MOST_SUMS)
    return sums <= most * threads(config, device)


def _tiles_are_used(config: Config, workload: Workload, device: Device) -> bool:
    longest = _longest(workload, f"{config['order']}")
    return all(integer(config, f"BLOCK_{dim}") <= longest[dim] for dim in longest)


def _splits_are_used(config: Config, workload: Workload, device: Device) -> bool:
    splits = integer(config, "SPLIT_K")
    return splits == 1 or any(cut["SPLIT_K"] == splits for _, cut in _cut(config, workload))


def _groups_rows(config: Config, workload: Workload, device: Device) -> bool:
    return config["GROUP_M"] == 1 or _is_queued(config, workload, device)


def _persistence_pays(config: Config, workload: Workload, device: Device) -> bool:
    return not config.get("persistent") or _is_queued(config, workload, device)


def _has_tensor_floats(config: Config, workload: Workload, device: Device) -> bool:
    return config.get("precision", "ieee") == "ieee" or has_capability(device, 80)


CONSTRAINTS = (
    Preference("work", _order_is_cheap, f"another order has {_MOST_WORK} times fewer operations"),
    Constraint("registers", _fits_registers, "a thread would hold too many sums"),
    DESCRIPTORS,
    Constraint("tensor_floats", _has_tensor_floats, "TF32 needs cuda:80 or newer"),
    Preference("tiles", _tiles_are_used, "all products would cut the tile"),
    Constraint("shared", _fits_shared, "tiles x stages do not fit into shared memory"),
    Preference("splits", _splits_are_used, "all products would split less"),
    Preference("group", _groups_rows, "all tiles run at once, so their order does not matter"),
    Preference("persistent", _persistence_pays, "all tiles run at once, one per program"),
)
