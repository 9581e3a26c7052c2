"""Jobs that were lost: how often they are tried again, with what pauses, and when a task is not."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.engine.instructions import Fault
from workers.records import WorkerGone
from workers.supervision.machine_faults import LOST

#: A job whose worker died is given to another one this often before the trial is given up.
MAX_LOSSES = 8
#: Seconds without any worker for a task before it is given up.
PATIENCE_S = 120.0
#: The same where the last worker was lost to a fault of the machine.
FAULT_PATIENCE_S = 15.0
#: Faults of the machine in a row, with pauses between that double, before a task is given up.
_ROUNDS = 7
_PAUSE_S = 0.5


@dataclass(slots=True)
class Setbacks:
    """Faults of the machine that a task's builds, or its measurements, met in a row.

    Jobs that were under way together meet a fault together. They count once.
    """

    rounds: int = 0
    resume_at: float = 0.0

    def met(self, now: float) -> None:
        """A job was lost to a fault: pause, longer every time; after the first not at all."""
        if now >= self.resume_at:
            self.rounds += 1
            self.resume_at = now + (_PAUSE_S * 2 ** (self.rounds - 2) if self.rounds > 1 else 0.0)

    def over(self) -> None:
        """A job was answered: the machine works."""
        self.rounds, self.resume_at = 0, 0.0

    def pausing(self, now: float) -> bool:
        return now < self.resume_at

    @property
    def hopeless(self) -> bool:
        return self.rounds >= _ROUNDS


@dataclass(slots=True)
class Desertion:
    """Since when tasks have had no worker."""

    since: float | None = None
    #: Why the last worker left, where that was a fault of the machine.
    fault: Fault | None = None

    def left(self, event: WorkerGone) -> None:
        """A worker has left, perhaps the last one."""
        self.fault = Fault(event.reason, event.remedy) if event.remedy else None

    def lasts(self, now: float, deserted: bool) -> bool:
        """Whether tasks have been without a worker for longer than is waited."""
        if not deserted:
            self.since = None
        elif self.since is None:
            self.since = now
        patience_s = FAULT_PATIENCE_S if self.fault else PATIENCE_S
        return self.since is not None and now - self.since > patience_s


def too_often(count: int, reason: str) -> str:
    """The message of a trial that lost this many workers; it tells it from known results."""
    return f"{LOST.format(count=count)}; the last: {reason}"
