"""What matrix products of codes of one byte share: the space, constraints, features and launches.

The product is out[M, N] = a[M, K] @ b[N, K]^T with scales; `scales` says which elements of an
operand share one: "tensor", "row" (of both operands) or "block128" (128 of K of each row of a, and
squares of b). Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from triton.tools.tensor_descriptor import TensorDescriptor

from search_spaces.block_sizes import alignment, ceil_div
from search_spaces.bound import BoundSpace
from search_spaces.constraints import Constraint, Preference
from search_spaces.kernel import Launch
from search_spaces.kernels.codes import FLOAT8
from search_spaces.kernels.dialects import GLUON
from search_spaces.kernels.features import product_tile_features
from search_spaces.kernels.limits import (
    DESCRIPTORS,
    admitted_tiles,
    block_parameter,
    fits_shared,
    has_capability,
    integer,
    nearest_values,
    programs_at_once,
    threads,
)
from search_spaces.kernels.matmul.triton_kernels import sum_splits_kernel
from search_spaces.kernels.scaled_tiles_triton import scaled_matmul_kernel
from search_spaces.params import Boolean, Choice, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, TensorSpec, Value, Workload
from search_spaces.shape_tensor import as_bytes
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, sm_count

if TYPE_CHECKING:
    import torch

#: Elements of K, and rows of b, that share a scale by blocks.
GROUP = 128
#: Sums of a thread at most: it has 255 registers, and operands and addresses need some.
_MOST_SUMS = 192
_SUM_BLOCK = 1024
#: The most rows of a for which the tile may be computed transposed.
_FEW_ROWS = 64
#: Programs for each multiprocessor beyond which K is not split.
_ENOUGH = 8
#: Usual tiles without tuning; the default config is the first that is feasible.
_USUAL: tuple[dict[str, int], ...] = (
    {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 128, "num_warps": 8, "num_stages": 3},
    {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 128, "num_warps": 8, "num_stages": 2},
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 2},
)
#: The first choice for few rows, for scales by blocks, whose sums a thread holds twice, and for
#: rows that are no whole words, of which a thread loads each byte by itself.
_USUAL_FEW = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 128, "num_warps": 4, "num_stages": 3}
_USUAL_BLOCKED = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 128, "num_warps": 4, "num_stages": 3}
_USUAL_BYTES = {"BLOCK_M": 128, "BLOCK_N": 32, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3}
_USUAL_FEW_INT8 = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 128, "num_warps": 4, "num_stages": 4}
#: Stages where a multiprocessor has one program, and steps of K for which a split pays.
_MOST_AHEAD, _LEAST_STEPS = 5, 16
#: Rows of tiles that run at once from which they share tiles of b enough in their own order.
_HIGH = 4


def scale_shapes(workload: Workload, scales: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the scales of a and of b; by blocks, those of a have M contiguous."""
    m, n, k = workload.sizes("M", "N", "K")
    if scales == "block128":
        blocks = ceil_div(k, GROUP)
        return (blocks, m), (ceil_div(n, GROUP), blocks)
    return ((m,), (n,)) if scales == "row" else ((1,), (1,))


def partial_specs(workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
    """The partial sums of a product that is split along K."""
    splits = integer(config, "SPLIT_K")
    m, n, _ = workload.sizes("M", "N", "K")
    return {"partial": workload.spec(splits, m, n, dtype="float32")} if splits > 1 else {}


def takes_descriptors(workload: Workload) -> bool:
    """Whether rows of a and b are whole multiples of 16 bytes, as tensor descriptors need them."""
    return workload.size("K") % 16 == 0


# -- the space -------------------------------------------------------------------------------------
def scaled_space(workload: Workload, kernel: str, scales: str) -> SearchSpace:
    """Tiles of 16 to 256 a side, narrowed to what the sizes can use.

    Few rows leave multiprocessors idle or wait for memory: they get smaller tiles, splits of K and
    transposed tiles.
    """
    m, n, k = workload.sizes("M", "N", "K")
    large, few = m >= 1024 and n >= 1024, m <= _FEW_ROWS
    deepest = GROUP if scales == "block128" or large else 512
    shallowest = GROUP if scales == "block128" else 64
    depth = PowerOfTwo("BLOCK_K", GROUP, GROUP)
    parameters: list[Parameter] = [
        block_parameter("BLOCK_M", m, 64 if large else 16 if few else 32, 64 if few else 256),
        block_parameter("BLOCK_N", n, 64 if large else 32, 256),
        depth if scales == "block128" else _depth(k, shallowest, deepest),
        PowerOfTwo("num_warps", 4 if large else 2, 8),
        Integer("num_stages", 2, 5 if large else 6),
    ]
    if not few:
        parameters.append(Choice("GROUP_M", (1, 8)))
    if takes_descriptors(workload):
        parameters.append(Choice("loads", ("pointer", "descriptor")))
        parameters.append(Boolean("persistent", when={"loads": ("descriptor",)}))
    if not large:
        parameters.append(PowerOfTwo("SPLIT_K", 1, 16))
    if few:
        parameters.append(Boolean("swap"))
    if workload["dtype"] == FLOAT8:
        parameters.append(Choice("dot", ("float8", "float16")))
        if scales != "block128":
            parameters.append(Boolean("fast", when={"dot": ("float8",)}))
    admits = (*admitted_tiles(takes_descriptors(workload)), "swap")
    return SearchSpace(parameters, CONSTRAINTS, kernel=kernel, features=features, admits=admits)


def _depth(k: int, low: int, high: int) -> PowerOfTwo:
    """Blocks of K; instructions for one byte take at least 32 of it."""
    top = max(32, min(high, 1 << (k - 1).bit_length()))
    return PowerOfTwo("BLOCK_K", min(low, top), top)


def features(config: Config, workload: Workload, device: Device) -> tuple[float, ...]:
    """The features of its tiles, and log2 of the products per operand element a tile loads."""
    rows, cols = integer(config, "BLOCK_M"), integer(config, "BLOCK_N")
    return product_tile_features(
        config,
        device,
        rows=rows,
        cols=cols,
        stage_bytes=_stage_bytes(config),
        programs=_output_tiles(config, workload) * integer(config, "SPLIT_K"),
    )


def default_point(bound: BoundSpace) -> Config:
    """The config without tuning: a usual tile, cut to the problem and the device.

    Large products of float8 sum in the tensor cores alone, as `torch._scaled_mm` does with
    use_fast_accum, and load by descriptors, which leave registers for a second program. Few rows
    wait for memory, not for sums: theirs stay exact. They get transposed tiles, for the large
    instructions, and splits of K for all multiprocessors.
    """
    few = bound.workload.size("M") <= _FEW_ROWS
    first = _first_tile(bound.workload)
    for tile in _USUAL if first is None else (first, *_USUAL):
        for config in _with_tile(bound, tile):
            if bound.feasible(config):
                return _spread(bound, config) if few else config
    bound.require_feasible()
    return next(bound.enumerate())


def _with_tile(bound: BoundSpace, tile: Mapping[str, int]) -> Iterator[Config]:
    """The configs of a tile that the default may be, the preferred ones first."""
    for dot in ("float8", "float16"):
        for group in (8, 1) if _is_wide(bound, tile) else (1, 8):
            cut = nearest_values(bound, {**tile, "GROUP_M": group, "dot": dot})
            for loads, fast in ((True, True), (False, True), (False, False)):
                yield bound.complete({**cut, **_chosen(bound.workload, loads, fast)})


def _first_tile(workload: Workload) -> dict[str, int] | None:
    if not takes_descriptors(workload) and workload.size("M") > _FEW_ROWS:
        return _USUAL_BYTES
    if workload.size("M") <= _FEW_ROWS:
        return _USUAL_FEW if workload["dtype"] == FLOAT8 else _USUAL_FEW_INT8
    return _USUAL_BLOCKED if workload.get("scales") == "block128" else None


def _is_wide(bound: BoundSpace, tile: Mapping[str, int]) -> bool:
    """Whether the tiles that run at once, two on a multiprocessor, are less than _HIGH rows.

    int8 keeps the order that it was measured with.
    """
    cols = ceil_div(bound.workload.size("N"), tile["BLOCK_N"])
    at_once = 2 * programs_at_once(bound.device)
    return bound.workload["dtype"] != FLOAT8 or cols * _HIGH > at_once


def _chosen(workload: Workload, loads: bool, fast: bool) -> dict[str, Value]:
    """The way to load and to sum; parameters that the space lacks are left out."""
    few, blocked = workload.size("M") <= _FEW_ROWS, workload.get("scales") == "block128"
    if workload["dtype"] != FLOAT8:
        return {}
    found: dict[str, Value] = {} if blocked else {"fast": fast and not few}
    if takes_descriptors(workload) and loads and (blocked or not few):
        found["loads"] = "descriptor"
    return found


def _spread(bound: BoundSpace, config: Config) -> Config:
    """The config transposed and split, as far as that is feasible and pays.

    Scales of rows by blocks are those of columns in a transposed tile, which only fewer than the
    64 rows of an instruction are worth.
    """
    swapped = {**config, "swap": True}
    blocked = bound.workload.get("scales") == "block128"
    full = blocked and integer(config, "BLOCK_M") >= _FEW_ROWS
    if has_capability(bound.device, 90) and not full and bound.feasible(swapped):
        config = swapped
    at_once, tiles = programs_at_once(bound.device), _output_tiles(config, bound.workload)
    resident = bound.device.shared_bytes // (_stage_bytes(config) * integer(config, "num_stages"))
    while "SPLIT_K" in config and tiles < at_once:
        splits = 2 * integer(config, "SPLIT_K")
        split = {**config, "SPLIT_K": splits}
        many = tiles * splits > max(1, resident) * at_once
        short = _tiles(config, bound.workload, "K") < _LEAST_STEPS * splits
        if many or short or not bound.feasible(split):
            break
        config = split
    programs = tiles * integer(config, "SPLIT_K")
    ahead = {**config, "num_stages": _MOST_AHEAD}
    return ahead if programs <= at_once and bound.feasible(ahead) else config


def _tiles(config: Config, workload: Workload, dim: str) -> int:
    return ceil_div(workload.size(dim), integer(config, f"BLOCK_{dim}"))


def _output_tiles(config: Config, workload: Workload) -> int:
    return _tiles(config, workload, "M") * _tiles(config, workload, "N")


def _stage_bytes(config: Config) -> int:
    """Shared memory of one stage: a tile of each operand."""
    sides = integer(config, "BLOCK_M") + integer(config, "BLOCK_N")
    return sides * integer(config, "BLOCK_K")


def _fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    """All stages and, in a persistent program, the output tile that is still being stored."""
    needed = _stage_bytes(config) * integer(config, "num_stages")
    if config.get("persistent"):
        needed += 4 * integer(config, "BLOCK_M") * integer(config, "BLOCK_N")
    return fits_shared(needed, device)


def _promotes(config: Config, workload: Workload, device: Device) -> bool:
    """Whether a thread keeps both the sums of the instructions and sums in float32."""
    blocked = workload.get("scales") == "block128"
    return blocked or (config.get("fast") is False and _has_short_sums(device))


def in_gluon(config: Config) -> bool:
    """Whether the config is one of Gluon; Triton's limits of sums in a thread are not its own."""
    return config.get("loads") == GLUON


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    if in_gluon(config):
        return True
    sums = integer(config, "BLOCK_M") * integer(config, "BLOCK_N")
    held = sums * (2 if _promotes(config, workload, device) else 1)
    return held <= _MOST_SUMS * threads(config, device)


def _groups_rows(config: Config, workload: Workload, device: Device) -> bool:
    rows, cols = _tiles(config, workload, "M"), _tiles(config, workload, "N")
    queued = rows > 1 < cols and rows * cols > programs_at_once(device)
    return integer(config, "GROUP_M") == 1 or queued


def _split_has_work(config: Config, workload: Workload, device: Device) -> bool:
    splits = integer(config, "SPLIT_K")
    return splits == 1 or _tiles(config, workload, "K") >= 2 * splits


def _split_is_needed(config: Config, workload: Workload, device: Device) -> bool:
    splits = integer(config, "SPLIT_K")
    programs = _output_tiles(config, workload) * splits
    return splits == 1 or programs <= _ENOUGH * programs_at_once(device)


def _persistence_pays(config: Config, workload: Workload, device: Device) -> bool:
    several = _output_tiles(config, workload) > programs_at_once(device)
    return not config.get("persistent") or (several and integer(config, "SPLIT_K") == 1)


def _multiplies_float8(device: Device) -> bool:
    return has_capability(device, 89)


def _has_short_sums(device: Device) -> bool:
    """Whether the tensor cores keep fewer bits of sums of float8 products than float32 has."""
    return has_capability(device, 89) and not has_capability(device, 100)


def _has_float8(config: Config, workload: Workload, device: Device) -> bool:
    return config.get("dot") != "float8" or _multiplies_float8(device)


def _needs_float16(config: Config, workload: Workload, device: Device) -> bool:
    return config.get("dot") != "float16" or not _multiplies_float8(device)


def _has_fast_sums(config: Config, workload: Workload, device: Device) -> bool:
    return not config.get("fast") or _has_short_sums(device)


def _swap_fills(config: Config, workload: Workload, device: Device) -> bool:
    """Transposed tiles have at least the 64 rows, and the 4 warps, of one instruction."""
    tall = integer(config, "BLOCK_N") >= 64 and integer(config, "num_warps") >= 4
    return not config.get("swap") or tall


CONSTRAINTS = (
    Constraint("shared", _fits_shared, "tiles x stages do not fit into shared memory"),
    Constraint("registers", _fits_registers, f"a thread would hold more than {_MOST_SUMS} sums"),
    Preference("group", _groups_rows, "all tiles run at once, so their order does not matter"),
    Preference("split_work", _split_has_work, "each split would have fewer than two steps of K"),
    Preference("split_need", _split_is_needed, "there are tiles enough without splitting so much"),
    Preference("persistent", _persistence_pays, "all tiles, or all splits of K, run at once"),
    DESCRIPTORS,
    Constraint("float8", _has_float8, "the target has no products of float8_e4m3fn"),
    Constraint("float16", _needs_float16, "the target has products of float8_e4m3fn"),
    Constraint("fast", _has_fast_sums, "all sums of the target are in float32"),
    Constraint("swap", _swap_fills, "a transposed tile has at least 64 rows and 4 warps"),
)


# -- the launches ----------------------------------------------------------------------------------
def scaled_launches(
    workload: Workload, config: Config, tensors: Tensors, scales: str
) -> list[Launch]:
    """The product and, where K is split, the sum of its parts."""
    if integer(config, "SPLIT_K") == 1:
        return [_tile_launch(workload, config, tensors, tensors["out"], scales)]
    partial = tensors["partial"]
    return [
        _tile_launch(workload, config, tensors, partial, scales),
        sum_launch(partial, tensors["out"]),
    ]


def sum_launch(partial: torch.Tensor, out: torch.Tensor) -> Launch:
    """out = the sum of partial[splits, M, N]."""
    elements = out.numel()
    constants = {
        "SPLIT_K": partial.shape[0],
        "BLOCK": _SUM_BLOCK,
        "EVEN": elements % _SUM_BLOCK == 0,
    }
    grid = (ceil_div(elements, _SUM_BLOCK),)
    return Launch(sum_splits_kernel, grid, (partial, out, elements), constants)


def _tile_launch(
    workload: Workload, config: Config, tensors: Tensors, out: torch.Tensor, scales: str
) -> Launch:
    m, n, k = workload.sizes("M", "N", "K")
    persistent = bool(config.get("persistent"))
    tiles = _output_tiles(config, workload)
    grid = min(tiles, sm_count(tensors["a"])) if persistent else tiles
    arguments = (
        *_operands(config, tensors),
        tensors["a_scale"],
        tensors["b_scale"],
        out,
        *(m, n, k),
        *(tensors[name].stride(0) for name in ("a", "b")),
        out.stride(-2),
    )
    splits = integer(config, "SPLIT_K")
    constants = {
        **_tile_constants(workload, config, scales),
        "ALIGN_N": min(alignment(n), alignment(out.stride(-2))),
        "PERSISTENT": persistent,
    }
    return Launch(scaled_matmul_kernel, (grid, splits), arguments, constants)


def _operands(config: Config, tensors: Tensors) -> tuple[Any, Any]:
    """a and b as they are, as bytes, or as descriptors of their tiles."""
    a, b = tensors["a"], tensors["b"]
    if config.get("dot") == "float16":
        a, b = as_bytes(a), as_bytes(b)
    if config.get("loads") != "descriptor":
        return a, b
    rows, cols, depth = (integer(config, f"BLOCK_{dim}") for dim in "MNK")
    return (
        TensorDescriptor.from_tensor(a, [rows, depth]),
        TensorDescriptor.from_tensor(b, [cols, depth]),
    )


def _tile_constants(workload: Workload, config: Config, scales: str) -> dict[str, Any]:
    m, n, k = workload.sizes("M", "N", "K")
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages")
    even = {
        f"EVEN_{dim}": workload.size(dim) % integer(config, f"BLOCK_{dim}") == 0 for dim in "MNK"
    }
    return {
        **{name: config[name] for name in names},
        "GROUP_M": integer(config, "GROUP_M"),
        "SPLIT_K": integer(config, "SPLIT_K"),
        **even,
        "ALIGN_K": alignment(k),
        # Tiles at the edge compute addresses of up to one block beyond the matrix.
        "WIDE": max((m + 256) * k, (n + 256) * k, (m + 256) * n) >= 2**31,
        "SCALES": scales,
        "DOT": config.get("dot", "int8"),
        "PROMOTE": min(GROUP, integer(config, "BLOCK_K")) if config.get("fast") is False else 0,
        "SWAP": bool(config.get("swap")),
        "DESCRIPTORS": config.get("loads") == "descriptor",
    }
