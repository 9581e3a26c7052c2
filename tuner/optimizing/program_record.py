"""The calls of operators that a program makes, or would make in place of torch's functions, and the
launches of its libraries' Triton kernels."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from search_spaces.errors import TunerError
from search_spaces.recorded.model_calls import ModelCall, read_calls
from search_spaces.records import Workload
from tuner.capturing import child
from tuner.ops.call_counts import Scope
from tuner.ops.choosing import EAGER, choose
from tuner.ops.problem import Problem
from tuner.optimizing.call_times import CallTime, StepRecord
from tuner.optimizing.launch_record import time_launches
from tuner.optimizing.program import Outcome, Program
from tuner.optimizing.step_record import sort_calls, time_call
from tuner.runtime._applications import VARIABLE


def record_program(plain: Program, replaced: Program, tables: Path) -> tuple[Outcome, StepRecord]:
    """Run a program as it is written, and with operators.

    tables: a folder that decides before those of `TUNER_TABLES`. The seconds of the record are the
    sum of its calls. Raises `TunerError` where a run fails, or makes no call that can be recorded.
    """
    plain.say("running the program as it is written")
    outcome, direct = _count_calls(plain)
    # Compiled graphs have torch's functions where no entry is known. A library's kernel is recorded
    # with its own config.
    eager = replaced.with_values(
        {"TORCH_COMPILE_DISABLE": "1", VARIABLE: plain.environment.get(VARIABLE, "")}
    )
    plain.say(f"recording its calls with {eager.way}")
    with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        _, calls = _count_calls(eager.with_values(child.ask(Path(folder))))
        launched = child.read_recorded(Path(folder))
    with Scope(tables).active():
        timed = [_time(call, direct.get(kind)) for kind, call in calls.items()]
        timed += time_launches(launched, tables, runs=1) if launched else []
    if not timed:
        raise TunerError(
            "no call of an operator or of a Triton kernel was recorded",
            "it must call functions of docs/ops.md or launch kernels of Triton on a GPU, in a "
            "Python that can import tuner",
        )
    return outcome, StepRecord(sum(each.seconds for each in timed), sort_calls(timed))


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
