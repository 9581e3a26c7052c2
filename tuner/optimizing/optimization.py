"""Record a step or a program, tune what is worth it, and keep what makes the whole faster."""

from __future__ import annotations

import inspect
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from search_spaces.errors import TunerError
from search_spaces.recorded.model_calls import ModelCall, write_calls
from tuner import runtime
from tuner.api import session
from tuner.ops.call_counts import Scope
from tuner.ops.operator import OPERATORS
from tuner.ops.patching import PatchedModels
from tuner.optimizing.call_times import Step, StepRecord
from tuner.optimizing.candidate_tables import (
    copy_tables,
    keep_placed,
    list_new,
    publish_tables,
    tune_calls,
)
from tuner.optimizing.launch_record import find_placed
from tuner.optimizing.optimize_result import OptimizeResult, TunedCall
from tuner.optimizing.program import Outcome, Program, time_programs
from tuner.optimizing.program_record import record_program
from tuner.optimizing.step_comparison import (
    LONGEST_S,
    NEW,
    PLAIN,
    TODAY,
    Times,
    is_surely_faster,
    judge,
    time_step,
)
from tuner.optimizing.step_record import Operators, Side, find_operators, record_step
from tuner.optimizing.worthwhile_calls import rank_calls
from tuner.settings.sections import read_seconds

_TABLES = "TUNER_TABLES"
#: Tables of libraries' kernels that `optimize` has turned on, by their folder.
_applied: dict[Path, runtime.Application] = {}
#: Times the whole in all ways; the folder is of candidate tables.
Compare: TypeAlias = Callable[[Path | None], Times]


def optimize(
    step: Step,
    *,
    budget: float | str = "10m",
    tables: str | os.PathLike[str] = "tables",
    progress: bool | None = None,
) -> OptimizeResult:
    """Find what makes a step of a program faster, and turn it on where it surely does.

    step: a callable without arguments, eager or compiled, that can run many times, such as one step
    of training. It is recorded with operators in the models that it calls, as `ops.patch` puts them
    there; without such a model, in place of torch's functions, as in `ops.replaced()`. Launches of
    other Triton kernels are recorded as by `capture`. The calls that no entry of a table serves are
    tuned, those with the largest expected saving first, until the budget ends or nothing is worth
    it. Then the whole step runs as it is written, with operators and today's tables, and with new
    tables, in turn; kernels of libraries are launched from the tables as by `apply`. Only if it is
    surely faster with new tables than in both other ways, they are written into the folder
    `tables`, which comes first in TUNER_TABLES of this process and is applied to it. If it is
    surely faster with operators, models stay patched.

    budget: of the tuning, seconds or text such as "30m"; a Ctrl-C ends it, too. A comparison takes
    as long at most, or a minute. progress: as of `tune`. The folder also gets `calls/calls.json`,
    the kinds of calls of operators, and results of the tuning, which are used again. Raises
    `TunerError` for a step with arguments, for a budget that is no duration and in ranks of a
    process group, whose steps would have to keep pace, and what the step raises.
    """
    if runtime.find_ranks() is not None:
        raise TunerError(
            "optimize runs a step in one process, and this is a rank of several",
            "set TUNER_RECORD to a folder, and tune its calls in a campaign (from_model)",
        )
    try:
        inspect.signature(step).bind()
    except TypeError as error:
        hint = "pass a function that needs none, such as lambda: train(batch)"
        raise TunerError(f"the step {step!r:.60}: {error}", hint) from None
    folder, search_s = Path(tables).absolute(), read_seconds("budget", budget)
    operators = find_operators(step)
    record = record_step(step, folder, operators)
    compare = partial(compare_step, step, folder, long_s=min(LONGEST_S, search_s))
    ways = [partial(compare, operators=each) for each in (operators, None)]
    result = _tune(record, search_s, folder, progress, ways)
    is_faster = is_surely_faster(result.comparison.measured)
    if isinstance(operators, PatchedModels) and result.operators and is_faster:
        operators.__enter__()
        return replace(result, patched=tuple(type(each).__name__ for each in operators.models))
    return result


def optimize_program(
    program: Program, *, budget: float, tables: Path, progress: bool | None = None
) -> OptimizeResult:
    """Find what makes a whole program faster, as `optimize` does for a step.

    budget: seconds of the tuning. Raises `TunerError` where a run fails or nothing is recorded.
    """
    folder = tables.absolute()
    ways = list_ways(program, folder)
    outcome, record = record_program(ways[PLAIN], ways[TODAY], folder)
    compare = partial(compare_program, program, outcome, folder)
    without = partial(compare, operators=False)
    return _tune(record, budget, folder, progress, [compare, without], outcome)


def _tune(
    record: StepRecord,
    search_s: float,
    folder: Path,
    progress: bool | None,
    compares: Sequence[Compare],
    outcome: Outcome | None = None,
) -> OptimizeResult:
    calls = _write_record(folder / "calls" / "calls.json", record)
    opened = session(progress=progress, database=f"sqlite:///{calls.with_name('tuner.db')}")
    with tempfile.TemporaryDirectory(prefix="tuner-") as made, opened:
        copy_tables(folder, Path(made))
        deadline_s = time.monotonic() + search_s
        tuned = tune_calls(opened, rank_calls(record), deadline_s, Path(made))
        opened.close()  # its workers would disturb the comparison
        result = try_tables(compares, record, tuned, Path(made), folder)
    return replace(result, calls=calls, outcome=outcome)


def try_tables(
    compares: Sequence[Compare],
    record: StepRecord,
    tuned: list[TunedCall],
    candidates: Path,
    tables: Path,
) -> OptimizeResult:
    """Compare the whole with and without candidate tables; publish them if it is surely faster.

    compares: with operators, and without. The latter is asked where no operator is called, and
    about new tables of libraries' kernels alone where all of them do not ship with operators.
    """
    compare, without = compares
    operators = bool(record.operators)
    used = compare if operators else without
    found = judge(used(candidates if list_new(candidates, tables) else None))
    if not found.ships and operators and keep_placed(candidates, tables):
        alone = judge(without(candidates))
        found, operators = (alone, False) if alone.ships else (found, operators)
    written = publish_tables(candidates, tables) if found.ships else []
    if found.ships:
        turn_on(tables)
    return OptimizeResult(record, tuple(tuned), found, tables, tuple(written), operators=operators)


def compare_step(
    step: Step,
    tables: Path,
    candidates: Path | None,
    *,
    operators: Operators | None,
    long_s: float = LONGEST_S,
) -> Times:
    """Run a step in turn, also with candidate tables where there are some."""
    runtime.clear()
    sides = {TODAY: _make_side(tables, operators), PLAIN: Side(Scope(tables))}
    if candidates is not None:
        sides[NEW] = _make_side(candidates, operators)
    return time_step(step, sides, long_s)


def _make_side(tables: Path, operators: Operators | None) -> Side:
    return Side(Scope(tables), operators, find_placed(tables))


def compare_program(
    program: Program,
    outcome: Outcome,
    tables: Path,
    candidates: Path | None,
    *,
    operators: bool = True,
) -> Times:
    """The same for a program. outcome: an earlier run, which says whether it prints a number."""
    ways = list_ways(program, tables, operators=operators)
    if candidates is not None:
        ways[NEW] = list_ways(program, candidates, operators=operators)[TODAY]
    return time_programs(ways, by_clock=outcome.number is None)


def list_ways(program: Program, tables: Path, *, operators: bool = True) -> dict[str, Program]:
    """As it is written, and as `tuner apply` runs it, with `--operators` or without."""
    plain = program.with_first(_TABLES, tables)
    used = plain.with_values({"TUNER_OPERATORS": "1"}, "operators") if operators else plain
    return {PLAIN: plain, TODAY: used.with_first("TUNER_APPLY", tables)}


def turn_on(tables: Path) -> None:
    """Put a folder first in TUNER_TABLES of this process, forget operators' decisions, and launch
    kernels of libraries from it."""
    others = [each for each in os.environ.get(_TABLES, "").split(os.pathsep) if each]
    kept = [each for each in others if each != f"{tables}"]
    os.environ[_TABLES] = os.pathsep.join([f"{tables}", *kept])
    runtime.clear()
    for operator in OPERATORS.values():
        operator.forget()
    if placed := find_placed(tables):
        former, _applied[tables] = _applied.get(tables), runtime.apply(placed)
        if former is not None:
            former.remove()


def _write_record(path: Path, record: StepRecord) -> Path:
    calls = [
        ModelCall(each.kernel, each.dims, each.count, record.share(each))
        for each in record.operators
    ]
    return write_calls(path, calls)
