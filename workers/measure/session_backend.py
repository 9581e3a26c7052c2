"""What a backend provides to a session: candidates, timers, a monitor, a roofline bound."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from search_spaces.records import Device, Toolchain
from workers.job_records import Artifact, Check, Failure, KernelRef, MeasurementProtocol
from workers.measure.monitor import Monitor
from workers.measure.task_tensors import TaskTensors
from workers.measure.timers.timer import Candidate, Timer


class OutputCheck(Protocol):
    """Checks the outputs of one timed run."""

    def after(self, result: object) -> None:
        """Keep the outputs of the run that has just ended, without waiting for the device."""
        ...

    def problem(self) -> str:
        """Why the outputs are wrong; empty when they are right or no run was checked."""
        ...


@dataclass(frozen=True, slots=True)
class PreparedCandidate:
    """A candidate that passed the gate, or was known to be correct, and may be timed."""

    candidate: Candidate
    check: OutputCheck
    #: The largest relative error of all seeds; -1 where the gate was skipped.
    error: float
    #: Whether a repetition left the same bits; None where the gate was skipped.
    deterministic: bool | None = None
    #: Digest of the bits of single rows; None where they were not compared.
    row_bits: str | None = None
    #: Compilations that the first launch caused.
    compiled: int = 0
    #: Why the launch was compiled, or why the variant was not checked.
    note: str = ""


class SessionBackend(Protocol):
    """One device as a session uses it.

    Every method turns an error of one variant into a `Failure`. When `poisoned` is true, the
    device's context is lost and the session calls nothing more.
    """

    poisoned: bool

    def info(self) -> tuple[Device, Toolchain]: ...

    def prepare(
        self, task: TaskTensors, artifact: Artifact, *, check: bool
    ) -> PreparedCandidate | Failure:
        """Install the artifact, launch it and, with `check`, run the gate on it."""
        ...

    def prepare_baseline(self, task: TaskTensors, name: str) -> PreparedCandidate | Failure:
        """Warm a baseline up and check its outputs."""
        ...

    def timer(self, protocol: MeasurementProtocol, prepared: Sequence[PreparedCandidate]) -> Timer:
        """The timer for these candidates; chooses the method where it is `auto`."""
        ...

    def plain_timer(self, protocol: MeasurementProtocol) -> Timer:
        """The timer to use when one of the candidates cannot be timed by the chosen method."""
        ...

    def check(self, ref: KernelRef, check: Check) -> PreparedCandidate | Failure:
        """Run the gate on an artifact of another workload."""
        ...

    def monitor(self) -> AbstractContextManager[Monitor]: ...

    def roofline_us(self, task: TaskTensors, cache: str) -> float:
        """The roofline bound of the task in us, 0.0 when unknown."""
        ...
