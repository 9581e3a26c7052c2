"""What a promotion of a run's results to published tables decided, entry by entry."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from search_spaces.records import Config
from tuner.base.log_ratio import LogRatio


# -- A regression: a step of a kernel's time to a higher level, and what became of it --------------
class RegressionState(StrEnum):
    """What is known of a regression."""

    #: Detected in stored times; not decided.
    CANDIDATE = "candidate"
    #: A pass of both configs found the later one slower.
    CONFIRMED = "confirmed"
    #: Such a pass did not.
    REFUTED = "refuted"


@dataclass(frozen=True, slots=True)
class RegressionRecord:
    """One regression as the database keeps it."""

    #: Its number.
    id: int
    #: The first task with the new level, and the last one before it.
    task_id: int
    former_task_id: int
    #: The run at which it was found.
    found_run_id: int
    state: RegressionState
    #: Why it is in that state; empty for a candidate that was not measured again.
    reason: str
    #: ln(time / time before): of the step, and once decided of the pass.
    log_ratio: LogRatio | None
    found_at: datetime
    decided_at: datetime | None = None
    #: When the webhook was told.
    notified_at: datetime | None = None
    #: When a user said that it is known.
    acknowledged_at: datetime | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is confirmed and nobody has acknowledged it."""
        return self.state is RegressionState.CONFIRMED and self.acknowledged_at is None


# -- what a promotion of a run's results to published tables decided, entry by entry ---------------
class PromotionOutcome(StrEnum):
    """What a promotion decided about one entry of a published table."""

    PROMOTED = "promoted"
    #: The table has this config already.
    SAME = "same"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class PromotionRecord:
    """The decision about one entry."""

    run_id: int
    #: The table's file.
    path: str
    #: Name of the kernel.
    kernel: str
    #: The workload's key.
    workload: str
    outcome: PromotionOutcome
    #: Why, in one line.
    reason: str
    #: The config that the run ships.
    config: Config
    #: The config of the table's entry before; None for a new entry.
    former: Config | None = None
    #: ln(time / the former config's time); None where nothing was compared.
    log_ratio: LogRatio | None = None
    decided_at: datetime | None = None
