"""The runner role: one device, owned by one supervised child process, and a standby one."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from search_spaces.records import Device, Status, Toolchain, Value, Workload
from workers import backends
from workers.build.process_builder import WorkerLost, one_line, start
from workers.pools.cores import Share
from workers.records import (
    Calibration,
    Failure,
    KernelRef,
    MeasureJob,
    Measurement,
    Mode,
    WorkerInfo,
)
from workers.supervision.fault_attribution import Blame, Loss, Reply
from workers.supervision.fork_server import ForkServer
from workers.supervision.machine_faults import fault_of
from workers.supervision.standby import StandbyChild
from workers.supervision.supervised_child import (
    ChildDied,
    ChildError,
    ChildTimeout,
    SupervisedChild,
)

_PROBE_TIMEOUT_S = 120.0
#: Their times are what is reported; even an opening of the device may show in them.
_UNDISTURBED = (Mode.RACE, Mode.CONFIRM)
#: Notes about one candidate and about one baseline; while all are timed together nobody is to
#: blame.
_CANDIDATES, _BASELINE = ("candidate", "check"), "baseline"
#: Kinds without a standby: theirs start fast, or (`cpu`) share the processors that are timed.
_WITHOUT_STANDBY = ("cpu", "interpreter", "simulated")

_log = logging.getLogger("tuner.workers")


class DeviceRunner:
    """Verifies and measures on device `index` of a kind; implements `workers.roles.Runner`.

    The process that holds a DeviceRunner never touches the device. The child is replaced after a
    timeout, a crash, an unexpected exception and a reply that leaves the device poisoned;
    `workers.supervision.fault_attribution` says who answers for it and goes on with the others. A
    confirmation is made by a process that has never seen its task: the standby one, or a new one.
    options: the backend's, and `standby`: whether a second, initialised child stands by, by default
    for kinds with a device of their own. share: the processors of the child and the one that
    launches. Raises WorkerLost when the device or its process cannot be had.
    """

    def __init__(
        self,
        kind: str,
        index: int = 0,
        worker_id: str = "",
        options: Mapping[str, Value] | None = None,
        paths: tuple[str, ...] = (),
        cwd: str | None = None,
        share: Share | None = None,
    ) -> None:
        self._worker_id = worker_id or f"{kind}-{index}"
        self._info: WorkerInfo | None = None
        #: by process id, the tasks it has seen
        self._seen: dict[int, set[tuple[KernelRef, Workload]]] = {}
        options, share = dict(options or {}), share or Share()
        standby = bool(options.pop("standby", kind not in _WITHOUT_STANDBY))
        arguments = {"kind": kind, "index": index, "options": options, "core": share.launch}
        if share.launch is not None:
            _log.info("%s launches from processor %d", self._worker_id, share.launch)

        self._server = ForkServer(
            self._worker_id,
            paths=paths,
            cwd=cwd,
            preload=("workers.measure.device_runner", *backends.preload(kind)),
        )

        def make() -> SupervisedChild:
            return SupervisedChild(
                "workers.measure.device_runner:DeviceService",
                arguments,
                environment=lambda cache_dir: backends.environment(kind, str(cache_dir)),
                paths=paths,
                name=self._worker_id,
                cores=share.others,
                server=self._server,
            )

        self._children = StandbyChild(make, _ask, standby=standby)

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
        """What the child finds when it asks the device, and its calibration; asked once."""
        if self._info is None:
            child = self._children.current
            start(child)
            try:
                device, toolchain = _ask(child)
            except (ChildTimeout, ChildDied, ChildError) as error:
                child.kill()
                fault = fault_of(getattr(error, "error", None))
                message = f"the device cannot be asked: {one_line(f'{error}')}"
                raise WorkerLost(message, fault.hint if fault else "") from None
            calibration = self._calibration(child)
            host = socket.gethostname()
            self._info = WorkerInfo(self._worker_id, device, toolchain, host, calibration)
            self._children.begin()
        return self._info

    def _calibration(self, child: SupervisedChild) -> Calibration | None:
        """None where the backend has none; a device that cannot be calibrated still measures."""
        try:
            found: Calibration | None = child.request("calibration", timeout_s=_PROBE_TIMEOUT_S)
        except (ChildTimeout, ChildDied, ChildError) as error:
            child.kill()
            _log.warning("%s cannot be calibrated: %s", self._worker_id, one_line(f"{error}"))
            return None
        return found

    def measure(self, job: MeasureJob) -> Measurement | Failure:
        if job.calibration is None and self._info is not None:
            job = replace(job, calibration=self._info.calibration)
        return Blame(job, self._attempt, lambda: self.info).measure()

    def _attempt(self, job: MeasureJob) -> Reply | Loss:
        children = self._children
        child = self._unbiased(job) if job.mode is Mode.CONFIRM else children.ready()
        self._remember(child, job)
        if job.mode not in _UNDISTURBED:
            children.begin()
        try:
            result, poisoned = child.request(
                "measure",
                job,
                timeout_s=job.timeout_s,
                quiet_s=None if job.mode in _UNDISTURBED else job.candidate_timeout_s,
                quiet_after={
                    **dict.fromkeys(_CANDIDATES, job.candidate_timeout_s),
                    _BASELINE: job.baseline_timeout_s,
                },
            )
        except ChildTimeout as error:
            message = f"no result within {error.limit_s:g} s; the device process was killed"
            kind, _, name = error.last_note.partition(" ")
            if kind == _BASELINE and error.limit_s == job.baseline_timeout_s:
                message = f"baseline `{name}` took longer than {error.limit_s:g} s"
            # A job that was too long as a whole is not the fault of whoever was just at work.
            long = error.quiet_s >= error.limit_s / 2
            note = error.last_note if long or not error.last_note else "timing"
            return Loss(Failure(Status.TIMEOUT, message), note)
        except ChildDied as death:
            failure = Failure(Status.RUNTIME, f"{death}", death.output)
            return Loss(failure, death.last_note, death)
        except ChildError as error:
            child.kill()
            if isinstance(error.error, WorkerLost):
                raise error.error from None
            if fault := fault_of(error.error):
                raise WorkerLost(one_line(fault.message), fault.hint) from None
            failure = Failure(Status.RUNTIME, one_line(f"{error}"), error.trace)
            return Loss(failure, child.last_note)
        if poisoned:
            child.kill()
        if self._confirms_again(job, result) and self._has_seen(children.standby_pid, job):
            children.refresh()
        children.begin()
        return Reply(result, poisoned, child.last_note)

    def _unbiased(self, job: MeasureJob) -> SupervisedChild:
        """A child without a history of the job's task: new buffers, nothing left of the search."""
        child = self._children.ready()
        if not self._has_seen(child.pid, job):
            return child
        standby = self._children.apart()
        if standby is not None and self._has_seen(standby.pid, job):
            standby = self._children.another()
        if standby is not None:
            return standby
        self._children.renew()
        return self._children.ready()

    @staticmethod
    def _confirms_again(job: MeasureJob, result: Measurement | Failure) -> bool:
        """Whether a confirmation of the task is to be expected: after a race, and after one whose
        winner failed. Another standby may start for it while the device does something else."""
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
        """Forget device and child; `info` asks again."""
        self._info = None
        self._children.drop_standby()
        self._children.current.kill()
        self._server.close()

    def kill(self) -> None:
        """End the child at once and for good, also from another thread."""
        self._children.retire()
        self._server.close()

    def close(self) -> None:
        self._children.close()
        self._server.close()


class DeviceService:
    """What lives in a runner's child process: the backend.

    core: the processor its main thread, which launches, keeps to from its first job on; until then
    it may be a standby, which must not get in the way of the one that launches there.
    """

    def __init__(
        self,
        cache_dir: Path,
        kind: str,
        index: int,
        options: Mapping[str, Value],
        core: int | None = None,
    ) -> None:
        self._backend = backends.create(kind, index=index, cache_dir=str(cache_dir), **options)
        self._core = core

    def info(self) -> tuple[Device, Toolchain]:
        return self._backend.info()

    def calibration(self) -> Calibration | None:
        """What the backend knows of its device and clock; None if it says nothing of them."""
        calibrate = getattr(self._backend, "calibration", None)
        if calibrate is None:
            return None
        self._pin()
        found: Calibration | None = calibrate()
        return found

    def measure(self, job: MeasureJob) -> tuple[Measurement | Failure, bool]:
        self._pin()
        result = self._backend.measure(job)
        return result, self._backend.poisoned

    def close(self) -> None:
        self._backend.close()

    def _pin(self) -> None:
        core, self._core = self._core, None
        if core is None:
            return
        if "torch" in sys.modules:
            # Threads inherit the processor, so those for work on the CPU come first.
            sys.modules["torch"].zeros(2**20).add_(1)
        try:
            os.sched_setaffinity(0, {core})
        except OSError as error:  # taken away meanwhile; times are as good as without
            print(f"processor {core} cannot be had: {error}", file=sys.stderr)


def _ask(child: SupervisedChild) -> tuple[Device, Toolchain]:
    """Device and toolchain; opens the device."""
    found: tuple[Device, Toolchain] = child.request("info", timeout_s=_PROBE_TIMEOUT_S)
    return found
