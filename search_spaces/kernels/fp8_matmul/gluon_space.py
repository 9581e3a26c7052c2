"""The space of fp8_matmul in both dialects: Triton's configs and, for Hopper, those of Gluon."""

from __future__ import annotations

from search_spaces.constraints import Constraint
from search_spaces.kernels.dialects import GLUON, gluon_constraints
from search_spaces.kernels.limits import fits_shared, integer
from search_spaces.kernels.scaled_tiles import (
    CONSTRAINTS,
    GROUP,
    features,
    in_gluon,
    scaled_space,
    takes_descriptors,
)
from search_spaces.params import Choice, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: Rows of one wgmma, and the float32 sums of the 128 threads of a consumer that do not spill.
_ROWS, _MOST_SUMS = 64, 128 * 128
#: Rows and columns of the smallest product that is offered: a few tiles for each multiprocessor.
_LARGE = 1024
#: Outputs of 16 bits in the 128 bytes by which shared memory is swizzled.
_SWIZZLED = 64
#: Warps of the launch: those of the first consumer.
_WARPS = 4
_OUT_BYTES = 2
#: More than all barriers of a program take, with the gaps between buffers.
_BARRIER_BYTES = 1024


def consumer_rows(config: Config) -> int:
    """Rows that one of the two consumers computes of a tile: half of them or, by turns, all."""
    return integer(config, "BLOCK_M") // (2 if config["consumers"] == "share" else 1)


def promotes(config: Config, workload: Workload) -> bool:
    """Whether the products of every 128 of K are added in float32."""
    return workload["scales"] == "block128" or config.get("fast") is False


def fp8_space(workload: Workload, kernel: str) -> SearchSpace:
    """Scaled tiles, which in large products a warp of a Gluon kernel may load (`loads`: gluon).

    `consumers`: two groups of four warps share every tile or take turns at whole tiles. `parts`:
    stores of a tile; one or two parts are in shared memory at a time. `lead`: blocks of K by which
    the first consumer of a shared tile starts before the second.
    """
    space = scaled_space(workload, kernel, workload.text("scales"))
    if not _is_offered(workload):
        return space
    gluon = {"loads": (GLUON,)}
    wider: dict[str, Parameter] = {
        "loads": Choice("loads", ("pointer", "descriptor", GLUON)),
        "num_stages": Integer("num_stages", 2, 6),
    }
    parameters: list[Parameter] = [
        *(wider.get(item.name, item) for item in space.parameters),
        Choice("consumers", ("share", "turns"), when=gluon),
        PowerOfTwo("parts", 1, 4, when=gluon),
        Integer("lead", 0, 2, when=gluon),
    ]
    return SearchSpace(
        parameters, _CONSTRAINTS, kernel=kernel, features=features, admits=space.admits
    )


def _is_offered(workload: Workload) -> bool:
    m, n, _ = workload.sizes("M", "N", "K")
    whole = takes_descriptors(workload) and n * _OUT_BYTES % 16 == 0
    return whole and min(m, n) >= _LARGE


def _has_consumers(config: Config, workload: Workload, device: Device) -> bool:
    if not in_gluon(config):
        return True
    rows, cols = consumer_rows(config), integer(config, "BLOCK_N")
    fits = rows >= _ROWS and rows * cols <= _MOST_SUMS and config["num_warps"] == _WARPS
    whole = cols // integer(config, "parts") >= _SWIZZLED and config["BLOCK_K"] == GROUP
    return fits and whole and config["dot"] == "float8"


def _adds_in_order(config: Config, workload: Workload, device: Device) -> bool:
    """Consumers that take turns cannot start one before the other, nor add blocks meanwhile."""
    if not in_gluon(config):
        return True
    alone = config["consumers"] == "turns"
    chunks = 2 if integer(config, "BLOCK_N") > GROUP else 1
    if promotes(config, workload):
        return not alone and integer(config, "parts") >= chunks
    return not alone or config["lead"] == 0


def _fits_buffers(config: Config, workload: Workload, device: Device) -> bool:
    """All stages, the parts of the output that are being stored, and the barriers."""
    if not in_gluon(config):
        return True
    block_m, block_n, block_k = (integer(config, f"BLOCK_{dim}") for dim in "MNK")
    parts = integer(config, "parts")
    buffers = 2 if parts == 4 else 1
    stored = 2 * buffers * consumer_rows(config) * block_n // parts
    loaded = integer(config, "num_stages") * (block_m + block_n) * block_k
    return fits_shared(stored * _OUT_BYTES + loaded + _BARRIER_BYTES, device)


_CONSTRAINTS = (
    *CONSTRAINTS,
    *gluon_constraints(in_gluon),
    Constraint(
        "consumers",
        _has_consumers,
        "a Gluon consumer has 4 warps, 64 rows or more, 128 of K, whole swizzles and no spills",
    ),
    Constraint(
        "order",
        _adds_in_order,
        "consumers by turns have no lead, and only shared tiles add blocks of K in float32",
    ),
    Constraint("buffers", _fits_buffers, "stages and output do not fit into shared memory"),
)
