"""The pool `local`: a thread of the driver for each builder and runner, and a child for each."""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tuner.base.tracing import span
from workers import backend_kinds
from workers.compiling.process_builder import ProcessBuilder
from workers.device import find_devices
from workers.host import affinity, cpu_device
from workers.job_records import (
    BuildJob,
    Built,
    DeclarationJob,
    JobLost,
    Measured,
    MeasureJob,
    PoolEvent,
    PoolSpec,
    WorkerGone,
    WorkerInfo,
    WorkerReady,
)
from workers.measure.device_runner import DeviceRunner
from workers.pools.declaration_process import DeclarationProcess
from workers.pools.worker_slots import PoolPlan, WorkerSlot, describe_runners, number, shares
from workers.processes.pool_servers import PoolServers, take_servers
from workers.processes.preload import WorkerRole
from workers.processes.worker_lost import is_lasting, reason_of, remedy_of
from workers.quiet_processors import Yielder
from workers.roles import Pool

_log = logging.getLogger(__name__)
#: A runner that fails to start this many times in a row is given up.
_MAX_START_FAILURES = 3
_PAUSE_S = 1.0
_LOADED_POLL_S = 0.01
#: The interpreter's switch interval, a tenth of the default: a device is idle until the thread with
#: its result gets the interpreter, and the driver has a thread per worker.
_SWITCH_S = 0.0005


@dataclass(slots=True)
class _RunnerState:
    """A runner and what its thread is to do."""

    slot: WorkerSlot
    runner: DeviceRunner
    #: At most one job; None ends the thread.
    inbox: queue.SimpleQueue[MeasureJob | None] = field(default_factory=queue.SimpleQueue)
    ready: bool = False
    given_up: bool = False


class LocalPool(Pool):
    """Builders and runners of this machine."""

    def __init__(self, spec: PoolSpec) -> None:
        self._plan = PoolPlan(spec)
        self._spec = spec
        # No SimpleQueue: in CPython 3.11 its `get` with a timeout never returns if a signal handler
        # runs for longer than the rest of the timeout, and the thread that polls handles signals.
        self._events: queue.Queue[PoolEvent] = queue.Queue()
        self._builds: queue.SimpleQueue[BuildJob | None] = queue.SimpleQueue()
        self._builders: list[ProcessBuilder] = []
        self._checks: list[DeclarationProcess] = []
        self._yielder = Yielder()
        self._runners: dict[str, _RunnerState] = {}
        self._threads: list[threading.Thread] = []
        self._servers: PoolServers | None = None
        self._closing = threading.Event()
        self._switch_s = sys.getswitchinterval()

    @property
    def builders(self) -> int:
        return len(self._builders)

    @property
    def runners(self) -> int:
        return sum(not state.given_up for state in self._runners.values())

    @property
    def warm(self) -> bool:
        return all(builder.warm for builder in self._builders)

    def start(self) -> None:
        sys.setswitchinterval(_SWITCH_S)
        plan = self._plan
        kinds = sorted(kind for kind, count in self._spec.runners.items() if count != 0)
        servers = self._servers = self._handed_over(kinds) or take_servers(
            kinds, plan.paths, plan.cwd, torch_free=self._spec.torch_free
        )
        servers.start()
        slots = list(plan.slots(lambda kind: len(find_devices(kind))))
        launched = [slot for slot in slots if backend_kinds.spec(slot.kind).accelerator]
        numbers = {slot.worker_id: number(slot.kind, slot.index) for slot in launched}
        launch, rest = shares(numbers.values())
        others = rest if launch else frozenset()
        for slot in slots:
            core = launch.get(numbers[slot.worker_id]) if slot.worker_id in numbers else None
            cores = others if slot.worker_id in numbers else frozenset()
            runner = self._runner(slot, servers, core, cores)
            self._runners[slot.worker_id] = _RunnerState(slot, runner)
        busy = sum(backend_kinds.spec(slot.kind).processors for slot in slots)
        timed = sum(
            spec.processors
            for spec in (backend_kinds.spec(slot.kind) for slot in slots)
            if spec.times_processors
        )
        count = plan.builders(
            len(affinity()) or os.cpu_count() or 1, cpu_device().memory_bytes, busy, timed
        )
        self._builders = [self._builder(index, servers, others) for index in range(count)]
        untimed = [
            state.runner
            for state in self._runners.values()
            if not backend_kinds.spec(state.slot.kind).timed
        ]
        self._yielder.start([*self._builders, *untimed])
        # Runners first: their device opens while builders start.
        self._threads = [
            *(
                self._thread(self._serve_runner, state, state.slot.worker_id)
                for state in self._runners.values()
            ),
            *(self._thread(self._build, one, one.worker_id) for one in self._builders),
        ]
        for thread in self._threads:
            thread.start()

    def _runner(
        self, slot: WorkerSlot, servers: PoolServers, core: int | None, cores: frozenset[int]
    ) -> DeviceRunner:
        """core: the processor that it launches from. cores: those of its other threads."""
        return DeviceRunner(
            slot.kind,
            slot.index,
            slot.worker_id,
            slot.options,
            self._plan.paths,
            self._plan.cwd,
            launch_core=core,
            cores=cores,
            server=servers.find(WorkerRole.RUNNER, slot.kind),
            standby_server=servers.find(WorkerRole.STANDBY, slot.kind),
            priority=slot.priority,
        )

    def _builder(self, index: int, servers: PoolServers, cores: frozenset[int]) -> ProcessBuilder:
        return ProcessBuilder(
            self._plan.build_options,
            f"builder-{index}",
            paths=self._plan.paths,
            cores=cores,
            server=servers.find(WorkerRole.BUILDER),
        )

    def describe_workers(self) -> Sequence[WorkerInfo] | None:
        slots = [state.slot for state in self._runners.values()]
        return (
            describe_runners(slots, self._servers.describe) if self._servers is not None else None
        )

    def check_declarations(self, jobs: Sequence[DeclarationJob]) -> DeclarationProcess | None:
        server = self._servers.with_torch if self._servers is not None else None
        if server is None:
            return None
        self._checks = [check for check in self._checks if check.running]
        self._checks.append(DeclarationProcess(jobs, self._plan.paths, server))
        self._yielder.add(self._checks[-1])
        return self._checks[-1]

    def submit_build(self, job: BuildJob) -> None:
        self._builds.put(job)

    def submit_measure(self, worker_id: str, job: MeasureJob) -> None:
        state = self._runners.get(worker_id)
        if state is None or not state.ready:
            self._events.put(JobLost(job.job_id, f"worker {worker_id} is not ready"))
        else:
            state.inbox.put(job)

    def poll(self, timeout_s: float) -> Sequence[PoolEvent]:
        events = []
        try:
            events.append(self._events.get(timeout=max(0.0, timeout_s)))
            while True:
                events.append(self._events.get_nowait())
        except queue.Empty:
            return events

    def begin_kill(self) -> bool:
        self._closing.set()
        self._yielder.close()
        while not self._builds.empty():
            self._builds.get()
        for _ in self._builders:
            self._builds.put(None)
        for state in self._runners.values():
            state.inbox.put(None)
        # No caller waits for jobs in flight any more; all processes end at the same time.
        for worker in self._workers():
            worker.begin_kill()
        if self._servers is not None:
            self._servers.kill_if_loading()
        return True

    def close(self, *, kill: bool = False) -> None:
        self.begin_kill()
        for worker in self._workers():
            worker.kill()
        for thread in self._threads:
            thread.join()
        if self._servers is not None:
            self._servers.close()
        self._plan.close()
        sys.setswitchinterval(self._switch_s)

    def renew(self) -> LocalPool:
        # The new workers fork from the same servers, which have no module of a kernel.
        pool = LocalPool(self._spec)
        pool._servers, self._servers = self._servers, None
        self.close(kill=True)
        return pool

    def _handed_over(self, kinds: Sequence[str]) -> PoolServers | None:
        """The servers of the pool before this one, if they fit."""
        servers = self._servers
        if servers is None or servers.fits(kinds, self._plan.cwd, torch_free=self._spec.torch_free):
            return servers
        servers.close()
        return None

    def _workers(self) -> list[ProcessBuilder | DeviceRunner | DeclarationProcess]:
        runners = (state.runner for state in self._runners.values())
        return [*self._builders, *runners, *self._checks]

    # -- in the threads ----------------------------------------------------------------------------
    def _build(self, builder: ProcessBuilder) -> None:
        while (job := self._next(builder)) is not None:
            if not self._built(builder, job):
                self._closing.wait(_PAUSE_S)

    def _built(self, builder: ProcessBuilder, job: BuildJob) -> bool:
        """Build and report the result; False where the job is lost."""
        try:
            with span("build", "waiting", job=job.job_id):
                result = builder.build(job)
        except Exception as error:
            reason = reason_of(error)
            _log.info("job %s is lost: %s", job.job_id, reason)
            lasting = is_lasting(error)
            self._events.put(JobLost(job.job_id, reason, remedy_of(error), lasting))
            return False
        self._events.put(Built(job.job_id, result))
        return True

    def _next(self, builder: ProcessBuilder) -> BuildJob | None:
        """The next build. A builder without one warms up first."""
        while not builder.warm:
            with suppress(queue.Empty):
                return self._builds.get_nowait()
            builder.warm_up()
        return self._builds.get()

    def _serve_runner(self, state: _RunnerState) -> None:
        """Start the runner, measure until it is lost, start it again; give it up at last."""
        worker_id, failures = state.slot.worker_id, 0
        while failures < _MAX_START_FAILURES and not self._closing.is_set():
            try:
                with span("open the device", "waiting"):
                    self._await_servers(state)
                    info = state.runner.info
            except Exception as error:
                failures += 1
                reason = reason_of(error)
                _log.info("%s: start %d failed: %s", worker_id, failures, reason)
                if failures == _MAX_START_FAILURES:
                    _log.info("%s is given up", worker_id)
                    self._events.put(WorkerGone(worker_id, reason, remedy_of(error)))
                    state.given_up = True
                self._closing.wait(_PAUSE_S * failures)
                continue
            failures = 0
            _log.info("%s is ready: %s", worker_id, info.device.name)
            # Ready before it says so: the caller may submit a job at once.
            state.ready = True
            self._events.put(WorkerReady(info))
            if self._measure(state):
                return

    def _measure(self, state: _RunnerState) -> bool:
        """Measure until the pool closes (True) or the runner is lost (False)."""
        worker_id = state.slot.worker_id
        while (job := state.inbox.get()) is not None:
            try:
                with span(f"{job.mode}", "waiting", job=job.job_id):
                    self._await_servers(state)
                    result = state.runner.measure(job)
            except Exception as error:
                state.ready = False
                state.runner.reset()
                reason, remedy = reason_of(error), remedy_of(error)
                _log.info("%s: job %s is lost: %s", worker_id, job.job_id, reason)
                # In this order, or the caller would give the next job to the same worker.
                self._events.put(WorkerGone(worker_id, reason, remedy))
                self._events.put(JobLost(job.job_id, reason, remedy, is_lasting(error)))
                return False
            self._events.put(Measured(job.job_id, worker_id, result))
        return True

    def _await_servers(self, state: _RunnerState) -> None:
        """Before processors are timed, wait until no fork server loads libraries on them."""
        servers = self._servers
        if servers is not None and backend_kinds.spec(state.slot.kind).times_processors:
            while servers.loading and not self._closing.is_set():
                self._closing.wait(_LOADED_POLL_S)

    def _thread(self, target: Any, worker: object, name: str) -> threading.Thread:
        return threading.Thread(target=target, args=(worker,), name=name, daemon=True)
