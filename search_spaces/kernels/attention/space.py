"""The space of the attention family: which blocks of queries and keys a workload may take."""

from __future__ import annotations

from search_spaces.block_sizes import ceil_div
from search_spaces.bound import BoundSpace
from search_spaces.constraints import Constraint
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.launch_limits import (
    DESCRIPTORS,
    block_parameter,
    fits_shared,
    integer,
    threads,
)
from search_spaces.params import Boolean, Choice, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: Usual tiles without tuning; the default config is the first that is feasible.
_USUAL: tuple[dict[str, int], ...] = (
    {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3},
    {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2},
    {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1},
)


def attention_space(workload: Workload) -> SearchSpace:
    """Blocks of 64 to 256 queries and 32 to 256 keys, smaller where sequences are.

    `order`: programs take one head after the other (`head`), or the first block of every head, then
    the second (`block`). Causal problems may mask the diagonal in a separate loop (`split`).
    """
    size = workload.size("sequence")
    parameters: list[Parameter] = [
        block_parameter("BLOCK_M", size, 64, 256),
        block_parameter("BLOCK_N", size, 32, 256),
        PowerOfTwo("num_warps", 4, 8),
        Integer("num_stages", 1, 4),
        Choice("loads", ("pointer", "descriptor")),
        Choice("order", ("head", "block")),
    ]
    if workload["causal"]:
        parameters.append(Boolean("split"))
    return SearchSpace(parameters, CONSTRAINTS, kernel="attention")


def default_point(bound: BoundSpace) -> Config:
    """The config without tuning: FlashAttention-2's usual tile, cut to the problem."""
    causal = bool(bound.workload["causal"])
    for tile in _USUAL:
        cut = {
            item.name: min(tile[item.name], int(str(item.values()[-1])))
            for item in bound.parameters
            if item.name in tile
        }
        config = bound.complete({**cut, "loads": "pointer", "split": causal, "order": "head"})
        if bound.feasible(config):
            return config
    bound.require_feasible()
    return next(bound.enumerate())


def _fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    """The queries, and the keys and values of every stage."""
    rows = integer(config, "BLOCK_M") + 2 * integer(config, "num_stages") * integer(
        config, "BLOCK_N"
    )
    needed = rows * workload.size("head_dim") * ELEMENT_BYTES[workload.text("dtype")]
    return fits_shared(needed, device)


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    """Up to 256 float32 scores and sums a thread: more than fit, since a few spills may pay."""
    columns = integer(config, "BLOCK_N") + workload.size("head_dim")
    return integer(config, "BLOCK_M") * columns <= 256 * threads(config, device)


def _warps_have_rows(config: Config, workload: Workload, device: Device) -> bool:
    warps = integer(config, "num_warps")
    return warps <= 4 or integer(config, "BLOCK_M") >= 16 * warps


def _pipelines_keys(config: Config, workload: Workload, device: Device) -> bool:
    blocks = ceil_div(workload.size("sequence"), integer(config, "BLOCK_N"))
    return integer(config, "num_stages") == 1 or blocks >= integer(config, "num_stages")


CONSTRAINTS = (
    Constraint("shared", _fits_shared, "queries, keys and values do not fit into shared memory"),
    Constraint("registers", _fits_registers, "a thread would hold more than 256 sums"),
    Constraint("warps", _warps_have_rows, "each of eight warps needs 16 queries"),
    Constraint("pipeline", _pipelines_keys, "there are too few blocks of keys to load ahead"),
    DESCRIPTORS,
)
