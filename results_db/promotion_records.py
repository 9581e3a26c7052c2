"""What a promotion of a run's results to published tables decided, entry by entry."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from search_spaces.records import Config
from tuner.base.log_ratio import LogRatio


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
