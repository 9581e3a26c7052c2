"""The runner role: one device, owned by one supervised child process."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

from search_spaces.records import Device, Status, Toolchain, Value
from workers.builder import WorkerLost, blamed, explained, one_line, start, times
from workers.child import ChildDied, ChildError, ChildTimeout, SupervisedChild
from workers.records import Failure, MeasureJob, Measurement, Mode, WorkerInfo

_PROBE_TIMEOUT_S = 120.0


class DeviceRunner:
    """Verifies and measures on device `index` of a kind; implements `workers.roles.Runner`.

    The process that holds a DeviceRunner never touches the device. The child is replaced after a
    timeout, a crash, an unexpected exception and a reply that leaves the device poisoned, and
    before every confirmation. Raises WorkerLost when the device or its process cannot be had.
    """

    def __init__(
        self,
        kind: str,
        index: int = 0,
        worker_id: str = "",
        options: Mapping[str, Value] | None = None,
        paths: tuple[str, ...] = (),
        cwd: str | None = None,
    ) -> None:
        self._worker_id = worker_id or f"{kind}-{index}"
        self._info: WorkerInfo | None = None
        self._child = SupervisedChild(
            "workers.runner:DeviceService",
            {"kind": kind, "index": index, "options": dict(options or {})},
            environment=lambda cache_dir: _environment(kind, cache_dir),
            paths=paths,
            cwd=cwd,
            name=self._worker_id,
        )

    @property
    def pid(self) -> int | None:
        """The process id of the living child."""
        return self._child.pid

    @property
    def info(self) -> WorkerInfo:
        """What the child finds when it asks the device; asked once."""
        if self._info is None:
            start(self._child)
            try:
                device, toolchain = self._child.request("info", timeout_s=_PROBE_TIMEOUT_S)
            except (ChildTimeout, ChildDied, ChildError) as error:
                self._child.kill()
                raise WorkerLost(f"the device cannot be asked: {one_line(f'{error}')}") from None
            self._info = WorkerInfo(self._worker_id, device, toolchain, socket.gethostname())
        return self._info

    def measure(self, job: MeasureJob) -> Measurement | Failure:
        if job.mode is Mode.CONFIRM:
            self._child.close()
        deaths: list[str] = []
        while True:
            try:
                return self._attempt(job)
            except ChildTimeout:
                message = f"no result within {job.timeout_s:g} s; the device process was killed"
                return Failure(Status.TIMEOUT, message)
            except ChildError as error:
                self._child.kill()
                if isinstance(error.error, WorkerLost):
                    raise error.error from None
                return Failure(Status.RUNTIME, one_line(f"{error}"), error.trace)
            except ChildDied as death:
                deaths.append(death.ended)
                if blamed(deaths):
                    often = times(len(deaths))
                    cause = f"crashed the device process ({death.ended}) {often}"
                    return Failure(Status.RUNTIME, explained(cause, death), death.output)

    def _attempt(self, job: MeasureJob) -> Measurement | Failure:
        start(self._child)
        result: Measurement | Failure
        result, poisoned = self._child.request("measure", job, timeout_s=job.timeout_s)
        if poisoned:
            self._child.kill()
        return result

    def reset(self) -> None:
        """Forget device and child; `info` asks again."""
        self._info = None
        self._child.kill()

    def kill(self) -> None:
        """End the child at once and for good, also from another thread."""
        self._child.retire()

    def close(self) -> None:
        self._child.close()


class DeviceService:
    """What lives in a runner's child process: the backend."""

    def __init__(
        self, cache_dir: Path, kind: str, index: int, options: Mapping[str, Value]
    ) -> None:
        from workers.backends import create

        self._backend = create(kind, index=index, cache_dir=str(cache_dir), **options)

    def info(self) -> tuple[Device, Toolchain]:
        return self._backend.info()

    def measure(self, job: MeasureJob) -> tuple[Measurement | Failure, bool]:
        result = self._backend.measure(job)
        return result, self._backend.poisoned

    def close(self) -> None:
        self._backend.close()


def _environment(kind: str, cache_dir: Path) -> Mapping[str, str | None]:
    from workers.backends import environment

    return {**environment(kind, str(cache_dir))}
