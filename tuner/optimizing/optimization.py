"""`optimize`: record a step, tune what is worth it, and keep what makes the whole step faster."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from search_spaces.errors import TunerError
from search_spaces.recorded.model_calls import ModelCall, write_calls
from tuner import runtime
from tuner.api import session
from tuner.ops.call_counts import Scope
from tuner.ops.operator import OPERATORS
from tuner.ops.patching import Replacing
from tuner.optimizing.candidate_tables import copy_tables, list_new, publish_tables, tune_calls
from tuner.optimizing.optimize_result import OptimizeResult, TunedCall
from tuner.optimizing.step_comparison import NEW, PLAIN, TODAY, judge, time_step
from tuner.optimizing.step_record import Side, Step, StepRecord, record_step
from tuner.optimizing.worthwhile_calls import rank_calls
from tuner.settings.sections import parse_duration

_TABLES = "TUNER_TABLES"


def optimize(
    step: Step,
    *,
    budget: float | str = "10m",
    tables: str | os.PathLike[str] = "tables",
    progress: bool | None = None,
) -> OptimizeResult:
    """Find what makes a step of a program faster, and turn it on where it surely does.

    step: a callable without arguments, eager or compiled, that can run many times, such as one step
    of training. It is recorded with operators of `tuner.ops` in place of torch's functions, as in
    `ops.replaced()`. The calls that no entry of a table serves are tuned, those with the largest
    expected saving first, until the budget ends or nothing is worth it. Then the whole step runs as
    it is written, with operators and today's tables, and with new tables, in turn. Only if it is
    surely faster with new tables than in both other ways, they are written into the folder
    `tables`, which comes first in TUNER_TABLES of this process.

    budget: of the tuning, seconds or text such as "30m". progress: as of `tune`. The folder also
    gets `calls/calls.json`, the kinds of calls of the step. Raises `TunerError` for a budget that
    is no duration, and what the step raises.
    """
    folder = Path(tables).absolute()
    deadline_s = time.monotonic() + _seconds(budget)
    record = record_step(step, folder)
    calls = _write_record(folder / "calls" / "calls.json", record)
    with tempfile.TemporaryDirectory(prefix="tuner-") as made, session(progress=progress) as opened:
        copy_tables(folder, Path(made))
        tuned = tune_calls(opened, rank_calls(record), deadline_s, Path(made))
        opened.close()  # its workers would disturb the comparison
        return try_tables(step, record, tuned, Path(made), folder, calls)


def try_tables(
    step: Step,
    record: StepRecord,
    tuned: list[TunedCall],
    candidates: Path,
    tables: Path,
    calls: Path | None = None,
) -> OptimizeResult:
    """Compare the step with and without candidate tables; publish them if it is surely faster."""
    runtime.clear()
    sides = {TODAY: Side(Scope(tables), Replacing()), PLAIN: Side(Scope(tables))}
    if list_new(candidates, tables):
        sides[NEW] = Side(Scope(candidates), Replacing())
    found = judge(time_step(step, sides))
    written = publish_tables(candidates, tables) if found.ships else []
    if found.ships:
        turn_on(tables)
    return OptimizeResult(record, tuple(tuned), found, tables, tuple(written), calls)


def turn_on(tables: Path) -> None:
    """Put a folder first in TUNER_TABLES of this process, and forget operators' decisions."""
    others = [each for each in os.environ.get(_TABLES, "").split(os.pathsep) if each]
    kept = [each for each in others if each != f"{tables}"]
    os.environ[_TABLES] = os.pathsep.join([f"{tables}", *kept])
    runtime.clear()
    for operator in OPERATORS.values():
        operator.forget()


def _write_record(path: Path, record: StepRecord) -> Path:
    calls = [
        ModelCall(each.kernel, each.dims, each.count, record.share(each)) for each in record.calls
    ]
    return write_calls(path, calls)


def _seconds(budget: float | str) -> float:
    try:
        found = parse_duration(budget)
    except ValueError as error:
        raise TunerError(f"budget: {error}", 'for example "10m"') from None
    if not isinstance(found, int | float) or not found > 0:
        raise TunerError(f"budget: {budget!r} is no duration", 'for example "10m"')
    return float(found)
