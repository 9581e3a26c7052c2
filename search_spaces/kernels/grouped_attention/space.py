"""The space of attention of heads in groups: which blocks of queries and keys may be taken."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.bound import BoundSpace
from search_spaces.constraints import Constraint, Preference
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.features import tile_features
from search_spaces.kernels.limits import (
    DESCRIPTORS,
    block_parameter,
    fits_shared,
    has_capability,
    integer,
    threads,
)
from search_spaces.kernels.masked_attention import Mask, group_of, longest_length, mask_of
from search_spaces.params import Boolean, Choice, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Value, Workload
from search_spaces.space import SearchSpace

#: Usual tiles without tuning; the default config is the first that is feasible.
_USUAL: tuple[dict[str, int], ...] = (
    {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3},
    {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 2},
    {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2},
    {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 1},
    {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1},
)
#: The fewest queries of a matrix instruction on Hopper, and of any.
_WHOLE_TILE, _LEAST_TILE = 64, 16
#: Values in float32 that a thread holds: weights count half again, as operands of the product.
_MOST_HELD = 224


@dataclass(frozen=True, slots=True)
class Problem:
    """What the space depends on; of packed sequences, the longest."""

    queries: int
    keys: int
    group: int
    head_dim: int
    value_dim: int
    mask: Mask
    #: Rows of queries of one head over all sequences, and their heads.
    rows: int
    heads: int


def problem_of(workload: Workload) -> Problem:
    """The sizes of a workload of either kernel."""
    dim = workload.size("head_dim")
    packed = "tokens" in workload
    if packed:
        keys = queries = longest(workload)
        rows, heads = workload.sizes("tokens", "q_heads")
    else:
        queries, keys = workload.sizes("queries", "keys")
        rows, heads = queries, workload.size("batch") * workload.size("q_heads")
    value_dim = int(str(workload.get("value_dim", dim)))
    group, mask = group_of(workload), mask_of(workload)
    return Problem(queries, keys, group, dim, value_dim, mask, rows, heads)


def longest(workload: Workload) -> int:
    """Tokens of the longest packed sequence."""
    return longest_length(workload.size("tokens"), workload.size("sequences"))


def grouped_space(workload: Workload, kernel: str) -> SearchSpace:
    """Blocks of 64 to 256 queries and 32 to 256 keys; from 16 queries on where there are few, and
    from 32 on for head dims above 128.

    `pack`: the heads of a group share a block of queries. `order`: programs take one head after
    the other (`head`), or the first block of every head, then the second (`block`). Causal problems
    may mask the blocks that a query does not see whole in separate loops (`split`).
    """
    problem = problem_of(workload)
    many = problem.queries >= _WHOLE_TILE
    rows = problem.queries * problem.group
    least = _WHOLE_TILE if many else _LEAST_TILE
    if many and problem.head_dim > 128:
        least = _WHOLE_TILE // 2
    parameters: list[Parameter] = [
        block_parameter("BLOCK_M", rows, least, 256),
        block_parameter("BLOCK_N", problem.keys, 32, 256),
        PowerOfTwo("num_warps", 4 if many else 1, 8),
        Integer("num_stages", 1, 4),
        Choice("loads", ("pointer", "descriptor")),
        Boolean("specialize", when={"loads": ("descriptor",)}),
        Choice("order", ("head", "block")),
    ]
    if problem.group > 1:
        parameters.append(Boolean("pack"))
    if problem.mask.causal:
        parameters.append(Boolean("split"))
    return SearchSpace(
        parameters,
        CONSTRAINTS,
        kernel=kernel,
        features=features,
        admits=("BLOCK_M", "BLOCK_N", "num_warps"),
    )


def default_point(bound: BoundSpace) -> Config:
    """The config without tuning: FlashAttention-2's usual tile, cut to the problem.

    Heads of a group share a block where a head alone has too few queries for one.
    """
    problem = problem_of(bound.workload)
    pack = problem.queries < _USUAL[0]["BLOCK_M"]
    rows = problem.queries * (problem.group if pack else 1)
    split = problem.mask.window == 0
    for tile in _USUAL:
        cut = {
            item.name: min(tile[item.name], int(str(item.values()[-1])))
            for item in bound.parameters
            if item.name in tile
        }
        cut["BLOCK_M"] = min(cut["BLOCK_M"], max(_LEAST_TILE, next_power_of_two(rows)))
        chosen: dict[str, Value] = {"loads": "pointer", "order": "head"}
        chosen |= {"pack": pack, "split": split}
        config = bound.complete({**cut, **chosen})
        if bound.feasible(config):
            return config
    bound.require_feasible()
    return next(bound.enumerate())


def packed_heads(config: Config, problem: Problem) -> int:
    """Heads of queries in a block."""
    return problem.group if config.get("pack") else 1


def features(config: Config, workload: Workload, device: Device) -> tuple[float, ...]:
    """The features of its tiles, and log2 of the queries and the keys of a block."""
    problem = problem_of(workload)
    rows, keys = integer(config, "BLOCK_M"), integer(config, "BLOCK_N")
    owners = problem.heads // packed_heads(config, problem)
    blocks = ceil_div(problem.rows * packed_heads(config, problem), rows)
    launch = tile_features(
        device,
        shared_bytes=_shared_bytes(config, workload),
        sums=rows * (keys + problem.value_dim),
        warps=integer(config, "num_warps"),
        programs=owners * blocks,
    )
    return *launch, log2(rows), log2(keys)


def _shared_bytes(config: Config, workload: Workload) -> int:
    """The queries, and the keys and values of every stage."""
    problem = problem_of(workload)
    both = problem.head_dim + problem.value_dim
    elements = integer(config, "BLOCK_M") * problem.head_dim
    elements += integer(config, "num_stages") * integer(config, "BLOCK_N") * both
    return elements * ELEMENT_BYTES[workload.text("dtype")]


def _fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    return fits_shared(_shared_bytes(config, workload), device)


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    columns = 3 * integer(config, "BLOCK_N") // 2 + problem_of(workload).value_dim
    return integer(config, "BLOCK_M") * columns <= _MOST_HELD * threads(config, device)


def _warps_have_rows(config: Config, workload: Workload, device: Device) -> bool:
    warps = integer(config, "num_warps")
    return warps <= 4 or integer(config, "BLOCK_M") >= 16 * warps


def _block_has_rows(config: Config, workload: Workload, device: Device) -> bool:
    problem = problem_of(workload)
    rows = problem.queries * packed_heads(config, problem)
    return integer(config, "BLOCK_M") <= max(_LEAST_TILE, next_power_of_two(rows))


def _pipelines_keys(config: Config, workload: Workload, device: Device) -> bool:
    problem, rows = problem_of(workload), integer(config, "BLOCK_M")
    keys = problem.keys
    if problem.mask.window:
        keys = min(keys, problem.mask.window + rows // packed_heads(config, problem))
    stages = integer(config, "num_stages")
    return stages <= _least_stages(problem) or ceil_div(keys, integer(config, "BLOCK_N")) >= stages


def _parts_are_pipelined(config: Config, workload: Workload, device: Device) -> bool:
    return integer(config, "num_stages") >= _least_stages(problem_of(workload))


def _least_stages(problem: Problem) -> int:
    """A head dim in two parts needs a pipelined loop.

    Triton 3.6 builds code for cuda:90 from the other that accesses illegal addresses (seen with
    head and value dims of 96 in all 36 such configs, and in none of 196 with more stages).
    """
    dims = problem.head_dim, problem.value_dim
    return 1 if all(next_power_of_two(dim) == dim for dim in dims) else 2


def _can_specialize(config: Config, workload: Workload, device: Device) -> bool:
    """Where Triton gives loads, products and exponentials of a loop to warps of their own.

    On cuda:90, Triton 3.7 fails on these loops with 4 warps and leaves them alone with 8.
    """
    return not config.get("specialize") or (
        has_capability(device, 100) and integer(config, "num_stages") > 1
    )


CONSTRAINTS = (
    Constraint("shared", _fits_shared, "queries, keys and values do not fit into shared memory"),
    Constraint("registers", _fits_registers, f"a thread would hold more than {_MOST_HELD} values"),
    Preference("warps", _warps_have_rows, "each of eight warps needs 16 queries"),
    Preference("rows", _block_has_rows, "a block would have more rows than there are queries"),
    Preference("pipeline", _pipelines_keys, "there are too few blocks of keys to load ahead"),
    Constraint("parts", _parts_are_pipelined, "a head dim in two parts needs two stages or more"),
    Constraint(
        "specialize", _can_specialize, "specialised warps need cuda:100 and a loop of stages"
    ),
    DESCRIPTORS,
)
