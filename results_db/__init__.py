"""The results database. `Store` takes and returns records, and returns a pandas frame of trials.

SQLAlchemy is loaded at the first use of `Store`, not when this package is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from results_db.errors import NothingStoredError, StoreAwayError, StoreError, StoreMovedError
from results_db.stored_records import Fire, RunInfo, TaskInfo, TrialRecord
from tuner.base.import_names import lazy_names

if TYPE_CHECKING:
    from results_db.frames import TRIAL_COLUMNS
    from results_db.store import Store

__all__ = [
    "TRIAL_COLUMNS",
    "Fire",
    "NothingStoredError",
    "RunInfo",
    "Store",
    "StoreAwayError",
    "StoreError",
    "StoreMovedError",
    "TaskInfo",
    "TrialRecord",
]

__getattr__ = lazy_names(
    __name__,
    {
        "results_db.frames": ("TRIAL_COLUMNS",),
        "results_db.store": ("Store",),
    },
)
