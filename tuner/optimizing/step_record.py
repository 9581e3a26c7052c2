"""The calls of operators that a step makes, or would make in place of torch's functions, and the
launches of its libraries' Triton kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch

from search_spaces import registry
from search_spaces.baselines import is_compiled
from search_spaces.recorded.model_calls import ModelCall
from search_spaces.records import Workload
from tuner.capturing import Calls, capture
from tuner.ops.call_counts import Scope
from tuner.ops.choosing import TUNED, Choice
from tuner.ops.operator import OPERATORS, Decision
from tuner.ops.patching import PatchedModels, find_models
from tuner.ops.replacing import Replacing
from tuner.optimizing.call_times import (
    CallTime,
    Step,
    StepRecord,
    device_seconds,
    host_seconds,
    wait,
)
from tuner.optimizing.launch_record import find_placed, time_launches
from tuner.runtime import Table, applied

#: What makes operators run, while it is active.
Operators: TypeAlias = PatchedModels | Replacing
#: Steps whose calls are counted.
_COUNTED = 2


class Side:
    """One way to run a step: with operators and tables of libraries' kernels, or as it is written.

    Decisions are its own and are kept from run to run.
    """

    def __init__(
        self, scope: Scope, operators: Operators | None = None, kernels: Sequence[Table] = ()
    ) -> None:
        self.scope, self._operators, self._kernels = scope, operators, kernels
        #: Whether the first run after a beginning differs from the next ones.
        self.settles = isinstance(operators, PatchedModels) or bool(kernels)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Run this way until the block ends."""
        with self.scope.active(), ExitStack() as entered:
            if self._kernels:
                entered.enter_context(applied(self._kernels))
            if self._operators is not None:
                entered.enter_context(self._operators)
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
    decisions, launched = _count_calls(step, other)
    calls = [_time_calls(alike) for alike in decisions.values()]
    calls += time_launches(launched, tables, _COUNTED)
    with plain.active():
        seconds, hosts = device_seconds(step), host_seconds(step)
    if not torch.cuda.is_available():
        return StepRecord(seconds, sort_calls(calls))
    used = operators if decisions else None
    with Side(Scope(tables), used, find_placed(tables)).active():
        with_operators, host_s = device_seconds(step), (hosts, host_seconds(step))
    return StepRecord(seconds, sort_calls(calls), with_operators, host_s)


def _count_calls(
    step: Step, side: Side
) -> tuple[dict[tuple[str, Workload], list[Decision]], Calls]:
    """The decisions of `_COUNTED` steps by kind of call, and the launches of Triton kernels; a step
    before makes the decisions.

    Compiled functions run eagerly: their graphs have torch's functions where no entry is known.
    """
    with side.active(), torch.compiler.set_stance("force_eager"):
        step()
        for operator in OPERATORS.values():
            for decision in operator.decisions():
                decision.calls = 0
        with capture() as launched:
            for _ in range(_COUNTED):
                step()
    wait()
    found: dict[tuple[str, Workload], list[Decision]] = defaultdict(list)
    for each in side.scope.decisions:
        if each.calls:
            found[each.kernel, Workload.from_mapping(each.key)].append(each)
    return found, launched


def _time_calls(alike: Sequence[Decision]) -> CallTime:
    first = alike[0]
    count = max(1, sum(each.calls for each in alike) // _COUNTED)
    call = ModelCall(first.kernel, first.key, count)
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
