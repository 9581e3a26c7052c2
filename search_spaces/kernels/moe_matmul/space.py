"""The space of the mixture-of-experts products: the parameters of vLLM's tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from search_spaces.block_sizes import ceil_div
from search_spaces.bound import BoundSpace
from search_spaces.constraints import Constraint, Preference
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.features import product_tile_features
from search_spaces.kernels.limits import (
    block_parameter,
    fits_shared,
    integer,
    programs_at_once,
    threads,
)
from search_spaces.kernels.moe_matmul.routing import most_blocks, slot_count
from search_spaces.params import Choice, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: The products of a layer: gates and values side by side, these with silu(gate) * value, and the
#: second product, whose rows are multiplied by the weights of the router.
GEMMS = ("gate_up", "gate_up_silu", "down")
#: How operands are quantized, the value of the optional dim `quantized`.
QUANTIZED = ("fp8_block128", "fp8_tensor", "int8_channel")
#: Values of BLOCK_SIZE_M, for each of which the order of the slots is an input.
BLOCKS = (16, 32, 64, 128, 256)
#: Configs without tuning by the most slots that an expert has on average: sizes M, N and K, group,
#: warps and stages. Those of few slots wait for weights, 128 of K at a time in small programs.
_USUAL = (
    (24, (16, 32, 128, 1, 2, 4)),
    (96, (64, 128, 128, 8, 8, 4)),
    (None, (128, 256, 64, 8, 8, 4)),
)
#: What vLLM takes without a table: where tokens are at most as many as experts, and otherwise.
_SMALLER = (
    (16, 32, 64, 1, 4, 3),
    (64, 64, 32, 8, 4, 3),
    (64, 64, 32, 8, 4, 2),
    (16, 32, 64, 1, 2, 2),
)
_NAMES = (
    "BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages",
)  # fmt: skip
#: Float32 sums that a thread holds at most and at least.
_MOST_SUMS, _LEAST_SUMS = 128, 4
#: Slots of a block for each slot that an expert has on average, and the block that always is
#: allowed: the smallest of one warp group's products.
_MOST_PADDING, _ALWAYS = 8, 64


class Product(NamedTuple):
    """The product of each slot: a row of `depth` elements with `factors` matrices of `cols`."""

    cols: int
    depth: int
    factors: int
    #: Slots that have the same row of x.
    share: int


def slot_product(workload: Workload) -> Product:
    """The product that the dim `gemm` names."""
    hidden, inner = workload.sizes("hidden", "intermediate")
    if workload.text("gemm") == "down":
        return Product(hidden, inner, 1, 1)
    fused = workload.text("gemm") == "gate_up_silu"
    return Product(inner if fused else 2 * inner, hidden, 1 + fused, workload.size("top_k"))


def quantization(workload: Workload) -> str:
    """The dim `quantized`; empty for operands of 16 bits."""
    return f"{workload.get('quantized') or ''}"


def moe_space(workload: Workload) -> SearchSpace:
    """Tiles of 16 to 256 slots and 32 to 256 columns, in steps of 32 to 256 along K."""
    cols, depth, _, _ = slot_product(workload)
    parameters: list[Parameter] = [
        block_parameter("BLOCK_SIZE_M", workload.size("tokens"), BLOCKS[0], BLOCKS[-1]),
        block_parameter("BLOCK_SIZE_N", cols, 32, 256),
        # A step along K has one scale of each row.
        block_parameter(
            "BLOCK_SIZE_K", depth, 32, 128 if quantization(workload) == "fp8_block128" else 256
        ),
        Choice("GROUP_SIZE_M", (1, 8, 16, 32, 64)),
        PowerOfTwo("num_warps", 2, 8),
        Integer("num_stages", 2, 5),
    ]
    return SearchSpace(
        parameters,
        CONSTRAINTS,
        kernel="moe_matmul",
        features=features,
        admits=("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"),
    )


def default_point(bound: BoundSpace) -> Config:
    """A usual tile for the slots of an expert, cut to the problem and to the device.

    Experts of few slots are read once, whatever the tile: small programs with long steps keep more
    of their weights on the way. Experts of many slots get the tiles of a large product.
    """
    for usual in _usual_tiles(bound.workload):
        cut = {
            item.name: min(usual[item.name], max(int(f"{value}") for value in item.values()))
            for item in bound.parameters
        }
        for grouped in (cut["GROUP_SIZE_M"], 1):
            for ahead in (cut["num_stages"], 2):
                config = {**cut, "GROUP_SIZE_M": grouped, "num_stages": ahead}
                if bound.feasible(config):
                    return config
    bound.require_feasible()
    return next(bound.enumerate())


def _few_blocks(tokens: int) -> Mapping[str, int]:
    """vLLM's tile for scales by blocks, which is one block wide and deep."""
    rows, cols = 16 if tokens <= 64 else 64, 64 if tokens <= 8 else 128
    group = 1 if tokens <= 16 else 32
    return dict(zip(_NAMES, (rows, cols, 128, group), strict=False))


def _usual_tiles(workload: Workload) -> list[Mapping[str, int]]:
    """What is tried in turn; quantized products keep vLLM's configs."""
    if quantization(workload):
        tile = _without_table(workload)
        narrow = {**tile, "num_warps": 2}
        return [tile, narrow, *(_named(each) for each in _SMALLER)]
    average = slot_count(workload) / workload.size("experts")
    first = next(tile for most, tile in _USUAL if most is None or average <= most)
    rows, cols, depth, group, warps, stages = first
    # The tiles of all factors hold their sums.
    wide = (rows, max(32, cols // slot_product(workload).factors), depth, group, warps)
    return [_named(tile) for tile in (first, (*wide, stages), (*wide, 3), *_SMALLER)]


def _named(tile: tuple[int, ...]) -> Mapping[str, int]:
    return dict(zip(_NAMES, tile, strict=True))


def _without_table(workload: Workload) -> Mapping[str, int]:
    """vLLM's config for a shape without a table."""
    few = workload.size("tokens") <= workload.size("experts")
    tile = _named(_SMALLER[0] if few else _SMALLER[1])
    if quantization(workload) == "fp8_block128":
        return {**tile, **_few_blocks(workload.size("tokens"))}
    return tile


def features(config: Config, workload: Workload, device: Device) -> tuple[float, ...]:
    """The features of its tiles, and log2 of the products per operand element a tile loads."""
    rows = integer(config, "BLOCK_SIZE_M")
    cols = integer(config, "BLOCK_SIZE_N") * slot_product(workload).factors
    return product_tile_features(
        config,
        device,
        rows=rows,
        cols=cols,
        stage_bytes=_stage_bytes(config, workload),
        programs=_programs(config, workload),
    )


def _sums(config: Config, workload: Workload) -> int:
    tile = integer(config, "BLOCK_SIZE_M") * integer(config, "BLOCK_SIZE_N")
    return tile * slot_product(workload).factors


def _stage_bytes(config: Config, workload: Workload) -> int:
    """Shared memory of one stage: a tile of x and one of each matrix."""
    cols = integer(config, "BLOCK_SIZE_N") * slot_product(workload).factors
    kind, each = quantization(workload), ELEMENT_BYTES[workload.text("dtype")]
    x = integer(config, "BLOCK_SIZE_M") * (1 if kind.startswith("fp8") else each)
    w = cols * (1 if kind else each)
    return (x + w) * integer(config, "BLOCK_SIZE_K")


def _columns(config: Config, workload: Workload) -> int:
    return ceil_div(slot_product(workload).cols, integer(config, "BLOCK_SIZE_N"))


def _programs(config: Config, workload: Workload) -> int:
    return _blocks(config, workload) * _columns(config, workload)


def _blocks(config: Config, workload: Workload) -> int:
    slots, experts = slot_count(workload), workload.size("experts")
    return most_blocks(slots, experts, integer(config, "BLOCK_SIZE_M"))


def _fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    return fits_shared(_stage_bytes(config, workload) * integer(config, "num_stages"), device)


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    return _sums(config, workload) <= _MOST_SUMS * threads(config, device)


def _keeps_threads_busy(config: Config, workload: Workload, device: Device) -> bool:
    return _sums(config, workload) >= _LEAST_SUMS * threads(config, device)


def _has_slots(config: Config, workload: Workload, device: Device) -> bool:
    block = integer(config, "BLOCK_SIZE_M")
    average = slot_count(workload) / workload.size("experts")
    return block <= max(_ALWAYS, _MOST_PADDING * average)


def _groups_blocks(config: Config, workload: Workload, device: Device) -> bool:
    group = integer(config, "GROUP_SIZE_M")
    blocks = _blocks(config, workload)
    queued = _programs(config, workload) > programs_at_once(device)
    # Beyond all blocks, a larger group is the same order.
    return group == 1 or (queued and _columns(config, workload) > 1 and group < 2 * blocks)


def _pipelines_steps(config: Config, workload: Workload, device: Device) -> bool:
    steps = ceil_div(slot_product(workload).depth, integer(config, "BLOCK_SIZE_K"))
    return integer(config, "num_stages") <= max(2, steps)


CONSTRAINTS = (
    Constraint("shared", _fits_shared, "tiles x stages do not fit into shared memory"),
    Constraint("registers", _fits_registers, f"a thread would hold more than {_MOST_SUMS} sums"),
    Preference("busy", _keeps_threads_busy, f"threads would hold fewer than {_LEAST_SUMS} sums"),
    Preference("slots", _has_slots, "blocks would be padding for the most part"),
    Preference("group", _groups_blocks, "the order of the tiles would not differ"),
    Preference("pipeline", _pipelines_steps, "a tile has too few steps to load so far ahead"),
)
