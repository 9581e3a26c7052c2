"""The space of products with weights of four bits. A step is one group of 128 of K."""

from __future__ import annotations

from search_spaces.block_sizes import ceil_div
from search_spaces.constraints import Constraint, Preference
from search_spaces.kernels.features import product_tile_features
from search_spaces.kernels.limits import (
    block_parameter,
    fits_shared,
    has_capability,
    integer,
    programs_at_once,
    threads,
)
from search_spaces.params import Boolean, Choice, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: Weights of a row that share scale and zero point.
GROUP = 128
#: Bytes of an element of a, and of an output tile's sum.
_WIDE_BYTES = 2
#: Registers of a thread for sums and widened weights: of 255, addresses and operands need some.
_MOST_REGISTERS = 176
#: The most rows for which K may be split, and the most splits.
_FEW_ROWS, _MOST_SPLITS = 128, 16
_ENOUGH = 8
#: BLOCK_M, BLOCK_N, num_warps and num_stages without tuning; the first that fits is the default.
_USUAL = ((128, 128, 8, 3), (64, 128, 4, 3), (64, 128, 4, 2), (64, 64, 4, 2))
_USUAL_FEW = ((64, 64, 4, 4), (64, 64, 4, 2))
#: Programs for each multiprocessor that the default splits K for.
_USUAL_PROGRAMS = 4


def int4_space(workload: Workload, kernel: str) -> SearchSpace:
    """Tiles of 16 to 128 rows by 32 to 256 columns; splits of K where rows are few."""
    m, n = workload.sizes("M", "N")
    few = m <= _FEW_ROWS
    parameters: list[Parameter] = [
        block_parameter("BLOCK_M", m, 16 if few else 32, 128),
        block_parameter("BLOCK_N", n, 32 if few else 64, 256),
        Choice("GROUP_M", (1, 8)),
        PowerOfTwo("num_warps", 2 if few else 4, 8),
        Integer("num_stages", 2, 6),
        Boolean("scale_sums"),
        Boolean("packed"),
    ]
    if few:
        parameters.append(PowerOfTwo("SPLIT_K", 1, _MOST_SPLITS))
    return SearchSpace(
        parameters,
        CONSTRAINTS,
        kernel=kernel,
        features=_features,
        admits=("BLOCK_M", "BLOCK_N", "num_warps", "SPLIT_K"),
    )


def default_point(workload: Workload, device: Device) -> Config:
    """128 x 128 tiles or, where rows are few, all rows by 64 columns, with K split until every
    multiprocessor has several programs to wait for weights."""
    m, n, k = (workload.size(dim) for dim in "MNK")
    few = m <= _FEW_ROWS
    config: dict[str, int | bool] = {}
    for rows, cols, warps, stages in _USUAL_FEW if few else _USUAL:
        block_m = max(16, min(rows, 1 << (m - 1).bit_length()))
        block_n = max(16, min(cols, 1 << (n - 1).bit_length()))
        config = {"BLOCK_M": block_m, "BLOCK_N": block_n, "GROUP_M": 1, "num_warps": warps}
        config |= {"num_stages": stages, "packed": False}
        config["scale_sums"] = _reads_registers_later({**config, "scale_sums": False}, device)
        if _fits_shared(config, workload, device):
            break
    if few:
        tiles, splits = output_tiles(config, workload), 1
        while splits < _most_splits(k) and splits * tiles < _USUAL_PROGRAMS * programs_at_once(
            device
        ):
            splits *= 2
        config["SPLIT_K"] = splits
    grouped = {**config, "GROUP_M": 8}
    return grouped if _groups_rows(grouped, workload, device) else config


def output_tiles(config: Config, workload: Workload) -> int:
    """Tiles of the output."""
    return _tiles(config, workload, "M") * _tiles(config, workload, "N")


def _tiles(config: Config, workload: Workload, dim: str) -> int:
    return ceil_div(workload.size(dim), integer(config, f"BLOCK_{dim}"))


def _most_splits(k: int) -> int:
    """The largest power of two of splits, up to 16, that have two groups each."""
    return min(_MOST_SPLITS, 1 << max(0, (k // GROUP // 2).bit_length() - 1))


def _stage_bytes(config: Config) -> int:
    rows, cols = integer(config, "BLOCK_M"), integer(config, "BLOCK_N")
    return rows * GROUP * _WIDE_BYTES + cols * GROUP // 2


def _features(config: Config, workload: Workload, device: Device) -> tuple[float, ...]:
    rows, cols = integer(config, "BLOCK_M"), integer(config, "BLOCK_N")
    return product_tile_features(
        config,
        device,
        rows=rows,
        cols=cols,
        stage_bytes=_stage_bytes(config),
        programs=output_tiles(config, workload) * integer(config, "SPLIT_K"),
    )


def _fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    """All stages, and half a group of widened weights where they are not used from registers."""
    widened = integer(config, "BLOCK_N") * GROUP // 2 * _WIDE_BYTES
    return fits_shared(_stage_bytes(config) * integer(config, "num_stages") + widened, device)


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    cols = integer(config, "BLOCK_N")
    sums = integer(config, "BLOCK_M") * cols * (2 if config["scale_sums"] else 1)
    return sums + cols * GROUP // 2 <= _MOST_REGISTERS * threads(config, device)


def _groups_rows(config: Config, workload: Workload, device: Device) -> bool:
    rows, cols = _tiles(config, workload, "M"), _tiles(config, workload, "N")
    queued = rows > 1 < cols and rows * cols > programs_at_once(device)
    return config["GROUP_M"] == 1 or queued


def _split_has_work(config: Config, workload: Workload, device: Device) -> bool:
    return integer(config, "SPLIT_K") <= _most_splits(workload.size("K"))


def _split_is_needed(config: Config, workload: Workload, device: Device) -> bool:
    splits = integer(config, "SPLIT_K")
    programs = output_tiles(config, workload) * splits
    return splits == 1 or programs <= _ENOUGH * programs_at_once(device)


def _reads_registers_later(config: Config, device: Device) -> bool:
    """Whether products read widened weights from registers after a step has gone on to the next.

    The products of sm_90 (`wgmma`, from 64 columns and 4 warps on) are asynchronous. With one sum
    for all steps, Triton does not wait for the last product of a step. The machine code that
    Triton 3.6 makes of some configs (`BLOCK_M` 64, `BLOCK_N` 128, 4 warps, 3 stages) then loads
    bytes into the registers of a product in flight. The sums of a group, which are scaled, are
    waited for.
    """
    hopper = has_capability(device, 90) and not has_capability(device, 100)
    wide = integer(config, "BLOCK_N") >= 64 and integer(config, "num_warps") >= 4
    return hopper and wide and not config["scale_sums"]


def _weights_stay(config: Config, workload: Workload, device: Device) -> bool:
    return not _reads_registers_later(config, device)


def _has_instructions(config: Config, workload: Workload, device: Device) -> bool:
    return not config["packed"] or has_capability(device, 80)


CONSTRAINTS = (
    Constraint("shared", _fits_shared, "tiles x stages do not fit into shared memory"),
    Constraint("registers", _fits_registers, "a thread would hold too many sums and weights"),
    Preference("group", _groups_rows, "all tiles run at once, so their order does not matter"),
    Preference("split_work", _split_has_work, "each split would have fewer than two groups"),
    Preference("split_need", _split_is_needed, "there are tiles enough without splitting so much"),
    Constraint(
        "overwritten",
        _weights_stay,
        "Triton overwrites weights that asynchronous products still read (cuda:90, Triton 3.6)",
    ),
    Constraint("packed", _has_instructions, "these instructions need CUDA"),
)
