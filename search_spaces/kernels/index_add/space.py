"""The space of the index add: atomics or lists, and the tile of a program."""

from __future__ import annotations

from search_spaces.block_sizes import next_power_of_two
from search_spaces.constraints import Constraint
from search_spaces.kernels.launch_limits import (
    BLOCK_EXISTS,
    fits_registers,
    integer,
    keeps_threads_busy,
)
from search_spaces.params import Choice, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: How often the numbers of rows come: all equally, or as words do, the n-th one 1 / n as often.
SPREADS = ("uniform", "zipf")
#: Elements that a thread holds at most and at least.
_MOST_HELD, _LEAST_HELD = 32, 2
_MOST_CHAINS = 16
#: Elements of a program in the usual config.
_USUAL_TILE, _USUAL_WARPS = 1024, 4


def index_add_space(workload: Workload) -> SearchSpace:
    """`method`: atomic additions of each row, or lists of the rows to add; with `chains` lists for
    each row of the table, as many of its rows are read at a time."""
    widest = min(4096, next_power_of_two(workload.size("dim")))
    parameters: list[Parameter] = [
        Choice("method", ("lists", "atomic")),
        PowerOfTwo("BLOCK_R", 1, min(32, next_power_of_two(workload.size("vocab")))),
        PowerOfTwo("BLOCK_D", min(64, widest), widest),
        PowerOfTwo("num_warps", 1, 16),
        PowerOfTwo("chains", 1, _MOST_CHAINS, when={"method": ("lists",)}),
    ]
    return SearchSpace(parameters, CONSTRAINTS, kernel="index_add")


def default_point(workload: Workload) -> Config:
    """Lists, one for each row, and tiles of up to 1,024 elements by 4 warps."""
    dim, vocab = (next_power_of_two(workload.size(name)) for name in ("dim", "vocab"))
    cols = min(_USUAL_TILE, dim)
    rows = min(max(1, _USUAL_TILE // cols), vocab, 32)
    warps = max(1, min(_USUAL_WARPS, rows * cols // (_USUAL_TILE // _USUAL_WARPS)))
    usual: Config = {"method": "lists", "BLOCK_R": rows, "BLOCK_D": cols}
    return {**usual, "num_warps": warps, "chains": 1}


def _tile(config: Config, workload: Workload) -> int:
    """Sums of a program: each list has its own."""
    rows = integer(config, "BLOCK_R") * integer(config, "chains")
    return rows * integer(config, "BLOCK_D")


def _rows_repeat(config: Config, workload: Workload, device: Device) -> bool:
    average = workload.size("tokens") / workload.size("vocab")
    chains = integer(config, "chains")
    return chains == 1 or chains <= 2 * average or workload["spread"] == "zipf"


CONSTRAINTS = (
    BLOCK_EXISTS,
    fits_registers(_tile, _MOST_HELD),
    keeps_threads_busy(_tile, _LEAST_HELD),
    Constraint("chains", _rows_repeat, "most lists would be empty"),
)
