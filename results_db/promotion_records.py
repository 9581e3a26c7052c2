"""What is decided about results: promotions to tables, regressions, and cards in quarantine."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
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


@dataclass(frozen=True, slots=True)
class CardTime:
    """The time of a baseline in one confirmation on one card."""

    run_id: int
    #: The UUID of the card, and the exact name of its model.
    card: str
    device: str
    #: What was timed: equal for equal work by equal code.
    what: tuple[Hashable, ...]
    us: float
    #: What the device monitor recorded.
    clocks: Mapping[str, float | str]
    confirmed_at: datetime | None = None


# -- a card whose results do not count, and what became of it --------------------------------------
@dataclass(frozen=True, slots=True)
class QuarantineRecord:
    """A card that gets no work until it is admitted."""

    #: Its number.
    id: int
    #: The UUID of the card, and the exact name of its model.
    card: str
    device: str
    #: Why, in one line.
    reason: str
    #: Results of this card do not count from then until it is admitted: other runs may go on.
    since: datetime
    found_at: datetime
    #: When the webhook was told.
    notified_at: datetime | None = None
    #: When a user has let it work again.
    admitted_at: datetime | None = None

    @property
    def is_open(self) -> bool:
        """Whether nobody has admitted the card again."""
        return self.admitted_at is None

    def covers(self, clocks: Mapping[str, float | str], at: datetime | None) -> bool:
        """Whether a result does not count, by what the monitor recorded, and when."""
        if clocks.get("card") != self.card or at is None:
            return False
        return self.since <= at and (self.admitted_at is None or at <= self.admitted_at)


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
