"""The space of the matmul family: which tiles, splits, loads and precisions a workload may take."""

from __future__ import annotations

from math import log2

from search_spaces.bound import BoundSpace
from search_spaces.kernels.features import tile_features
from search_spaces.params import Boolean, Choice, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Value, Workload
from search_spaces.space import Constraint, SearchSpace

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
#: What is tried, in order, as the config of somebody who has not tuned; the first that fits is it.
_USUAL: tuple[dict[str, int], ...] = (
    {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3},
    {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3},
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2},
)
_USUAL_FLOAT32: tuple[dict[str, int], ...] = (
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3},
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 16, "num_warps": 4, "num_stages": 2},
)


def takes_descriptors(workload: Workload) -> bool:
    """Whether rows are whole multiples of 16 bytes, as tensor descriptors need them."""
    element = _BYTES[workload.text("dtype")]
    return all(workload.size(dim) * element % 16 == 0 for dim in ("K", "N"))


def matmul_space(workload: Workload) -> SearchSpace:
    """Tiles of 16 to 256 a side, narrowed to what the sizes can use.

    Large squares start at 64 x 64. Small or slender problems, which leave multiprocessors idle or
    wait for memory, get smaller tiles, longer strides of K and splits of K.
    """
    m, n, k = workload.size("M"), workload.size("N"), workload.size("K")
    single = workload["dtype"] == "float32"
    large = m >= 2048 and n >= 2048
    deepest = 64 if single else 128 if large else 256
    shallowest = 16 if single else 32
    parameters: list[Parameter] = [
        _block("BLOCK_M", m, 64 if large else 16 if m <= 64 else 32, 256),
        _block("BLOCK_N", n, 64 if large else 16 if n <= 64 else 32, 256),
        _block("BLOCK_K", k, shallowest, deepest),
        Choice("GROUP_M", (1, 8)),
        PowerOfTwo("num_warps", 4 if large else 2, 8),
        Integer("num_stages", 2, 5 if large else 6),
    ]
    pointers = None
    if takes_descriptors(workload):
        parameters.append(Choice("loads", ("pointer", "descriptor")))
        parameters.append(Boolean("persistent", when={"loads": ("descriptor",)}))
        pointers = {"loads": ("pointer",)}
    if not large:
        parameters.append(PowerOfTwo("SPLIT_K", 1, 16, when=pointers))
    if single:
        parameters.append(Choice("precision", ("ieee", "tf32x3", "tf32")))
    return SearchSpace(parameters, CONSTRAINTS, kernel="matmul", features=features)


def features(config: Config, workload: Workload, device: Device) -> tuple[float, ...]:
    """Those of its tiles, and log2 of the products per operand element that a tile loads."""
    rows, cols = _int(config, "BLOCK_M"), _int(config, "BLOCK_N")
    element = _BYTES[workload.text("dtype")]
    loaded = (rows + cols) * _int(config, "BLOCK_K") * element
    programs = _tiles(config, workload, "M") * _tiles(config, workload, "N")
    launch = tile_features(
        device,
        shared_bytes=loaded * _int(config, "num_stages"),
        sums=rows * cols,
        warps=_int(config, "num_warps"),
        programs=programs * _int(config, "SPLIT_K"),
    )
    return *launch, log2(rows * cols / (rows + cols))


def default_point(bound: BoundSpace) -> Config:
    """What is run today without tuning: a usual tile, cut to the problem and the device."""
    wishes = _USUAL_FLOAT32 if bound.workload["dtype"] == "float32" else _USUAL
    for wish in wishes:
        config = bound.complete(
            {
                item.name: _nearest(item, wish[item.name])
                for item in bound.parameters
                if (item.name in wish)
            }
        )
        for group in (8, 1):
            grouped = {**config, "GROUP_M": group}
            if bound.feasible(grouped):
                return grouped
    bound.require_feasible()
    return next(bound.enumerate())


def _block(name: str, size: int, low: int, high: int) -> PowerOfTwo:
    """Blocks up to the power of two that holds the whole size; tensor cores need 16."""
    top = max(16, min(high, 1 << (size - 1).bit_length()))
    return PowerOfTwo(name, min(low, top), top)


def _nearest(parameter: Parameter, wish: int) -> Value:
    return min(parameter.values(), key=lambda value: abs(int(str(value)) - wish))


def _int(config: Config, name: str, missing: int = 1) -> int:
    return int(str(config.get(name, missing)))


def _tiles(config: Config, workload: Workload, dim: str) -> int:
    return -(-workload.size(dim) // _int(config, f"BLOCK_{dim}"))


def _programs_at_once(device: Device) -> int:
    """One per multiprocessor; 128 where their number is not known."""
    return device.sm_count or 128


def _fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    """Both operands' tiles of every stage, and beside them the output tile that a persistent
    program is still storing; 0 is a device whose limit is not known."""
    sides = _int(config, "BLOCK_M") + _int(config, "BLOCK_N")
    element = _BYTES[workload.text("dtype")]
    needed = sides * _int(config, "BLOCK_K") * element * _int(config, "num_stages")
    if config.get("persistent"):
        needed += _int(config, "BLOCK_M") * _int(config, "BLOCK_N") * element
    return device.shared_bytes == 0 or needed <= device.shared_bytes


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    """Up to 512 float32 sums: more than fit, since spilling a little sometimes pays."""
    threads = _int(config, "num_warps") * (device.warp_size or 32)
    return _int(config, "BLOCK_M") * _int(config, "BLOCK_N") <= 512 * threads


def _groups_rows(config: Config, workload: Workload, device: Device) -> bool:
    rows, cols = _tiles(config, workload, "M"), _tiles(config, workload, "N")
    queued = rows > 1 < cols and rows * cols > _programs_at_once(device)
    return config["GROUP_M"] == 1 or queued


def _split_has_work(config: Config, workload: Workload, device: Device) -> bool:
    splits = _int(config, "SPLIT_K")
    return splits == 1 or _tiles(config, workload, "K") >= 2 * splits


def _split_is_needed(config: Config, workload: Workload, device: Device) -> bool:
    splits = _int(config, "SPLIT_K")
    programs = _tiles(config, workload, "M") * _tiles(config, workload, "N") * splits
    return splits == 1 or programs <= 8 * _programs_at_once(device)


def _persistence_pays(config: Config, workload: Workload, device: Device) -> bool:
    tiles = _tiles(config, workload, "M") * _tiles(config, workload, "N")
    return not config.get("persistent") or tiles > _programs_at_once(device)


def _has_descriptors(config: Config, workload: Workload, device: Device) -> bool:
    kind, _, capability = device.target.partition(":")
    modern = kind == "cuda" and capability.isdecimal() and int(capability) >= 90
    return config.get("loads") != "descriptor" or modern


def _has_tensor_floats(config: Config, workload: Workload, device: Device) -> bool:
    kind, _, capability = device.target.partition(":")
    modern = kind == "cuda" and capability.isdecimal() and int(capability) >= 80
    return config.get("precision", "ieee") == "ieee" or modern


CONSTRAINTS = (
    Constraint("shared", _fits_shared, "tiles x stages do not fit into shared memory"),
    Constraint("registers", _fits_registers, "a thread would hold more than 512 sums"),
    Constraint("group", _groups_rows, "all tiles run at once, so their order does not matter"),
    Constraint("split_work", _split_has_work, "each split would have fewer than two steps of K"),
    Constraint("split_need", _split_is_needed, "there are tiles enough without splitting so much"),
    Constraint("persistent", _persistence_pays, "all tiles run at once, one per program"),
    Constraint("descriptors", _has_descriptors, "tensor descriptors need cuda:90 or newer"),
    Constraint("tensor_floats", _has_tensor_floats, "TF32 needs cuda:80 or newer"),
)
