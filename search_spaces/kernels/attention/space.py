"""The space of the attention family: which blocks of queries and keys a workload may take."""

from __future__ import annotations

from search_spaces.bound import BoundSpace
from search_spaces.params import Boolean, Choice, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import Constraint, SearchSpace

_BYTES = 2
#: What is tried, in order, as the config of somebody who has not tuned; the first that fits is it.
_USUAL: tuple[dict[str, int], ...] = (
    {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3},
    {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2},
    {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1},
)


def attention_space(workload: Workload) -> SearchSpace:
    """Blocks of 64 to 256 queries and 32 to 256 keys, smaller where sequences are.

    `order`: programs go through one head after the other, or through the first blocks of all heads,
    then the second. Causal problems may mask the diagonal in a loop of its own (`split`).
    """
    size = workload.size("sequence")
    parameters: list[Parameter] = [
        _block("BLOCK_M", size, 64, 256),
        _block("BLOCK_N", size, 32, 256),
        PowerOfTwo("num_warps", 4, 8),
        Integer("num_stages", 1, 4),
        Choice("loads", ("pointer", "descriptor")),
        Choice("order", ("head", "block")),
    ]
    if workload["causal"]:
        parameters.append(Boolean("split"))
    return SearchSpace(parameters, CONSTRAINTS, kernel="attention")


def default_point(bound: BoundSpace) -> Config:
    """What is run today without tuning: FlashAttention-2's usual tile, cut to the problem."""
    causal = bool(bound.workload["causal"])
    for wish in _USUAL:
        cut = {
            item.name: min(wish[item.name], int(str(item.values()[-1])))
            for item in bound.parameters
            if item.name in wish
        }
        config = bound.complete({**cut, "loads": "pointer", "split": causal, "order": "head"})
        if bound.feasible(config):
            return config
    bound.require_feasible()
    return next(bound.enumerate())


def _block(name: str, size: int, low: int, high: int) -> PowerOfTwo:
    """Blocks up to the power of two that holds the sequence; tensor cores need 16."""
    top = max(16, min(high, 1 << (size - 1).bit_length()))
    return PowerOfTwo(name, min(low, top), top)


def _int(config: Config, name: str) -> int:
    return int(str(config[name]))


def _fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    """The queries, and keys and values of every stage; 0 is a device whose limit is not known."""
    rows = _int(config, "BLOCK_M") + 2 * _int(config, "num_stages") * _int(config, "BLOCK_N")
    needed = rows * workload.size("head_dim") * _BYTES
    return device.shared_bytes == 0 or needed <= device.shared_bytes


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    """Up to 256 float32 scores and sums: more than fit, since spilling a little may pay."""
    threads = _int(config, "num_warps") * (device.warp_size or 32)
    columns = _int(config, "BLOCK_N") + workload.size("head_dim")
    return _int(config, "BLOCK_M") * columns <= 256 * threads


def _warps_have_rows(config: Config, workload: Workload, device: Device) -> bool:
    warps = _int(config, "num_warps")
    return warps <= 4 or _int(config, "BLOCK_M") >= 16 * warps


def _pipelines_keys(config: Config, workload: Workload, device: Device) -> bool:
    blocks = -(-workload.size("sequence") // _int(config, "BLOCK_N"))
    return _int(config, "num_stages") == 1 or blocks >= _int(config, "num_stages")


def _has_descriptors(config: Config, workload: Workload, device: Device) -> bool:
    kind, _, capability = device.target.partition(":")
    modern = kind == "cuda" and capability.isdecimal() and int(capability) >= 90
    return config["loads"] != "descriptor" or modern


CONSTRAINTS = (
    Constraint("shared", _fits_shared, "queries, keys and values do not fit into shared memory"),
    Constraint("registers", _fits_registers, "a thread would hold more than 256 sums"),
    Constraint("warps", _warps_have_rows, "each of eight warps needs 16 queries of its own"),
    Constraint("pipeline", _pipelines_keys, "there are too few blocks of keys to load ahead"),
    Constraint("descriptors", _has_descriptors, "tensor descriptors need cuda:90 or newer"),
)
