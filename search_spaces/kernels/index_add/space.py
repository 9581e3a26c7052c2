"""The space of the index add: atomics or lists, and the tile of a program."""

from __future__ import annotations

from search_spaces.block_sizes import next_power_of_two
from search_spaces.constraints import Preference
from search_spaces.kernels.limits import (
    BLOCK_EXISTS,
    fits_registers,
    integer,
    keeps_threads_busy,
    programs_at_once,
)
from search_spaces.params import Choice, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: How often the numbers of rows come: all equally, or as words do, the n-th one 1 / n as often.
SPREADS = ("uniform", "zipf")
#: Elements that a thread holds at most and at least.
_MOST_HELD, _LEAST_HELD = 32, 2
_MOST_CHAINS = 16
#: Elements of a program in the usual config, of which a warp of rows in lists has them all, and
#: the columns from which a row has a program of its own.
_USUAL_TILE, _USUAL_WARPS, _WIDE = 1024, 4, 1024
#: Tiles of a table for each multiprocessor up to which lists leave the device idle.
_FEW = 4


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
    return SearchSpace(parameters, CONSTRAINTS, kernel="index_add", admits=("BLOCK_R", "BLOCK_D"))


def default_point(workload: Workload, device: Device) -> Config:
    """Lists, one for each row; atomic additions of float32 where lists are few or uneven.

    A program walks along the longest list of its rows. Narrow rows share one warp, so that others
    go on meanwhile; a wide row has 2,048 columns in 4 warps. Caches add float32 themselves, at the
    rate of the rows that come, while other types are added in a loop of reads and exchanges.
    """
    dim, vocab = (next_power_of_two(workload.size(name)) for name in ("dim", "vocab"))
    tiles = workload.size("vocab") * workload.size("dim") // _USUAL_TILE
    uneven = workload["spread"] == "zipf" or tiles < _FEW * programs_at_once(device)
    atomic = workload["dtype"] == "float32" and uneven
    wide = not atomic and dim >= _WIDE
    tile = 2 * _USUAL_TILE if wide else _USUAL_TILE
    cols = min(tile, dim)
    rows = 1 if wide else min(max(1, tile // cols), vocab, 32)
    if not atomic:
        warps = max(1, min(_USUAL_WARPS, cols // 256 if cols >= _WIDE // 2 else 1))
        return {"method": "lists", "BLOCK_R": rows, "BLOCK_D": cols, "num_warps": warps,
                "chains": 1}  # fmt: skip
    warps = max(1, min(_USUAL_WARPS, rows * cols // (_USUAL_TILE // _USUAL_WARPS)))
    return {"method": "atomic", "BLOCK_R": rows, "BLOCK_D": cols, "num_warps": warps}


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
    Preference("chains", _rows_repeat, "most lists would be empty"),
)
