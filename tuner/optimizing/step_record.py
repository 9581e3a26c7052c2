"""The calls of operators that a step makes, or would make in place of torch's functions."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import torch

from search_spaces import registry
from search_spaces.baselines import is_compiled
from search_spaces.recorded.model_calls import ModelCall
from search_spaces.records import Value, Workload
from tuner.ops.call_counts import Scope
from tuner.ops.choosing import TUNED, Choice
from tuner.ops.operator import OPERATORS, Decision
from tuner.ops.patching import PatchedModels, Replacing, find_models
from workers.measure.timers.cupti import MARKER, list_activities

#: A step of a program, or another call; its result is not used.
Step = Callable[[], object]
#: What makes operators run, while it is active.
Operators: TypeAlias = PatchedModels | Replacing
#: Runs that are timed, and launches before them, whose records a profiler may lose.
_RUNS, _LEADING = 3, 4


@dataclass(frozen=True, slots=True)
class CallTime:
    """The calls of one kind in a step."""

    kernel: str
    #: The workload as tables have it.
    dims: Mapping[str, Value]
    count: int
    #: Time of the fastest baseline for all of them; 0 where none can be run.
    seconds: float
    #: How many times as fast what runs already is, by an entry or a prediction.
    gain: float
    #: Whether there is nothing to tune, since an entry decides.
    known: bool
    #: Why this implementation runs, in a clause.
    reason: str

    @property
    def workload(self) -> Workload:
        return Workload.from_mapping(self.dims)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step: its time on the device, and the calls of operators in it."""

    seconds: float
    calls: tuple[CallTime, ...]
    #: Its time with operators and today's tables; by the times of calls where it is not given.
    with_operators: float | None = None

    def share(self, call: CallTime) -> float:
        """Of the time of the step, 1 at most: calls are timed apart from it."""
        return min(1.0, call.seconds / self.seconds) if self.seconds else 0.0


class Side:
    """One way to run a step: with operators, or as it is written.

    Decisions are its own and are kept from run to run.
    """

    def __init__(self, scope: Scope, operators: Operators | None = None) -> None:
        self.scope, self._operators = scope, operators
        #: Whether the first run after a beginning differs from the next ones.
        self.settles = isinstance(operators, PatchedModels)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Run this way until the block ends."""
        with self.scope.active():
            if self._operators is None:
                yield
            else:
                with self._operators:
                    yield


def find_operators(step: Step) -> Operators:
    """In the models that a step calls; where it calls none, in place of torch's functions."""
    models = find_models(step)
    return PatchedModels(models) if models else Replacing()


def record_step(step: Step, tables: Path, operators: Operators) -> StepRecord:
    """Run a step a few times with operators, and as it is written.

    tables: a folder that decides before those of `TUNER_TABLES`.
    """
    plain, other = Side(Scope(tables)), Side(Scope(tables), operators)
    decisions = _count_calls(step, other)
    direct = _count_calls(step, plain) if isinstance(operators, Replacing) else {}
    calls = [_time_calls(alike, direct.get(kind, [])) for kind, alike in decisions.items()]
    with plain.active():
        seconds, with_operators = device_seconds(step), None
    if torch.cuda.is_available():
        with other.active():
            with_operators = device_seconds(step)
    return StepRecord(seconds, sort_calls(calls), with_operators)


def _count_calls(step: Step, side: Side) -> dict[tuple[str, Workload], list[Decision]]:
    """The decisions of one step by kind of call; a step before it makes them.

    Compiled functions run eagerly: their graphs have torch's functions where no entry is known.
    """
    with side.active(), torch.compiler.set_stance("force_eager"):
        step()
        for operator in OPERATORS.values():
            for decision in operator.decisions():
                decision.calls = 0
        step()
    wait()
    found: dict[tuple[str, Workload], list[Decision]] = defaultdict(list)
    for each in side.scope.decisions:
        if each.calls:
            found[each.kernel, Workload.from_mapping(each.key)].append(each)
    return found


def _time_calls(alike: Sequence[Decision], direct: Sequence[Decision]) -> CallTime:
    """direct: those of calls of the operator itself. Where torch runs these, its function is
    replaced and counted once more."""
    first = alike[0]
    twice = sum(each.calls for each in direct if each.run is None)
    call = ModelCall(first.kernel, first.key, sum(each.calls for each in alike) - twice)
    return time_call(call, replace(first.choice, known=first.choice.known or first.waits))


def time_call(call: ModelCall, choice: Choice) -> CallTime:
    """The time of the fastest baseline of these calls, and what this choice makes of it."""
    seconds = call.count * _time_baselines(call.kernel, call.workload)
    gain = choice.gain if choice.implementation == TUNED else None
    known, reason = choice.known, choice.reason
    return CallTime(call.kernel, call.dims, call.count, seconds, gain or 1.0, known, reason)


def sort_calls(calls: Iterable[CallTime]) -> tuple[CallTime, ...]:
    """The largest time first; releases the memory of the GPU, which workers need."""
    found = tuple(sorted(calls, key=lambda each: -each.seconds))
    torch.cuda.empty_cache()
    return found


def _time_baselines(name: str, workload: Workload) -> float:
    """Device time of the fastest baseline that a call may run, in seconds; 0 if all of them fail,
    for example without enough memory."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kernel = registry.load(name)
    times = []
    with suppress(Exception), torch.no_grad():  # the time only ranks calls
        inputs = kernel.make_inputs(workload, 0, device)
        for own, baseline in kernel.baselines(workload).items():
            if not is_compiled(own):
                with suppress(Exception):
                    times.append(device_seconds(partial(baseline, inputs)))
    return min(times, default=0.0)


def wait() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def device_seconds(call: Step) -> float:
    """How long the device is busy with a call: by records of the GPU, else wall-clock time."""
    call()
    wait()
    if torch.cuda.is_available():
        return _busy_seconds(call)
    times = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return median(times)


def _busy_seconds(call: Step) -> float:
    from torch.autograd.profiler import profile

    marker = torch.zeros(1, device="cuda")
    session: Any = profile(use_cpu=False, use_device="cuda", use_kineto=True)
    with session:
        for _ in range(_LEADING):
            torch.nextafter(marker, marker)
        for _ in range(_RUNS):
            call()
        torch.cuda.synchronize()
    busy, end = 0, 0
    for each in sorted(list_activities(session), key=lambda activity: activity.start_ns):
        if MARKER not in each.name:
            busy += max(0, each.end_ns - max(each.start_ns, end))
            end = max(end, each.end_ns)
    return busy / 1e9 / _RUNS
