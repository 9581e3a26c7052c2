"""Lost jobs and lost workers: retries, pauses between them, and when a task is given up."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tuner.engine.instructions import Fault
from workers.records import WorkerGone
from workers.supervision.machine_faults import LOST

#: A trial is given up after this many jobs that were lost.
MAX_LOSSES = 8
#: Seconds without any worker for a task before the run ends.
PATIENCE_S = 120.0
#: The same where the last worker was lost to a fault of the machine.
FAULT_PATIENCE_S = 15.0
#: Faults of the machine in a row before a task is given up. The pauses between them double.
_ROUNDS = 7
_PAUSE_S = 0.5
#: The same for errors of the kernel itself. One may be the fault of one worker's environment.
_KERNEL_ERRORS = 2
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class FaultStreak:
    """Faults of the machine in a row that a task's builds, or its measurements, met.

    Jobs that were in flight together meet a fault together; they count once.
    """

    rounds: int = 0
    #: Errors of the kernel itself in a row.
    kernel_errors: int = 0
    #: The engine's clock when jobs may be ordered again.
    resume_at: float = 0.0

    def met(self, now: float) -> None:
        """A job was lost to a fault. Pause before the next one, but not after the first fault."""
        if now >= self.resume_at:
            self.rounds += 1
            self.resume_at = now + (_PAUSE_S * 2 ** (self.rounds - 2) if self.rounds > 1 else 0.0)

    def kernel_raised(self) -> None:
        """A job was lost because the kernel cannot be imported."""
        self.kernel_errors += 1

    def over(self) -> None:
        """A job was answered: the machine and the kernel work."""
        self.rounds, self.kernel_errors, self.resume_at = 0, 0, 0.0

    def pausing(self, now: float) -> bool:
        """Whether jobs have to wait for the machine to recover."""
        return now < self.resume_at

    @property
    def hopeless(self) -> bool:
        """Whether the machine is not expected to recover, or the kernel to be imported."""
        return self.rounds >= _ROUNDS or self.kernel_errors >= _KERNEL_ERRORS


@dataclass(slots=True)
class WorkerShortage:
    """How long open tasks have had no worker, and why the last worker was lost."""

    #: The engine's clock when the shortage began; None while there is none.
    since: float | None = None
    #: The fault of the machine that took the last worker, if it was one.
    fault: Fault | None = None
    #: The last worker that was lost, with its reason; empty if none was.
    last_loss: str = ""

    def worker_came(self) -> None:
        """A worker has come: the machine works."""
        self.fault = None

    def worker_lost(self, event: WorkerGone) -> None:
        """A worker was lost; it may be the last one."""
        self.fault = Fault(event.reason, event.remedy) if event.remedy else None
        self.last_loss = f"{event.worker_id}: {event.reason}"
        _log.warning("lost worker %s", self.last_loss)

    def outlasts_patience(self, now: float, short: bool) -> bool:
        """Whether tasks have been without a worker for too long. short: they have none now."""
        if not short:
            self.since = None
        elif self.since is None:
            self.since = now
        patience_s = FAULT_PATIENCE_S if self.fault else PATIENCE_S
        return self.since is not None and now - self.since > patience_s


def too_many_losses(count: int, reason: str) -> str:
    """The message of a trial whose jobs were lost this often.

    Later runs recognise such messages: they say nothing about the config.
    """
    return f"{LOST.format(count=count)}; the last: {reason}"
