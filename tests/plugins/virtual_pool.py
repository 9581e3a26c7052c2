"""The pool `virtual`, of an entry point: simulated builders and devices in virtual time.

A discrete-event simulation over recorded spaces. Builds take the recorded seconds, measurements the
seconds of the simulated clock, and `poll` jumps to the next event. A driver that uses `clock` as
its clock runs a campaign of minutes in a moment, with the same result every time. Nothing crashes
here; tests of faults use real processes.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence

from workers import backend_kinds
from workers.backends.simulated.backend import SimulatedBackend
from workers.backends.simulated.build import simulate_build
from workers.job_records import (
    BuildJob,
    Built,
    JobLost,
    Measured,
    MeasureJob,
    Measurement,
    Mode,
    PoolEvent,
    PoolSpec,
    WorkerInfo,
    WorkerReady,
)
from workers.pools.worker_slots import PoolPlan
from workers.roles import Pool

#: Builders by default: a GPU node of 16 cores, less one that launches.
_BUILDERS = 15
#: Seconds from a job's end to the start of the next one on the same worker.
_TRANSPORT_S = 0.003
#: Tasks whose inputs a device process keeps, as on real devices.
_TASKS = 4


class VirtualPool(Pool):
    """Builders and simulated runners in virtual time.

    The options of kind `simulated` are those of its backend without the faults. All times are in
    seconds. host_s: per candidate, the time in which a device waits for its host (loading the
    binary, checking outputs). setup_s: to create inputs and references of a task that the device
    process does not keep; it keeps those of the last few tasks. Confirmations run in a second
    process, which keeps none. fresh_s: to start another such process; it starts when a task that
    has been confirmed is raced again.
    """

    warm = True

    def __init__(
        self,
        spec: PoolSpec,
        *,
        host_s: float = 0.006,
        setup_s: float = 0.0,
        fresh_s: float = 0.0,
    ) -> None:
        self._spec, self._host_s = spec, host_s
        self._setup_s, self._fresh_s = setup_s, fresh_s
        self._held: dict[str, list[object]] = {}
        #: When a process that has not confirmed the task is ready, by worker and task.
        self._fresh_at: dict[tuple[str, object], float] = {}
        self._now = 0.0
        self._order = itertools.count()
        self._events: list[tuple[float, int, PoolEvent]] = []
        self._backends: dict[str, SimulatedBackend] = {}
        self._free: list[float] = []

    def clock(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    @property
    def builders(self) -> int:
        return self._spec.builders or _BUILDERS

    @property
    def runners(self) -> int:
        return len(self._backends)

    def start(self) -> None:
        self._free = [0.0] * self.builders
        for slot in PoolPlan(self._spec).slots(lambda kind: 1):
            if not backend_kinds.spec(slot.kind).replayed:
                continue
            seed = int(str(slot.options.get("seed", 0)))
            backend = SimulatedBackend(index=slot.index, seed=seed)
            self._backends[slot.worker_id] = backend
            device, toolchain = backend.info()
            self._at(self._now, WorkerReady(WorkerInfo(slot.worker_id, device, toolchain)))

    def submit_build(self, job: BuildJob) -> None:
        result = simulate_build(job)
        start = max(self._now, heapq.heappop(self._free)) + _TRANSPORT_S
        heapq.heappush(self._free, start + result.build_s)
        self._at(start + result.build_s, Built(job.job_id, result))

    def submit_measure(self, worker_id: str, job: MeasureJob) -> None:
        if worker_id not in self._backends:
            self._at(self._now, JobLost(job.job_id, f"there is no worker {worker_id}"))
            return
        result = self._backends[worker_id].measure(job)
        held_s = len(job.candidates) * self._host_s + self._prepare_s(worker_id, job)
        if isinstance(result, Measurement):
            held_s += result.device_s
        self._at(self._now + _TRANSPORT_S + held_s, Measured(job.job_id, worker_id, result))

    def _prepare_s(self, worker_id: str, job: MeasureJob) -> float:
        """Seconds before a job's first candidate."""
        task = (job.kernel, job.workload)
        if job.mode is Mode.CONFIRM:
            up = self._fresh_at.get((worker_id, task), self._now)
            self._fresh_at[worker_id, task] = math.inf
            starts_s = self._fresh_s if up == math.inf else max(0.0, up - self._now)
            return self._setup_s + starts_s
        if job.mode is Mode.RACE and (worker_id, task) in self._fresh_at:
            self._fresh_at[worker_id, task] = self._now + self._fresh_s
        held = self._held.setdefault(worker_id, [])
        known = task in held
        held[:] = [task, *(other for other in held if other != task)][:_TASKS]
        return 0.0 if known else self._setup_s

    def poll(self, timeout_s: float) -> Sequence[PoolEvent]:
        """The events of the next moment that has any, if it comes within `timeout_s`."""
        until = self._now + timeout_s
        if not self._events or self._events[0][0] > until:
            self._now = until
            return []
        self._now = max(self._now, self._events[0][0])
        events = []
        while self._events and self._events[0][0] <= self._now:
            events.append(heapq.heappop(self._events)[2])
        return events

    def close(self, *, kill: bool = False) -> None:
        self._events.clear()

    def _at(self, when: float, event: PoolEvent) -> None:
        heapq.heappush(self._events, (when, next(self._order), event))
