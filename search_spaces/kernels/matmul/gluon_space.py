"""The space of matmul in both dialects: Triton's configs and, for Hopper, those of Gluon."""

from __future__ import annotations

from search_spaces.constraints import Constraint
from search_spaces.kernels.dialects import GLUON, gluon_constraints
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.limits import fits_shared, integer
from search_spaces.kernels.matmul.space import (
    CONSTRAINTS,
    features,
    matmul_space,
    takes_descriptors,
)
from search_spaces.params import Choice, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: Rows of one wgmma, and the float32 sums of the 128 threads of a consumer that do not spill.
_ROWS, _MOST_SUMS = 64, 128 * 128
#: Elements of 16 bits in the 128 bytes by which shared memory is swizzled.
_SWIZZLED = 64
#: Warps of the launch: those of the first consumer.
_WARPS = 4
#: More than all barriers of a program take, with the gaps between buffers.
_BARRIER_BYTES = 1024


def in_gluon(config: Config) -> bool:
    """Whether the config is one of Gluon."""
    return config.get("loads") == GLUON


def consumer_rows(config: Config) -> int:
    """Rows that one of the two consumers computes of a tile: half of them or, by turns, all."""
    return integer(config, "BLOCK_M") // (2 if config["consumers"] == "share" else 1)


def dense_space(workload: Workload) -> SearchSpace:
    """matmul's space, in which a warp of a Gluon kernel may load 16-bit floats (`loads`: gluon).

    `consumers`: two groups of four warps share every tile or take turns at whole tiles. `parts`:
    stores of a tile; one or two parts are in shared memory at a time.
    """
    space = matmul_space(workload)
    small = min(workload.size("M"), workload.size("N")) < _ROWS
    if workload["dtype"] == "float32" or small or not takes_descriptors(workload):
        return space
    gluon = {"loads": (GLUON,)}
    parameters = [
        *(
            Choice("loads", (*item.values(), GLUON)) if item.name == "loads" else item
            for item in space.parameters
        ),
        Choice("consumers", ("share", "turns"), when=gluon),
        PowerOfTwo("parts", 1, 4, when=gluon),
    ]
    return SearchSpace(
        parameters, _CONSTRAINTS, kernel="matmul", features=features, admits=space.admits
    )


def _has_consumers(config: Config, workload: Workload, device: Device) -> bool:
    if not in_gluon(config):
        return True
    rows, cols = consumer_rows(config), integer(config, "BLOCK_N")
    fits = rows >= _ROWS and rows * cols <= _MOST_SUMS and config["num_warps"] == _WARPS
    return fits and min(cols // integer(config, "parts"), integer(config, "BLOCK_K")) >= _SWIZZLED


def _fits_buffers(config: Config, workload: Workload, device: Device) -> bool:
    """All stages, the parts of the output that are being stored, and the barriers."""
    if not in_gluon(config):
        return True
    block_m, block_n, block_k = (integer(config, f"BLOCK_{dim}") for dim in "MNK")
    parts = integer(config, "parts")
    buffers = 2 if parts == 4 else 1
    stored = 2 * buffers * consumer_rows(config) * block_n // parts
    loaded = integer(config, "num_stages") * (block_m + block_n) * block_k
    element = ELEMENT_BYTES[workload.text("dtype")]
    return fits_shared((stored + loaded) * element + _BARRIER_BYTES, device)


_CONSTRAINTS = (
    *CONSTRAINTS,
    *gluon_constraints(in_gluon),
    Constraint(
        "consumers",
        _has_consumers,
        "a Gluon consumer has 4 warps, 64 rows or more, whole swizzles, and does not spill",
    ),
    Constraint("buffers", _fits_buffers, "stages and output do not fit into shared memory"),
)
