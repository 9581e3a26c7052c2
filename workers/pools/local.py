"""The pool `local`: one thread of the driver for every builder and runner, each with its child."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from workers.build.process_builder import ProcessBuilder, WorkerLost, one_line, remedy_of
from workers.device import found
from workers.host import cpu_device
from workers.measure.device_runner import DeviceRunner
from workers.pools.cores import LAUNCHED, Share, number, shares
from workers.pools.plan import Plan, Seat
from workers.records import (
    BuildJob,
    Built,
    JobLost,
    Measured,
    MeasureJob,
    PoolEvent,
    PoolSpec,
    WorkerGone,
    WorkerReady,
)

#: A runner that cannot be brought up this often in a row is given up.
_ATTEMPTS = 3
_PAUSE_S = 1.0
#: What a thread with an answer waits at most for one that computes, ten times less than by default:
#: the driver has a thread for every worker, and a device waits until its answer is through.
_SWITCH_S = 0.0005


@dataclass(slots=True)
class _Desk:
    """A runner's seat, its process, and the one job it may have."""

    seat: Seat
    runner: DeviceRunner
    inbox: queue.SimpleQueue[MeasureJob | None] = field(default_factory=queue.SimpleQueue)
    ready: bool = False
    given_up: bool = False


class LocalPool:
    """Builders and runners of this machine; implements `workers.roles.Pool`."""

    def __init__(self, spec: PoolSpec) -> None:
        self._plan = Plan(spec)
        self._spec = spec
        # Who waits here also handles signals. CPython's SimpleQueue (seen in 3.11) then waits for
        # ever, if a handler takes longer than what is left of the timeout.
        self._events: queue.Queue[PoolEvent] = queue.Queue()
        self._builds: queue.SimpleQueue[BuildJob | None] = queue.SimpleQueue()
        self._builders: list[ProcessBuilder] = []
        self._desks: dict[str, _Desk] = {}
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self._switch_s = sys.getswitchinterval()

    @property
    def builders(self) -> int:
        return len(self._builders)

    @property
    def runners(self) -> int:
        return sum(not desk.given_up for desk in self._desks.values())

    @property
    def warm(self) -> bool:
        return all(builder.warm for builder in self._builders)

    def start(self) -> None:
        sys.setswitchinterval(_SWITCH_S)
        plan = self._plan
        seats = list(plan.seats(_count_found))
        numbers = {s.worker_id: number(s.kind, s.index) for s in seats if s.kind in LAUNCHED}
        launch, rest = shares(numbers.values())
        others = rest if launch else frozenset()
        for seat in seats:
            share = Share()
            if seat.worker_id in numbers:
                share = Share(launch.get(numbers[seat.worker_id]), others)
            runner = DeviceRunner(
                seat.kind, seat.index, seat.worker_id, seat.options, plan.paths, plan.cwd, share
            )
            self._desks[seat.worker_id] = _Desk(seat, runner)
        kinds = sorted({seat.kind for seat in seats})
        measuring = sum(desk.seat.kind != "simulated" for desk in self._desks.values())
        memory_bytes = cpu_device().memory_bytes
        for index in range(plan.builders(_usable_cpus(), memory_bytes, measuring)):
            name = f"builder-{index}"
            self._builders.append(
                ProcessBuilder(
                    plan.build_options,
                    name,
                    paths=plan.paths,
                    cwd=plan.cwd,
                    kinds=kinds,
                    cores=others,
                )
            )
        self._threads = [
            *(self._thread(self._build, builder) for builder in self._builders),
            *(self._thread(self._attend, desk) for desk in self._desks.values()),
        ]
        for thread in self._threads:
            thread.start()

    def submit_build(self, job: BuildJob) -> None:
        self._builds.put(job)

    def submit_measure(self, worker_id: str, job: MeasureJob) -> None:
        desk = self._desks.get(worker_id)
        if desk is None or not desk.ready:
            self._events.put(JobLost(job.job_id, f"worker {worker_id} is not there"))
        else:
            desk.inbox.put(job)

    def poll(self, timeout_s: float) -> Sequence[PoolEvent]:
        events = []
        try:
            events.append(self._events.get(timeout=max(0.0, timeout_s)))
            while True:
                events.append(self._events.get_nowait())
        except queue.Empty:
            return events

    def close(self, *, kill: bool = False) -> None:
        self._closing.set()
        while not self._builds.empty():
            self._builds.get()
        for _ in self._builders:
            self._builds.put(None)
        for desk in self._desks.values():
            desk.inbox.put(None)
        for builder in self._builders:
            if builder.warming:  # and has no job, nor will get one
                builder.kill()
        if kill:
            for worker in self._workers():
                worker.kill()
        for thread in self._threads:
            thread.join()
        for worker in self._workers():
            worker.close()
        self._plan.close()
        sys.setswitchinterval(self._switch_s)

    def _workers(self) -> list[ProcessBuilder | DeviceRunner]:
        return [*self._builders, *(desk.runner for desk in self._desks.values())]

    # -- in the threads ----------------------------------------------------------------------------
    def _build(self, builder: ProcessBuilder) -> None:
        while (job := self._next(builder)) is not None:
            try:
                self._events.put(Built(job.job_id, builder.build(job)))
            except Exception as error:
                self._events.put(JobLost(job.job_id, _reason(error), remedy_of(error)))
                self._closing.wait(_PAUSE_S)

    def _next(self, builder: ProcessBuilder) -> BuildJob | None:
        """The next build; while there is none, a cold builder warms up."""
        while not builder.warm:
            with suppress(queue.Empty):
                return self._builds.get_nowait()
            builder.warm_up()
        return self._builds.get()

    def _attend(self, desk: _Desk) -> None:
        failures = 0
        while failures < _ATTEMPTS and not self._closing.is_set():
            try:
                self._events.put(WorkerReady(desk.runner.info))
            except Exception as error:
                failures += 1
                if failures == _ATTEMPTS:
                    gone = WorkerGone(desk.seat.worker_id, _reason(error), remedy_of(error))
                    self._events.put(gone)
                    desk.given_up = True
                self._closing.wait(_PAUSE_S * failures)
                continue
            failures = 0
            desk.ready = True
            if self._serve(desk):
                return

    def _serve(self, desk: _Desk) -> bool:
        """Measure until the pool closes (True) or the runner is lost (False)."""
        worker_id = desk.seat.worker_id
        while (job := desk.inbox.get()) is not None:
            try:
                result = desk.runner.measure(job)
            except Exception as error:
                desk.ready = False
                desk.runner.reset()
                # In this order, or the caller would give the same worker another job.
                reason, remedy = _reason(error), remedy_of(error)
                self._events.put(WorkerGone(worker_id, reason, remedy))
                self._events.put(JobLost(job.job_id, reason, remedy))
                return False
            self._events.put(Measured(job.job_id, worker_id, result))
        return True

    def _thread(self, target: object, worker: object) -> threading.Thread:
        return threading.Thread(target=target, args=(worker,), daemon=True)  # type: ignore[arg-type]


def _reason(error: Exception) -> str:
    kind = "" if isinstance(error, WorkerLost) else f"{type(error).__name__}: "
    return one_line(f"{kind}{error}")


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _count_found(kind: str) -> int:
    return 1 if kind == "simulated" else len(found(kind))
