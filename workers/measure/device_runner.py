"""The runner role: one device, owned by one supervised child process, and a standby one."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from search_spaces.records import Device, Status, Toolchain, Value, Workload, digest
from tuner.base.tracing import span, trace_calls
from workers import backend_kinds, quiet_processors
from workers.job_records import (
    Calibration,
    Failure,
    KernelRef,
    MeasureJob,
    Measurement,
    Mode,
    PartResult,
    PreparationPart,
    WorkerInfo,
)
from workers.machine_lock import DeviceLock
from workers.measure.standby_preparation import StandbyPreparation
from workers.processes.crash_retry import start
from workers.processes.fault_attribution import FaultAttribution, Loss, Reply
from workers.processes.fork_server import ForkServer
from workers.processes.heartbeat import await_processors
from workers.processes.machine_faults import fault_of
from workers.processes.preload import Preload, WorkerRole
from workers.processes.standby import ChildWithStandby
from workers.processes.supervised_child import (
    ChildDied,
    ChildError,
    ChildTimeout,
    SupervisedChild,
)
from workers.processes.worker_lost import WorkerLost, one_line

_PROBE_TIMEOUT_S = 120.0
#: Modes whose times are reported. A standby that opens the device could disturb them.
_UNDISTURBED = (Mode.RACE, Mode.CONFIRM)
#: First words of the activities that concern one candidate and one baseline.
_CANDIDATES, _BASELINE = ("candidate", "check"), "baseline"

_log = logging.getLogger(__name__)


class DeviceRunner:
    """Verifies and measures on device `index` of a kind; implements `workers.roles.Runner`.

    The process that holds a DeviceRunner never touches the device. The child is replaced after a
    timeout, a crash, an unexpected exception and a reply that leaves the device poisoned.
    `workers.processes.fault_attribution` finds the candidate at fault and repeats the others. A
    confirmation runs in a process that has launched no variant of its task: the standby, which
    prepares the task's inputs, references and baselines while the other process searches, or a new
    one.

    options: those of the backend, and `standby`: whether there is a standby process; by default for
    kinds with a device of their own. launch_core: the processor that the launching thread is bound
    to, None for no binding. cores: the processors of all other threads, empty for all. server: the
    fork server of its processes, which others share and close; by default it has its own.
    standby_server: the one of its standbys, by default the same. priority: as of `DeviceLock`.
    Raises WorkerLost if the device or its process is not available.
    """

    def __init__(
        self,
        kind: str,
        index: int = 0,
        worker_id: str = "",
        options: Mapping[str, Value] | None = None,
        paths: tuple[str, ...] = (),
        cwd: str | None = None,
        launch_core: int | None = None,
        cores: frozenset[int] = frozenset(),
        server: ForkServer | None = None,
        standby_server: ForkServer | None = None,
        priority: int = 0,
    ) -> None:
        self._worker_id = worker_id or f"{kind}-{index}"
        self._info: WorkerInfo | None = None
        #: The tasks that each process has seen, by process id.
        self._seen: dict[int, set[tuple[KernelRef, Workload]]] = {}
        options = dict(options or {})
        standby = bool(options.pop("standby", backend_kinds.spec(kind).standby))
        arguments = {"kind": kind, "index": index, "options": options, "core": launch_core}
        if launch_core is not None:
            _log.info("%s launches from processor %d", self._worker_id, launch_core)
        self._own_server = server is None
        self._server = server or ForkServer(
            self._worker_id,
            paths=paths,
            cwd=cwd,
            preload=Preload.of(
                "workers.measure.device_runner", backend_kinds.spec(kind).preload(WorkerRole.RUNNER)
            ),
        )

        self._standby_server = standby_server or self._server
        servers = itertools.chain([self._server], iter(lambda: self._standby_server, None))

        def make() -> SupervisedChild:
            return SupervisedChild(
                "workers.measure.device_runner:DeviceService",
                arguments,
                environment=lambda cache_dir: backend_kinds.environment(kind, str(cache_dir)),
                paths=paths,
                name=self._worker_id,
                cores=cores,
                server=next(servers),
            )

        self._children = ChildWithStandby(make, self._prepare_standby, standby=standby)
        self._kind, self._index, self._priority = kind, index, priority
        self._device: Device | None = None
        #: The lock with a place in the line for the device, and what guards it.
        self._lock: DeviceLock | None = None
        self._lock_in_use = threading.Lock()
        self._preparation = StandbyPreparation(self._children, self._device_lock)

    @property
    def pid(self) -> int | None:
        """The process id of the living child."""
        return self._children.current.pid

    @property
    def standby_pid(self) -> int | None:
        """The process id of the standby child once it is ready."""
        return self._children.standby_pid

    @property
    def info(self) -> WorkerInfo:
        """The device as its driver describes it, and its calibration; determined once."""
        if self._info is None:
            child = self._children.current
            start(child)
            try:
                device, toolchain = _device_of(child)
                self._device = device
            except (ChildTimeout, ChildDied, ChildError) as error:
                child.kill()
                fault = fault_of(getattr(error, "error", None))
                message = f"the device cannot be opened: {one_line(f'{error}')}"
                raise WorkerLost(message, fault.hint if fault else "") from None
            calibration = self._calibration(child)
            host = socket.gethostname()
            self._info = WorkerInfo(self._worker_id, device, toolchain, host, calibration)
            self._children.ensure_standby()
        return self._info

    def _prepare_standby(self, child: SupervisedChild) -> None:
        """Have a standby open the device. If one fails, later ones have the other server."""
        try:
            _device_of(child)
        except Exception:
            self._standby_server = self._server
            raise

    def _calibration(self, child: SupervisedChild) -> Calibration | None:
        """None if the backend has none. A device that cannot be calibrated still measures."""
        try:
            with ExitStack() as held:
                held.enter_context(self._device_held())
                found: Calibration | None = child.request(
                    "calibration", timeout_s=_PROBE_TIMEOUT_S, alone=partial(self._quiet, held)
                )
        except (ChildTimeout, ChildDied, ChildError) as error:
            child.kill()
            if not child.retired:
                _log.warning("%s cannot be calibrated: %s", self._worker_id, one_line(f"{error}"))
            return None
        return found

    def measure(self, job: MeasureJob) -> Measurement | Failure:
        """Verify and time the candidates; a Failure if the job as a whole failed."""
        if job.calibration is None and self._info is not None:
            job = replace(job, calibration=self._info.calibration)
        return FaultAttribution(job, self._attempt, lambda: self.info).measure()

    def _attempt(self, job: MeasureJob) -> Reply | Loss:
        children = self._children
        child = self._start_unbiased(job) if job.mode is Mode.CONFIRM else children.ready()
        self._remember(child, job)
        if job.mode not in _UNDISTURBED:
            children.ensure_standby()
            if self._has_seen(children.standby_pid, job):
                # The task was confirmed before, and another confirmation follows this search.
                children.renew_standby()
        self._preparation.add(job)
        try:
            result, poisoned = self._request(child, job)
        except ChildTimeout as error:
            message = f"no result within {error.limit_s:g} s; the device process was killed"
            kind, _, name = error.last_activity.partition(" ")
            if kind == _BASELINE and error.limit_s == job.baseline_timeout_s:
                message = f"baseline `{name}` took longer than {error.limit_s:g} s"
            # A job that is too long as a whole is not the fault of its last activity.
            silent = error.silent_s >= error.limit_s / 2
            activity = error.last_activity if silent or not error.last_activity else "timing"
            return Loss(Failure(Status.TIMEOUT, message), activity)
        except ChildDied as death:
            failure = Failure(Status.RUNTIME, f"{death}", death.output)
            return Loss(failure, death.last_activity, death)
        except ChildError as error:
            child.kill()
            if isinstance(error.error, WorkerLost):
                raise error.error from None
            if fault := fault_of(error.error):
                raise WorkerLost(one_line(fault.message), fault.hint) from None
            failure = Failure(Status.RUNTIME, one_line(f"{error}"), error.trace)
            return Loss(failure, child.last_activity)
        if poisoned:
            child.kill()
        again = self._confirms_again(job, result)
        if job.mode is Mode.CONFIRM and not again:
            self._preparation.forget(job)
        if again and self._has_seen(children.standby_pid, job):
            children.renew_standby()
        children.ensure_standby()
        return Reply(result, poisoned, child.last_activity)

    def _request(
        self, child: SupervisedChild, job: MeasureJob
    ) -> tuple[Measurement | Failure, bool]:
        """The child's answer to a job. What it waits for counts for no time limit."""
        with self._preparation.job_on(child, job), ExitStack() as held:
            if job.candidates:
                held.enter_context(self._device_held())
            answer: tuple[Measurement | Failure, bool] = child.request(
                "measure",
                job,
                timeout_s=job.timeout_s,
                max_silence_s=None if job.mode in _UNDISTURBED else job.candidate_timeout_s,
                max_silence_after={
                    **dict.fromkeys(_CANDIDATES, job.candidate_timeout_s),
                    _BASELINE: job.baseline_timeout_s,
                },
                alone=partial(self._quiet, held),
            )
            return answer

    def _quiet(self, held: ExitStack) -> None:
        """Hold the processors quiet until the end of the block."""
        held.enter_context(quiet_processors.quiet(lambda: self._children.retired))

    @contextmanager
    def _device_held(self) -> Iterator[None]:
        """A block in which no other process of this machine times or checks on the device."""
        try:
            with self._lock_in_use:
                self._lock = lock = self._lock or self._device_lock()
                with lock.hold(lambda: self._children.retired) if lock else nullcontext():
                    yield
        finally:
            if self._children.retired:
                self._close_lock()

    def _close_lock(self) -> None:
        """Leave the line for the device, unless a job is about to."""
        if self._lock is not None and self._lock_in_use.acquire(blocking=False):
            self._lock.close()
            self._lock = None
            self._lock_in_use.release()

    def _device_lock(self) -> DeviceLock | None:
        """The lock of this very device; None for one that is not real or not timed."""
        spec, device = backend_kinds.spec(self._kind), self._device
        if not spec.timed or spec.replayed:
            return None
        if spec.times_processors:
            return DeviceLock("processors", "this machine's processors", self._priority)
        own = device.uuid or f"{device.fingerprint}-{self._index}" if device else f"{self._index}"
        name = digest([self._kind, own])[:16]
        what = f"{device.name if device else self._kind} ({self._worker_id})"
        return DeviceLock(name, what, self._priority)

    def suspend(self) -> None:
        """Stop the child until `resume`. For any thread."""
        self._children.current.suspend()

    def resume(self) -> None:
        """Let the child go on. For any thread."""
        self._children.current.resume()

    def _start_unbiased(self, job: MeasureJob) -> SupervisedChild:
        """A child that has not seen the job's task: new buffers, no state of the search."""
        child = self._children.ready()
        if not self._has_seen(child.pid, job):
            return child
        standby = self._children.standby()
        if standby is not None and self._has_seen(standby.pid, job):
            standby = self._children.newer_standby()
        if standby is not None:
            return standby
        self._children.replace_current()
        return self._children.ready()

    @staticmethod
    def _confirms_again(job: MeasureJob, result: Measurement | Failure) -> bool:
        """Whether another confirmation of the task is likely: after a race, and after a
        confirmation whose winner failed. Its standby can start meanwhile."""
        if job.mode is not Mode.CONFIRM:
            return job.mode is Mode.RACE
        return isinstance(result, Failure) or isinstance(result.outcomes[0], Failure)

    def _has_seen(self, pid: int | None, job: MeasureJob) -> bool:
        return (job.kernel, job.workload) in self._seen.get(pid or 0, ())

    def _remember(self, child: SupervisedChild, job: MeasureJob) -> None:
        living = {self.pid, self.standby_pid, child.pid}
        self._seen = {pid: tasks for pid, tasks in self._seen.items() if pid in living}
        if child.pid is not None:
            self._seen.setdefault(child.pid, set()).add((job.kernel, job.workload))

    def reset(self) -> None:
        """End the child and forget the device; `info` starts again."""
        self._info = None
        self._close_lock()
        self._children.drop_standby()
        self._children.current.kill()
        self._close_server()

    def begin_kill(self) -> None:
        """Begin to end all processes while the caller continues; `kill` waits for their end."""
        self._children.begin_kill()

    def kill(self) -> None:
        """End the child at once and for good. For any thread."""
        self._preparation.close()
        self._children.retire()
        self._close_lock()
        self._close_server()

    def close(self) -> None:
        self._preparation.close()
        self._children.close()
        self._close_lock()
        self._close_server()

    def _close_server(self) -> None:
        if self._own_server:
            self._server.close()


class DeviceService:
    """The object in a runner's child process; it holds the backend.

    core: the processor that the main thread, which launches, is bound to from its first job on.
    Before that the process may be a standby, which must not disturb the one that launches there.
    """

    def __init__(
        self,
        cache_dir: Path,
        kind: str,
        index: int,
        options: Mapping[str, Value],
        core: int | None = None,
    ) -> None:
        with span(f"open {kind} {index}", "start"):
            self._backend = backend_kinds.create(
                kind, index=index, cache_dir=str(cache_dir), **options
            )
        self._core, self._kind = core, kind

    def info(self) -> tuple[Device, Toolchain]:
        return self._backend.info()

    @trace_calls("calibration", "start")
    def calibration(self) -> Calibration | None:
        """The backend's calibration of device and clock; None if it has none."""
        self._bind_to_core()
        if backend_kinds.spec(self._kind).times_processors:
            await_processors()
        return self._backend.calibration()

    def measure(self, job: MeasureJob) -> tuple[Measurement | Failure, bool]:
        self._bind_to_core()
        kernel, count = job.kernel.spec.rpartition("/")[2], len(job.candidates)
        name = f"{_activity(job)} of {kernel}"
        with span(name, "job", workload=job.workload.key, candidates=count):
            result = self._backend.measure(job)
        return result, self._backend.poisoned

    def prepare_part(self, job: MeasureJob, part: PreparationPart) -> tuple[PartResult, bool]:
        """Do a part of preparing a confirmation, if the backend can; see `StandbyPreparation`."""
        name = f"prepare {part.kind} {part.baseline}".rstrip()
        with span(name, "job", workload=job.workload.key):
            result = self._backend.prepare_part(job, part)
        return result, self._backend.poisoned

    def close(self) -> None:
        self._backend.close()

    def _bind_to_core(self) -> None:
        core, self._core = self._core, None
        if core is None:
            return
        if "torch" in sys.modules:
            # Threads inherit the binding, so torch's own threads have to start first.
            sys.modules["torch"].zeros(2**20).add_(1)
        try:
            os.sched_setaffinity(0, {core})
        except OSError as error:  # the container may have lost it since; times stay valid
            print(f"processor {core} is not available: {error}", file=sys.stderr)


def _activity(job: MeasureJob) -> str:
    """What a job is about, for the trace."""
    if job.mode is Mode.SCREENING and not job.candidates:
        return "preparation"
    return {Mode.CONFIRM: "confirmation", Mode.VERIFY: "verification"}.get(job.mode, f"{job.mode}")


def _device_of(child: SupervisedChild) -> tuple[Device, Toolchain]:
    """Device and toolchain; opens the device."""
    found: tuple[Device, Toolchain] = child.request("info", timeout_s=_PROBE_TIMEOUT_S)
    return found
