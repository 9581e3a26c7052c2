"""The space of few rows times a matrix: how a program reads its part of the weights.

Every weight is read once, so that what counts is how many bytes are in flight. `multiply_add` reads
weights straight into registers (or, with stages, through shared memory) and adds products lane by
lane; `dot` gives tiles of weights to the tensor cores, padded to 16 rows. Imports no torch.
"""

from __future__ import annotations

from search_spaces.block_sizes import ceil_div
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
from search_spaces.params import Choice, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: Rows of a `dot`, the fewest that tensor cores take.
DOT_ROWS = 16
#: The most rows for which a lane can keep a sum per row.
_MOST_ADDED_ROWS = 4
#: The most rows of weights of a `multiply_add`, and its least part of a row.
_MOST_ADDED, _LEAST_LANES = 16, 128
#: The longest part of a row in a `dot`.
_LONGEST_DOT = 512
#: float32 values that a thread of a `multiply_add` may hold: sums, and weights just read.
_MOST_HELD = 128
_WORD_BYTES = 16
#: Programs for each multiprocessor beyond which K is not split.
_ENOUGH = 8
#: Usual tiles without tuning; the default config is the first that is feasible.
_USUAL_ADDED = tuple(
    {"BLOCK_N": rows, "BLOCK_K": lanes, "num_warps": 4, "num_stages": 1}
    for lanes in (1024, 512)
    for rows in (4, 2, 1)
)
_USUAL_DOT = tuple(
    {"BLOCK_N": 32, "BLOCK_K": lanes, "num_warps": 4, "num_stages": stages}
    for lanes, stages in ((256, 4), (256, 3), (128, 3), (64, 2))
)


def uses_dot(config: Config, workload: Workload) -> bool:
    """Whether a config multiplies by tensor cores; above four rows, all do."""
    return config.get("product", _products(workload)[0]) == "dot"


def gemv_space(workload: Workload) -> SearchSpace:
    """BLOCK_N rows of weights by BLOCK_K columns at a time, and splits of K.

    float32 has no `dot` for up to four rows, since it would not use tensor cores.
    """
    products = _products(workload)
    narrowest = DOT_ROWS if products[0] == "dot" else 1
    parameters: list[Parameter] = [Choice("product", products)] if len(products) > 1 else []
    parameters += [
        block_parameter("BLOCK_N", workload.size("N"), narrowest, 128),
        block_parameter("BLOCK_K", workload.size("K"), 64, 4096),
        PowerOfTwo("num_warps", 1, 8),
        Integer("num_stages", 1, 5),
        PowerOfTwo("SPLIT_K", 1, 16),
    ]
    return SearchSpace(
        parameters,
        CONSTRAINTS,
        kernel="gemv",
        features=features,
        admits=("BLOCK_N", "BLOCK_K", "SPLIT_K"),
    )


def default_point(bound: BoundSpace) -> Config:
    """Four rows of weights by four warps; tiles of 32 rows where tensor cores multiply."""
    product = _products(bound.workload)[0]
    for tile in _USUAL_DOT if product == "dot" else _USUAL_ADDED:
        config = bound.complete({"product": product, **tile, "SPLIT_K": 1})
        if bound.feasible(config):
            return config
    bound.require_feasible()
    return next(bound.enumerate())


def features(config: Config, workload: Workload, device: Device) -> tuple[float, ...]:
    """The features of its tiles, of which `sums` are the weights that a program holds."""
    return tile_features(
        device,
        shared_bytes=_shared_bytes(config, workload),
        sums=_tile(config),
        warps=integer(config, "num_warps"),
        programs=_programs(config, workload),
    )


def _products(workload: Workload) -> tuple[str, ...]:
    if workload.size("M") > _MOST_ADDED_ROWS:
        return ("dot",)
    single = workload["dtype"] == "float32"
    return ("multiply_add",) if single else ("multiply_add", "dot")


def _tile(config: Config) -> int:
    return integer(config, "BLOCK_N") * integer(config, "BLOCK_K")


def _programs(config: Config, workload: Workload) -> int:
    blocks = ceil_div(workload.size("N"), integer(config, "BLOCK_N"))
    return blocks * integer(config, "SPLIT_K")


def _steps(config: Config, workload: Workload) -> int:
    return ceil_div(workload.size("K"), integer(config, "BLOCK_K"))


def _shared_bytes(config: Config, workload: Workload) -> int:
    """All stages of weights and rows; a `multiply_add` of one stage has none."""
    stages, rows = integer(config, "num_stages"), integer(config, "BLOCK_N")
    if uses_dot(config, workload):
        rows += DOT_ROWS
    elif stages == 1:
        return 0
    else:
        rows += workload.size("M")
    return stages * rows * integer(config, "BLOCK_K") * ELEMENT_BYTES[workload.text("dtype")]


def _tile_exists(config: Config, workload: Workload, device: Device) -> bool:
    rows, lanes = integer(config, "BLOCK_N"), integer(config, "BLOCK_K")
    if uses_dot(config, workload):
        return rows >= DOT_ROWS and lanes <= _LONGEST_DOT
    return rows <= _MOST_ADDED and lanes >= min(_LEAST_LANES, workload.size("K"))


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    copies = workload.size("M") + 1
    if uses_dot(config, workload):
        # Without stages ahead, weights go to shared memory through registers.
        copies = 2 if config["num_stages"] == 1 else 0
    return _tile(config) * copies <= _MOST_HELD * threads(config, device)


def _fills_words(config: Config, workload: Workload, device: Device) -> bool:
    word = _WORD_BYTES // ELEMENT_BYTES[workload.text("dtype")]
    return config["num_warps"] == 1 or _tile(config) >= word * threads(config, device)


def _warps_have_rows(config: Config, workload: Workload, device: Device) -> bool:
    # A warp's instruction takes 16 rows of weights and 8 of the 16 padded rows.
    few = integer(config, "num_warps") <= integer(config, "BLOCK_N") // 8
    return few or not uses_dot(config, workload)


def _fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    return fits_shared(_shared_bytes(config, workload), device)


def _split_has_work(config: Config, workload: Workload, device: Device) -> bool:
    splits = integer(config, "SPLIT_K")
    return splits == 1 or _steps(config, workload) >= 2 * splits


def _split_is_needed(config: Config, workload: Workload, device: Device) -> bool:
    most = _ENOUGH * programs_at_once(device)
    return config["SPLIT_K"] == 1 or _programs(config, workload) <= most


def _pipelines(config: Config, workload: Workload, device: Device) -> bool:
    steps = ceil_div(_steps(config, workload), integer(config, "SPLIT_K"))
    return integer(config, "num_stages") <= max(steps, 1)


CONSTRAINTS = (
    Constraint("tile", _tile_exists, "its product does not take such tiles"),
    Constraint("registers", _fits_registers, f"a thread would hold more than {_MOST_HELD} values"),
    Preference("words", _fills_words, "threads would load less than a word of 16 bytes"),
    Preference("rows", _warps_have_rows, "warps would multiply the same rows"),
    Constraint("shared", _fits_shared, "tiles x stages do not fit into shared memory"),
    Preference("split_work", _split_has_work, "each split would have fewer than two steps of K"),
    Preference("split_need", _split_is_needed, "there are enough programs with fewer splits"),
    Preference("pipeline", _pipelines, "a program has too few steps to load so far ahead"),
)
