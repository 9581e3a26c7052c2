"""The space of attention's gradients: tiles of the two launches, each with warps and stages.

Parameters that begin with `kv_` are those of the launch for dk and dv, which holds a block of keys
and runs over queries; those with `q_` are of the launch for dq, the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping

from search_spaces.block_sizes import ceil_div
from search_spaces.bound import BoundSpace
from search_spaces.constraints import Constraint, Preference
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.features import tile_features
from search_spaces.kernels.limits import block_parameter, fits_shared, integer
from search_spaces.params import Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

LAUNCHES = ("kv", "q")
#: Tiles of last resort: rows held and rows run over, warps and stages.
_SMALL = ((64, 64, 4, 2), (64, 32, 8, 2), (64, 32, 4, 1), (32, 32, 4, 1))
#: Usual tiles without tuning; the default takes the first of each launch that is feasible. Two
#: sums of 64 keys fill the registers of 4 warps: with fewer threads to wait for, more programs are
#: resident. The launch for dq has one sum, so that 8 warps hold 128 rows.
_USUAL = {
    "kv": ((64, 64, 4, 3), (64, 32, 4, 3), (64, 32, 4, 2), (32, 64, 4, 2), *_SMALL),
    "q": ((128, 64, 8, 3), (128, 32, 8, 3), (128, 64, 8, 2), (128, 32, 8, 2), *_SMALL),
}
#: float32 values that a thread holds: sums, and two tiles of scores, half again as operands.
_MOST_HELD = 192


def backward_space(workload: Workload) -> SearchSpace:
    """Blocks of 32 to 128 queries and keys for each launch, 4 or 8 warps, up to 3 stages.

    Heads of more than 128 take blocks from 16 on, which fit into 64 KiB of shared memory.
    """
    size, least = workload.size("sequence"), 16 if workload.size("head_dim") > 128 else 32
    parameters: list[Parameter] = []
    for launch in LAUNCHES:
        parameters += [
            block_parameter(f"{launch}_BLOCK_M", size, least, 128),
            block_parameter(f"{launch}_BLOCK_N", size, least, 128),
            PowerOfTwo(f"{launch}_warps", 4, 8),
            Integer(f"{launch}_stages", 1, 3),
        ]
    blocks = [item.name for item in parameters if "_BLOCK_" in item.name]
    return SearchSpace(
        parameters, CONSTRAINTS, kernel="attention_backward", features=features, admits=blocks
    )


def default_point(bound: BoundSpace) -> Config:
    """The config without tuning: usual tiles of both launches, cut to fit."""
    largest = {item.name: int(str(item.values()[-1])) for item in bound.parameters}
    for kv in _USUAL["kv"]:
        for q in _USUAL["q"]:
            config = bound.complete({**_tile("kv", kv, largest), **_tile("q", q, largest)})
            if bound.feasible(config):
                return config
    bound.require_feasible()
    return next(bound.enumerate())


def _tile(
    launch: str, usual: tuple[int, int, int, int], largest: Mapping[str, int]
) -> dict[str, int]:
    held, run, warps, stages = usual
    rows = {"kv": ("BLOCK_N", "BLOCK_M"), "q": ("BLOCK_M", "BLOCK_N")}[launch]
    values = dict(zip((*rows, "warps", "stages"), (held, run, warps, stages), strict=True))
    return {
        f"{launch}_{name}": min(value, largest[f"{launch}_{name}"])
        for name, value in values.items()
    }


def held_and_run(config: Config, launch: str) -> tuple[int, int]:
    """Rows that a program of a launch holds, and rows of the blocks that it runs over."""
    queries, keys = (integer(config, f"{launch}_BLOCK_{side}") for side in "MN")
    return (keys, queries) if launch == "kv" else (queries, keys)


def features(config: Config, workload: Workload, device: Device) -> tuple[float, ...]:
    """The features of both launches."""
    found: list[float] = []
    for launch in LAUNCHES:
        heads = workload.size("batch") * workload.size("kv_heads" if launch == "kv" else "q_heads")
        held, _ = held_and_run(config, launch)
        found += tile_features(
            device,
            shared_bytes=_shared_bytes(config, workload, launch),
            sums=_held_values(config, workload, launch),
            warps=integer(config, f"{launch}_warps"),
            programs=heads * ceil_div(workload.size("sequence"), held),
        )
    return tuple(found)


def _shared_bytes(config: Config, workload: Workload, launch: str) -> int:
    """Two tensors of held rows, and two of every stage of blocks."""
    held, run = held_and_run(config, launch)
    rows = 2 * held + 2 * integer(config, f"{launch}_stages") * run
    return rows * workload.size("head_dim") * ELEMENT_BYTES[workload.text("dtype")]


def _held_values(config: Config, workload: Workload, launch: str) -> int:
    held, run = held_and_run(config, launch)
    sums = (2 if launch == "kv" else 1) * workload.size("head_dim")
    return held * (sums + 5 * run // 2)


def _fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    return all(fits_shared(_shared_bytes(config, workload, each), device) for each in LAUNCHES)


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    return all(
        _held_values(config, workload, each)
        <= _MOST_HELD * integer(config, f"{each}_warps") * (device.warp_size or 32)
        for each in LAUNCHES
    )


def _warps_have_rows(config: Config, workload: Workload, device: Device) -> bool:
    """Eight warps that share 64 rows keep more of each: only wide heads gain by it."""
    wide = workload.size("head_dim") > 128
    return all(
        integer(config, f"{each}_warps") <= 4
        or held_and_run(config, each)[0] >= (8 if wide else 16) * integer(config, f"{each}_warps")
        for each in LAUNCHES
    )


def _pipelines_blocks(config: Config, workload: Workload, device: Device) -> bool:
    size = workload.size("sequence")
    return all(
        integer(config, f"{each}_stages") <= ceil_div(size, held_and_run(config, each)[1])
        for each in LAUNCHES
    )


CONSTRAINTS = (
    Constraint("shared", _fits_shared, "the tiles of a launch do not fit into shared memory"),
    Constraint("registers", _fits_registers, f"a thread would hold more than {_MOST_HELD} values"),
    Preference("warps", _warps_have_rows, "eight warps need more rows that they hold"),
    Preference("pipeline", _pipelines_blocks, "there are too few blocks to load so far ahead"),
)
