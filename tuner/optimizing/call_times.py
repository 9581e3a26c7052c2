"""Calls and steps with their time on the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from search_spaces.records import Value, Workload
from workers.measure.timers.cupti import MARKER, list_activities

#: A step of a program, or another call; its result is not used.
Step = Callable[[], object]
#: Runs that are timed, and launches before them, whose records a profiler may lose.
_RUNS, _LEADING = 3, 4


@dataclass(frozen=True, slots=True)
class CallTime:
    """The calls of one kind in a step."""

    #: What `tune` takes; empty where the call of a library's kernel cannot be tuned.
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
    #: Of a library's Triton kernel where it is, `module:object`; empty for an operator.
    place: str = ""

    @property
    def name(self) -> str:
        """What people call the kernel."""
        return self.place or self.kernel

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
    #: How long the host takes to launch it, as it is written and with operators.
    host_s: tuple[float, float] = (0.0, 0.0)

    @property
    def operators(self) -> tuple[CallTime, ...]:
        """The calls of operators."""
        return tuple(each for each in self.calls if not each.place)

    def share(self, call: CallTime) -> float:
        """Of the time of the step, 1 at most: calls are timed apart from it."""
        return min(1.0, call.seconds / self.seconds) if self.seconds else 0.0


def wait() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def device_seconds(call: Step) -> float:
    """How long the device is busy with a call: by records of the GPU, else wall-clock time."""
    call()
    wait()
    return _busy_seconds(call) if torch.cuda.is_available() else _clock_seconds(call)


def host_seconds(call: Step) -> float:
    """How long a call takes to return while the GPU works; 0 where there is none to wait for it."""
    return _clock_seconds(call) if torch.cuda.is_available() else 0.0


def _clock_seconds(call: Step) -> float:
    """How long a call takes to return, by the clock; an earlier one is over before it begins."""
    times = []
    for _ in range(_RUNS):
        wait()
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
