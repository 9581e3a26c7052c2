"""The space of the attention family: which blocks of queries and keys a workload may take."""

from __future__ import annotations

from dataclasses import replace

from search_spaces.block_sizes import ceil_div
from search_spaces.bound import BoundSpace
from search_spaces.constraints import Constraint, Preference
from search_spaces.kernels.dialects import DIALECTS, GLUON, TRITON, gluon_constraints
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.limits import (
    DESCRIPTORS,
    block_parameter,
    fits_shared,
    integer,
    programs_at_once,
    threads,
)
from search_spaces.params import Boolean, Choice, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: Queries of a consumer in Gluon: the rows of one wgmma.
CONSUMER_ROWS = 64
#: Registers of a consumer's thread for scores, weights and sums, by the number of consumers.
_MOST_HELD = {1: 160, 2: 160, 3: 128}
#: Threads of a consumer, a warp group.
_GROUP_THREADS = 128
#: Blocks of keys, and of values, that a program in Gluon holds, by head dimension; more were slower
#: on an H200.
_GLUON_STAGES = {64: (2,), 128: (2, 3)}
#: The least head dimension of persistent programs.
_LEAST_PERSISTENT = 128
#: Shared memory of a Hopper program where the device does not say.
_USUAL_SHARED = 232448
#: More than all barriers of a program take, with the gaps between them.
_BARRIER_BYTES = 1024
#: Usual tiles without tuning; the default config is the first that is feasible.
_USUAL: tuple[dict[str, int], ...] = (
    {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3},
    {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2},
    {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1},
)


def attention_space(workload: Workload) -> SearchSpace:
    """Blocks of 64 to 256 queries and 32 to 256 keys, smaller where sequences are.

    `order`: programs take one head after the other (`head`), or the first block of every head, then
    the second (`block`). Causal problems may mask the diagonal in a separate loop (`split`). In
    Gluon, `consumers` groups of warps have 64 queries each; they may issue their products by turns
    (`take_turns`), and programs may stay for several tiles (`persistent`).
    """
    size = workload.size("sequence")
    triton, gluon = {"dialect": (TRITON,)}, {"dialect": (GLUON,)}
    parameters: list[Parameter] = [
        Choice("dialect", DIALECTS),
        replace(block_parameter("BLOCK_M", size, 64, 256), when=triton),
        block_parameter("BLOCK_N", size, 32, 256),
        PowerOfTwo("num_warps", 4, 8, when=triton),
        Integer("num_stages", 1, 4),
        Choice("loads", ("pointer", "descriptor"), when=triton),
        Choice("order", ("head", "block"), when=triton),
        Integer("consumers", 1, 3, when=gluon),
        Boolean("take_turns", when={**gluon, "consumers": (2, 3)}),
        Boolean("persistent", when=gluon),
    ]
    if workload["causal"]:
        parameters.append(Boolean("split", when=triton))
    return SearchSpace(parameters, CONSTRAINTS, kernel="attention", admits=("BLOCK_M", "BLOCK_N"))


def default_point(bound: BoundSpace) -> Config:
    """The config without tuning: FlashAttention-2's usual tile, cut to the problem."""
    causal = bool(bound.workload["causal"])
    for tile in _USUAL:
        cut = {
            item.name: min(tile[item.name], int(str(item.values()[-1])))
            for item in bound.parameters
            if item.name in tile
        }
        config = bound.complete(
            {**cut, "dialect": TRITON, "loads": "pointer", "split": causal, "order": "head"}
        )
        if bound.feasible(config):
            return config
    bound.require_feasible()
    return next(bound.enumerate())


def in_gluon(config: Config) -> bool:
    """Whether the config is one of Gluon; configs without a dialect are Triton's."""
    return config.get("dialect") == GLUON


def tile_rows(config: Config) -> int:
    """Queries of a tile."""
    if in_gluon(config):
        return CONSUMER_ROWS * integer(config, "consumers")
    return integer(config, "BLOCK_M")


def _shared_bytes(config: Config, workload: Workload, block_n: int) -> int:
    """The queries, and the keys and values of every stage; in Gluon, barriers as well."""
    rows = tile_rows(config) + 2 * integer(config, "num_stages") * block_n
    barriers = _BARRIER_BYTES if in_gluon(config) else 0
    return rows * workload.size("head_dim") * ELEMENT_BYTES[workload.text("dtype")] + barriers


def _fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    needed = _shared_bytes(config, workload, integer(config, "BLOCK_N"))
    return fits_shared(needed, device)


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    """Up to 256 float32 scores and sums a thread: more than fit, since a few spills may pay."""
    if in_gluon(config):
        return True
    columns = integer(config, "BLOCK_N") + workload.size("head_dim")
    return integer(config, "BLOCK_M") * columns <= 256 * threads(config, device)


def _has_consumers_block(config: Config, workload: Workload, device: Device) -> bool:
    """The most keys, 64 or 128, of which scores, weights and sums stay in registers.

    Spilled products could not stay in flight. A single consumer shares its multiprocessor with that
    of another program, without which nothing would multiply during its softmax.
    """
    if not in_gluon(config):
        return True
    head_dim, consumers = workload.size("head_dim"), integer(config, "consumers")
    most = (device.shared_bytes or _USUAL_SHARED) // (2 if consumers == 1 else 1)

    def fits(block_n: int) -> bool:
        held = (block_n + block_n // 2 + head_dim) * CONSUMER_ROWS // _GROUP_THREADS
        return held <= _MOST_HELD[consumers] and _shared_bytes(config, workload, block_n) <= most

    return integer(config, "BLOCK_N") == next((keys for keys in (128, 64) if fits(keys)), 0)


def _warps_have_rows(config: Config, workload: Workload, device: Device) -> bool:
    warps = integer(config, "num_warps")
    return warps <= 4 or integer(config, "BLOCK_M") >= 16 * warps


def _pipelines_keys(config: Config, workload: Workload, device: Device) -> bool:
    blocks = ceil_div(workload.size("sequence"), integer(config, "BLOCK_N"))
    if in_gluon(config):
        return integer(config, "num_stages") in _GLUON_STAGES[workload.size("head_dim")]
    return integer(config, "num_stages") == 1 or blocks >= integer(config, "num_stages")


def _persistence_pays(config: Config, workload: Workload, device: Device) -> bool:
    """With head dimension 64, persistent programs were slower on an H200.

    Nor were they checked there with a partial last block of keys.
    """
    if not config.get("persistent"):
        return True
    ragged = workload.size("sequence") % integer(config, "BLOCK_N")
    if ragged or workload.size("head_dim") < _LEAST_PERSISTENT:
        return False
    tiles = ceil_div(workload.size("sequence"), tile_rows(config))
    resident = 2 if integer(config, "consumers") == 1 else 1
    heads = workload.size("batch") * workload.size("heads")
    return tiles * heads > programs_at_once(device) * resident


CONSTRAINTS = (
    *gluon_constraints(in_gluon),
    Constraint("shared", _fits_shared, "queries, keys and values do not fit into shared memory"),
    Constraint("registers", _fits_registers, "a thread would hold more than 256 sums"),
    Constraint(
        "consumers", _has_consumers_block, "a consumer takes as many keys as its registers hold"
    ),
    Preference("warps", _warps_have_rows, "each of eight warps needs 16 queries"),
    Preference("pipeline", _pipelines_keys, "there are too few blocks of keys to load ahead"),
    Preference(
        "persistent",
        _persistence_pays,
        "heads are short, keys no whole blocks, or all tiles run at once",
    ),
    DESCRIPTORS,
)
