"""The calls of operators that a program makes, or would make in place of torch's functions."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from search_spaces.errors import TunerError
from search_spaces.recorded.model_calls import ModelCall, read_calls
from search_spaces.records import Workload
from tuner.ops.call_counts import Scope
from tuner.ops.choosing import EAGER, choose
from tuner.ops.problem import Problem
from tuner.optimizing.program import Outcome, Program
from tuner.optimizing.step_record import CallTime, StepRecord, sort_calls, time_call


def record_program(plain: Program, replaced: Program, tables: Path) -> tuple[Outcome, StepRecord]:
    """Run a program as it is written, and with operators.

    tables: a folder that decides before those of `TUNER_TABLES`. The seconds of the record are the
    sum of its calls. Raises `TunerError` where a run fails, or makes no call of an operator.
    """
    plain.say("running the program as it is written")
    outcome, direct = _count_calls(plain)
    # Compiled graphs have torch's functions where no entry is known.
    eager = replaced.with_values({"TORCH_COMPILE_DISABLE": "1"})
    plain.say(f"recording its calls with {eager.way}")
    _, calls = _count_calls(eager)
    if not calls:
        raise TunerError(
            "no call of an operator was recorded",
            "it must call functions of docs/ops.md on a GPU, in a Python that can import tuner",
        )
    with Scope(tables).active():
        timed = sort_calls(_time(call, direct.get(kind)) for kind, call in calls.items())
    return outcome, StepRecord(sum(each.seconds for each in timed), timed)


def _count_calls(program: Program) -> tuple[Outcome, dict[tuple[str, Workload], ModelCall]]:
    with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        outcome = program.with_values({"TUNER_RECORD": folder, "TUNER_RECORD_ALL": "1"}).run()
        calls = read_calls(Path(folder)) if any(Path(folder).iterdir()) else []
    return outcome, {(call.kernel, call.workload): call for call in calls}


def _time(call: ModelCall, direct: ModelCall | None) -> CallTime:
    """direct: calls of the operator itself. Where torch runs these, its function is replaced and
    counted once more."""
    choice = choose(Problem(call.kernel, call.dims, {}, {}))
    twice = direct.count if direct is not None and choice.implementation == EAGER else 0
    return time_call(replace(call, count=max(1, call.count - twice)), choice)
