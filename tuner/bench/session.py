"""A pool of this machine with one runner, used by one caller who waits for the answers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TypeAlias

from search_spaces.errors import TunerError
from tuner.bench.target import BenchTarget
from tuner.settings.models import Settings
from workers import pools
from workers.records import (
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

#: What is being done, how much of it is done, and how much there is.
Tell: TypeAlias = Callable[[str, int, int], None]

_POLL_S = 0.2
#: A job that the infrastructure loses is given again this often.
_TRIES = 3
#: Builds in flight or waiting to be taken, per builder: enough to stay ahead of a runner.
_AHEAD = 4


def silent(what: str, done: int, total: int) -> None:
    """Progress for nobody."""


class LocalSession:
    """Builders and one runner of the subject's kind, in `with`; the farm's own classes do the work.

    Raises `TunerError` when the worker does not come up or jobs are lost again and again.
    """

    def __init__(self, settings: Settings, subject: BenchTarget, tell: Tell = silent) -> None:
        pool = settings.pool
        self._spec = PoolSpec(
            kind="local",
            runners={subject.runner: 1},
            builders=pool.builders,
            options={"simulated": pool.simulated.model_dump(exclude={"runners"})},
            paths=subject.ref.paths,
        )
        self._pool = pools.create(self._spec)
        self._wait_s = pool.connect_timeout * 4
        self._kind = subject.runner
        self._tell = tell
        self._ready: dict[str, WorkerInfo] = {}
        self._built: deque[Built | JobLost] = deque()
        self._measured: deque[Measured | JobLost] = deque()
        self._measuring = ""
        self._gone = "it gives no sign of life"

    def __enter__(self) -> LocalSession:
        self._pool.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.close(kill=error is not None)

    @property
    def worker(self) -> WorkerInfo:
        """The runner with its device; waits for it to come up."""
        if not self._ready:
            self._tell(f"bringing a {self._kind} worker up", 0, 0)
        deadline = time.monotonic() + self._wait_s
        while not self._ready:
            if not self._pool.runners or time.monotonic() > deadline:
                raise TunerError(
                    f"no {self._kind} worker came up here: {self._gone}",
                    "run `tuner doctor`; a device may be in use or out of memory",
                )
            self._poll()
        return next(iter(self._ready.values()))

    def built(self, jobs: Iterable[BuildJob]) -> Iterator[tuple[BuildJob, Artifact | Failure]]:
        """What came of each job, in the order they end; some are built ahead of the caller."""
        waiting, flying, tries = iter(jobs), dict[str, BuildJob](), dict[str, int]()
        room = _AHEAD * max(1, self._pool.builders)
        while True:
            while len(flying) < room and (job := next(waiting, None)) is not None:
                flying[job.job_id] = job
                self._pool.submit_build(job)
            if not flying:
                return
            while not self._built:
                self._poll()
            event = self._built.popleft()
            if isinstance(event, Built):
                yield flying.pop(event.job_id), event.result
                continue
            tries[event.job_id] = tries.get(event.job_id, 0) + 1
            if tries[event.job_id] >= _TRIES:
                raise TunerError(
                    f"variants cannot be built here: {event.reason}",
                    "mend the kernel, or see `tuner doctor` for what is missing",
                )
            self._pool.submit_build(flying[event.job_id])

    def measured(self, job: MeasureJob) -> Measurement | Failure:
        """What came of the job."""
        reason = ""
        for _ in range(_TRIES):
            self._measuring = job.job_id
            self._pool.submit_measure(self.worker.worker_id, job)
            while not self._measured:
                self._poll()
            event = self._measured.popleft()
            if isinstance(event, Measured):
                return event.result
            reason = event.reason
        raise TunerError(f"the worker was lost {_TRIES} times: {reason}", "run `tuner doctor`")

    def _poll(self) -> None:
        for event in self._pool.poll(_POLL_S):
            self._take(event)

    def _take(self, event: PoolEvent) -> None:
        match event:
            case WorkerReady():
                self._ready[event.worker.worker_id] = event.worker
            case WorkerGone():
                self._ready.pop(event.worker_id, None)
                self._gone = event.reason
            case Built():
                self._built.append(event)
            case Measured():
                self._measured.append(event)
            case JobLost():
                own = event.job_id == self._measuring
                (self._measured if own else self._built).append(event)
