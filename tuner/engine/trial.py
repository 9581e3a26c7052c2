"""One config of a task and its progress through build and measurement."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from results_db.stored_records import TrialRecord
from search_spaces.records import Config
from workers.job_records import Artifact, Failure


class TrialState(StrEnum):
    """How far a trial has come."""

    #: Suggested; its build is not ordered yet.
    ASKED = "asked"
    #: A builder has it.
    BUILDING = "building"
    #: Built; it waits for a device.
    READY = "ready"
    #: Built; another trial with the same binary is being measured, and this one takes its result.
    WAITING = "waiting"
    #: A device has it.
    MEASURING = "measuring"
    #: Recorded.
    DONE = "done"
    #: Given up without a result; the search no longer holds it.
    DROPPED = "dropped"


@dataclass(slots=True, eq=False)
class Trial:
    """One config of a task, changed by its `TrialTable` only. Equal only if the same object."""

    #: Its place in the order in which the task's configs were asked.
    number: int
    config: Config
    #: The identity of the config.
    key: str
    #: What suggested the config: a strategy, or `default`, `warm`, `known`, `polish`.
    strategy: str
    state: TrialState = TrialState.ASKED
    #: Jobs with this trial that were lost or did not reach it.
    attempt: int = 0
    artifact: Artifact | None = None
    record: TrialRecord | None = None
    #: ln(time in us), once it is known.
    score: float | None = None
    #: It was in a job that failed as a whole. Its next measurement has no other candidate.
    alone: bool = False
    #: Its artifact for the task's check size, or why there is none; None: not built yet.
    check_artifact: Artifact | Failure | None = field(default=None, repr=False)
    #: The engine's clock when it was asked.
    asked_at: float = 0.0
