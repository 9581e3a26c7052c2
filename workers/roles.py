"""The roles of this layer. Names lead to implementations: `workers.pools`, `workers.backends`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from search_spaces.records import Device, Toolchain
from workers.records import (
    Artifact,
    BuildJob,
    Failure,
    MeasureJob,
    Measurement,
    PoolEvent,
    WorkerInfo,
)


class Builder(Protocol):
    """Builds variants for a target; needs no device of that kind. Never raises for a bad config."""

    def build(self, job: BuildJob) -> Artifact | Failure: ...

    def close(self) -> None: ...


class Runner(Protocol):
    """Owns one device through one supervised child process, which it kills and respawns at need."""

    @property
    def info(self) -> WorkerInfo: ...

    def measure(self, job: MeasureJob) -> Measurement | Failure: ...

    def close(self) -> None: ...


class Backend(Protocol):
    """Verifies and times variants on one device.

    `measure` may hang or take the process down with it: the parent supervises and kills. When
    `poisoned` turns true the device's context is lost (a sticky error); the reply that was given
    is good, but the process must be replaced before the next job.
    """

    kind: str
    poisoned: bool

    def info(self) -> tuple[Device, Toolchain]:
        """The device this process owns and the toolchain it runs under."""
        ...

    def measure(self, job: MeasureJob) -> Measurement | Failure:
        """One outcome per candidate; a `Failure` only when the job as a whole could not be done."""
        ...

    def close(self) -> None:
        """Free the device's memory and stop watching it."""
        ...


class Pool(Protocol):
    """Where builders and runners live. One caller; every submitted job yields exactly one of
    `Built`, `Measured` or `JobLost`, whatever dies meanwhile."""

    @property
    def builders(self) -> int:
        """How many builds run at once."""
        ...

    @property
    def runners(self) -> int:
        """How many runners were asked for, known once `start` has returned."""
        ...

    @property
    def warm(self) -> bool:
        """Whether all builders that can be have loaded their compilers; from then on the loading
        disturbs no timing and delays no build. Builders may take long to come up, or die and be
        warmed anew, so whoever waits for this needs a limit."""
        ...

    def start(self) -> None:
        """Bring the workers up; each runner announces itself by `WorkerReady`."""
        ...

    def submit_build(self, job: BuildJob) -> None: ...

    def submit_measure(self, worker_id: str, job: MeasureJob) -> None:
        """Give the job to that runner; a runner has one job at a time."""
        ...

    def poll(self, timeout_s: float) -> Sequence[PoolEvent]:
        """Events since the last call; waits up to `timeout_s` for the first, signals or not."""
        ...

    def close(self, *, kill: bool = False) -> None:
        """Stop all workers; with `kill`, without waiting for jobs in flight."""
        ...
