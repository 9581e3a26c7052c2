"""A local pool with one runner for one caller that waits for each answer."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import TypeAlias

from search_spaces.errors import TunerError
from tuner.base.tracing import span
from tuner.settings.sections import Settings
from workers import pools
from workers.job_records import (
    Artifact,
    BuildJob,
    Built,
    Failure,
    JobLost,
    Measured,
    MeasureJob,
    Measurement,
    PoolEvent,
    PoolSpec,
    WorkerGone,
    WorkerInfo,
    WorkerReady,
)

#: Called with the step, how many of its items are done, and how many there are (0: unknown).
ProgressCallback: TypeAlias = Callable[[str, int, int], None]

_POLL_S = 0.2
#: How often a job is submitted before its loss by the infrastructure counts as an error.
_ATTEMPTS = 3
#: Builds in flight or built and not yet taken, per builder; enough to keep the runner busy.
_BUILDS_PER_BUILDER = 4


def no_progress(what: str, done: int, total: int) -> None:
    """The callback that shows nothing."""


class LocalSession:
    """The farm's own local pool, reduced to the builders and one runner of a kind.

    paths: folders that kernels are imported from. A context manager: the pool starts on entry and
    closes on exit. Methods raise `TunerError` when the worker does not come up or a job is lost
    repeatedly.
    """

    def __init__(
        self,
        settings: Settings,
        runner: str,
        paths: tuple[str, ...],
        on_progress: ProgressCallback = no_progress,
    ) -> None:
        pool = settings.pool
        self._spec = PoolSpec(
            kind="local",
            runners={runner: 1},
            builders=pool.builders,
            options={runner: pool.options_of(runner)},
            paths=paths,
        )
        self._pool = pools.create(self._spec)
        self._wait_s = pool.connect_timeout * 4
        self._kind = runner
        self._on_progress = on_progress
        self._ready: dict[str, WorkerInfo] = {}
        self._built: deque[Built | JobLost] = deque()
        self._measured: deque[Measured | JobLost] = deque()
        self._measuring = ""
        self._lost_reason = "it does not answer"

    def __enter__(self) -> LocalSession:
        with span("start the pool", "start"):
            self._pool.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with span("close the pool", "end"):
            self._pool.close(kill=error is not None)

    @property
    def worker(self) -> WorkerInfo:
        """The runner with its device; waits for it to come up."""
        if not self._ready:
            self._on_progress(f"starting a {self._kind} worker", 0, 0)
        deadline = time.monotonic() + self._wait_s
        while not self._ready:
            if not self._pool.runners or time.monotonic() > deadline:
                raise TunerError(
                    f"no {self._kind} worker came up here: {self._lost_reason}",
                    "run `tuner doctor`; a device may be in use or out of memory",
                )
            self._poll()
        return next(iter(self._ready.values()))

    def build(self, jobs: Iterable[BuildJob]) -> Iterator[tuple[BuildJob, Artifact | Failure]]:
        """Results of the jobs in the order they end; builds run ahead of the caller."""
        waiting, in_flight, attempts = iter(jobs), dict[str, BuildJob](), dict[str, int]()
        room = _BUILDS_PER_BUILDER * max(1, self._pool.builders)
        while True:
            while len(in_flight) < room and (job := next(waiting, None)) is not None:
                in_flight[job.job_id] = job
                self._pool.submit_build(job)
            if not in_flight:
                return
            while not self._built:
                self._poll()
            event = self._built.popleft()
            if isinstance(event, Built):
                yield in_flight.pop(event.job_id), event.result
                continue
            attempts[event.job_id] = attempts.get(event.job_id, 0) + 1
            if attempts[event.job_id] >= _ATTEMPTS:
                raise TunerError(
                    f"variants cannot be built here: {event.reason}",
                    "correct the kernel, or run `tuner doctor` to find what is missing",
                )
            self._pool.submit_build(in_flight[event.job_id])

    def measure(self, job: MeasureJob) -> Measurement | Failure:
        """The result of one job, resubmitted when its worker is lost."""
        reason = ""
        for _ in range(_ATTEMPTS):
            self._measuring, worker = job.job_id, self.worker
            calibrated = replace(job, calibration=worker.calibration)
            self._pool.submit_measure(worker.worker_id, calibrated)
            while not self._measured:
                self._poll()
            event = self._measured.popleft()
            if isinstance(event, Measured):
                return event.result
            reason = event.reason
        raise TunerError(f"the worker was lost {_ATTEMPTS} times: {reason}", "run `tuner doctor`")

    def _poll(self) -> None:
        for event in self._pool.poll(_POLL_S):
            self._take(event)

    def _take(self, event: PoolEvent) -> None:
        match event:
            case WorkerReady():
                self._ready[event.worker.worker_id] = event.worker
            case WorkerGone():
                self._ready.pop(event.worker_id, None)
                self._lost_reason = event.reason
            case Built():
                self._built.append(event)
            case Measured():
                self._measured.append(event)
            case JobLost():
                measuring = event.job_id == self._measuring
                (self._measured if measuring else self._built).append(event)
