"""The space of paged decoding: blocks and splits of the keys, and heads of a program."""

from __future__ import annotations

from math import log2

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.bound import BoundSpace
from search_spaces.constraints import Constraint, Preference
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.features import tile_features
from search_spaces.kernels.limits import (
    block_parameter,
    fits_shared,
    integer,
    programs_at_once,
    threads,
)
from search_spaces.kernels.masked_attention import group_of
from search_spaces.params import Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: The fewest rows of a matrix product.
LEAST_ROWS = 16
_MOST_SPLITS = 64
#: Programs for each multiprocessor beyond which keys are not split.
_ENOUGH = 16
#: Keys and values that a thread holds of a block: of a head alone in float32, else before they go
#: to shared memory; and the least, a word of 16 bytes.
_MOST_ALONE, _MOST_TOGETHER, _LEAST_HELD = 64, 128, 8


def decode_space(workload: Workload) -> SearchSpace:
    """Blocks of 16 to 256 keys in up to 64 splits; one head to the whole group in a program."""
    keys = workload.size("keys")
    parameters: list[Parameter] = [
        block_parameter("BLOCK_N", keys, 16, 256),
        PowerOfTwo("splits", 1, min(_MOST_SPLITS, next_power_of_two(ceil_div(keys, 16)))),
        PowerOfTwo("heads", 1, next_power_of_two(group_of(workload))),
        PowerOfTwo("num_warps", 1, 8),
        Integer("stages", 1, 4),
    ]
    return SearchSpace(
        parameters,
        CONSTRAINTS,
        kernel="paged_decode",
        features=features,
        admits=("BLOCK_N", "splits", "heads"),
    )


def default_point(bound: BoundSpace) -> Config:
    """Blocks of 64 keys by 4 warps, the group in one program, splits that fill the device.

    A program of few heads computes little and waits for keys: as many as are resident at a time,
    up to 16 of each multiprocessor, have them on their way. A single head has no matrix product;
    its blocks of 32 keys stay in the registers of 2 warps.
    """
    heads = next_power_of_two(group_of(bound.workload))
    usual = ((64, 4, 2), (64, 4, 1), (32, 4, 1), (16, 4, 1))
    for block, warps, stages in ((32, 2, 1), *usual) if heads == 1 else usual:
        for splits in (64, 32, 16, 8, 4, 2, 1):
            config = {"BLOCK_N": block, "splits": splits, "heads": heads, "num_warps": warps}
            config["stages"] = stages
            if bound.feasible(config):
                return config
    bound.require_feasible()
    return next(bound.enumerate())


def keys_per_split(config: Config, workload: Workload) -> int:
    """Keys of a split of the longest sequence: whole blocks."""
    block = integer(config, "BLOCK_N")
    blocks = ceil_div(workload.size("keys"), block)
    return ceil_div(blocks, integer(config, "splits")) * block


def parts(config: Config, workload: Workload) -> int:
    """Programs that share the heads of a group."""
    return ceil_div(group_of(workload), integer(config, "heads"))


def features(config: Config, workload: Workload, device: Device) -> tuple[float, ...]:
    """The features of its tiles, and log2 of the keys of a split."""
    rows = 1 if config["heads"] == 1 else max(LEAST_ROWS, integer(config, "heads"))
    launch = tile_features(
        device,
        shared_bytes=_shared_bytes(config, workload),
        sums=rows * (_columns(workload) + integer(config, "BLOCK_N")),
        warps=integer(config, "num_warps"),
        programs=_programs(config, workload),
    )
    return *launch, log2(keys_per_split(config, workload))


def _columns(workload: Workload) -> int:
    return next_power_of_two(workload.size("head_dim"))


def _programs(config: Config, workload: Workload) -> int:
    groups = workload.size("sequences") * workload.size("kv_heads")
    return groups * parts(config, workload) * integer(config, "splits")


def _shared_bytes(config: Config, workload: Workload) -> int:
    """Keys and values of every stage."""
    rows = 2 * integer(config, "stages") * integer(config, "BLOCK_N")
    return rows * _columns(workload) * ELEMENT_BYTES[workload.text("dtype")]


def _fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    return fits_shared(_shared_bytes(config, workload), device)


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    most = _MOST_ALONE if config["heads"] == 1 else _MOST_TOGETHER
    held = integer(config, "BLOCK_N") * _columns(workload)
    return held <= most * threads(config, device)


def _keeps_threads_busy(config: Config, workload: Workload, device: Device) -> bool:
    held = integer(config, "BLOCK_N") * _columns(workload)
    return config["num_warps"] == 1 or held >= _LEAST_HELD * threads(config, device)


def _splits_have_blocks(config: Config, workload: Workload, device: Device) -> bool:
    blocks = ceil_div(workload.size("keys"), integer(config, "BLOCK_N"))
    return integer(config, "splits") <= blocks


def _needs_splits(config: Config, workload: Workload, device: Device) -> bool:
    enough = _ENOUGH * programs_at_once(device)
    return config["splits"] == 1 or _programs(config, workload) <= enough


def _pipelines_blocks(config: Config, workload: Workload, device: Device) -> bool:
    blocks = keys_per_split(config, workload) // integer(config, "BLOCK_N")
    return integer(config, "stages") <= blocks


CONSTRAINTS = (
    Constraint("shared", _fits_shared, "keys and values do not fit into shared memory"),
    Constraint("registers", _fits_registers, "a thread would hold too many keys and values"),
    Preference("busy", _keeps_threads_busy, "threads would load less than a word of 16 bytes"),
    Preference("splits", _splits_have_blocks, "some splits would have no block"),
    Preference("enough", _needs_splits, "there are enough programs with fewer splits"),
    Preference("pipeline", _pipelines_blocks, "a split has too few blocks to load so far ahead"),
)
