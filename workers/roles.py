"""The roles of this layer. `workers.pools` and `workers.backend_kinds` find implementations."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from search_spaces.records import Device, Toolchain
from workers.job_records import (
    BuildJob,
    Calibration,
    DeclarationJob,
    Failure,
    MeasureJob,
    Measurement,
    PartResult,
    PoolEvent,
    PreparationPart,
    WorkerInfo,
)


class Backend(Protocol):
    """Verifies and times variants on one device.

    `measure` may hang or crash the process; the parent supervises it and kills it. A backend
    derives from this class, which has answers for what it may leave out.
    """

    kind: str
    #: Whether the device's context is lost (a sticky error). The last reply is valid, but the
    #: process must be replaced before the next job.
    poisoned: bool

    def info(self) -> tuple[Device, Toolchain]:
        """The device this process owns and the toolchain it runs under."""
        ...

    def calibration(self) -> Calibration | None:
        """The calibration of device and clock; None where there is nothing to calibrate."""
        return None

    def prepare_part(self, job: MeasureJob, part: PreparationPart) -> PartResult:
        """Do a part of preparing a confirmation; see `StandbyPreparation`."""
        return PartResult(done=False)

    def measure(self, job: MeasureJob) -> Measurement | Failure:
        """One outcome per candidate; a `Failure` only when the whole job failed."""
        ...

    def close(self) -> None:
        """Free the device's memory and stop watching it."""
        ...


class PendingAnswer(Protocol):
    """The answer to some declaration jobs, which another process carries out."""

    def passed(self, timeout_s: float) -> bool:
        """Whether the answer is there, after waiting for at most that long.

        Raises the `TunerError` of the first mistake.
        """
        ...


class Pool(Protocol):
    """Where builders and runners live, for one caller.

    Every submitted job yields exactly one of `Built`, `Measured` and `JobLost`, whichever processes
    die meanwhile. A pool derives from this class, which has answers for what it may leave out.
    """

    @property
    def builders(self) -> int:
        """How many builds run at once."""
        ...

    @property
    def runners(self) -> int:
        """How many runners the pool was asked to have; known once `start` has returned."""
        ...

    @property
    def warm(self) -> bool:
        """Whether every builder has loaded its compilers, or cannot load them.

        From then on, loading neither disturbs a timing nor delays a build. Builders may start
        slowly, or die and warm up again, so a caller that waits for this needs a limit.
        """
        ...

    def start(self) -> None:
        """Start the workers; each runner that is ready causes a `WorkerReady`."""
        ...

    def describe_workers(self) -> Sequence[WorkerInfo] | None:
        """The runners with their devices, as known before any of them is ready.

        None where that is not known: wait for the `WorkerReady` of each. They carry no calibration.
        Their devices and toolchains equal those of `WorkerReady`, or the worker is not the one that
        was described.
        """
        return None

    def check_declarations(self, jobs: Sequence[DeclarationJob]) -> PendingAnswer | None:
        """Check declarations in a process that has torch, in their order; returns at once.

        None where the pool has no such process: the caller checks them.
        """
        return None

    def clock(self) -> float:
        """The time of events, in seconds; a simulated pool has a clock of its own."""
        return time.monotonic()

    def submit_build(self, job: BuildJob) -> None: ...

    def submit_measure(self, worker_id: str, job: MeasureJob) -> None:
        """Give the job to that runner; a runner has one job at a time."""
        ...

    def poll(self, timeout_s: float) -> Sequence[PoolEvent]:
        """Events since the last call; waits up to `timeout_s` for the first, across signals."""
        ...

    def close(self, *, kill: bool = False) -> None:
        """Stop all workers.

        Jobs in flight have no event any more. Without `kill` a pool may wait for them, where it
        cannot end its workers faster than the jobs.
        """
        ...

    def begin_kill(self) -> bool:
        """Begin to end all workers while the caller continues; `close` waits for their end.

        False where the pool can only be closed.
        """
        return False

    def renew(self) -> Pool | None:
        """Kill all workers; a pool with the same spec, not started, whose workers are new.

        None where another one has to be created.
        """
        self.close(kill=True)
        return None
