"""Lost jobs and lost workers: retries, pauses between them, and when a task is given up."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tuner.engine.instructions import Fault
from workers.job_records import WorkerGone
from workers.processes.machine_faults import LOST

#: A trial is given up after this many jobs that were lost.
MAX_LOSSES = 8
#: Seconds without any worker for a task before the run ends.
PATIENCE_S = 120.0
#: The same where the last worker was lost to a fault of the machine.
FAULT_PATIENCE_S = 15.0
#: Faults of the machine in a row before a task is given up. The pauses between them double.
_ROUNDS = 7
_PAUSE_S = 0.5
#: The same for what no pause ends. One may be the fault of one worker's environment.
_LASTING = 2
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class FaultStreak:
    """Faults of the machine in a row that a task's builds, or its measurements, met.

    Jobs that were in flight together meet a fault together; they count once.
    """

    rounds: int = 0
    #: The one trial whose jobs met all of them; None where that may be any. Such a trial may need
    #: more memory than there is. It is given up by itself (`MAX_LOSSES`), whatever is in flight.
    trial: int | None = None
    #: Losses in a row that no pause ends: the kernel cannot be imported, or a compiler is missing.
    lasting: int = 0
    #: The engine's clock when jobs may be ordered again.
    resume_at: float = 0.0

    def record_fault(self, now: float, trial: int | None) -> None:
        """A job was lost to a fault. Pause before the next one, but not after the first fault, and
        only briefly while one trial has met all. trial: the job's, if it may be at fault itself."""
        self.trial = trial if trial == self.trial or not self.rounds else None
        if now >= self.resume_at:
            self.rounds += 1
            doublings = min(self.rounds - 2, _ROUNDS if self.trial is None else 1)
            self.resume_at = now + (_PAUSE_S * 2**doublings if self.rounds > 1 else 0.0)

    def meet_lasting(self) -> None:
        """A job was lost to what no pause ends."""
        self.lasting += 1

    def clear(self) -> None:
        """A job was answered: the machine and the kernel work."""
        self.rounds, self.lasting, self.resume_at = 0, 0, 0.0

    def pausing(self, now: float) -> bool:
        """Whether jobs have to wait for the machine to recover."""
        return now < self.resume_at

    @property
    def hopeless(self) -> bool:
        """Whether neither the machine nor the kernel is expected to recover."""
        of_machine = self.rounds >= _ROUNDS and self.trial is None
        return of_machine or self.lasting >= _LASTING


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
