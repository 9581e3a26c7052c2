"""The results of a run as exporters read them: a stored run with its tables."""

from __future__ import annotations

from functools import cached_property

from tuner.runtime import Table
from tuner.tables.result_tables import tables_of
from tuner.tables.stored_run import ResultStore, StoredRun

__all__ = ["ResultStore", "Results"]


class Results(StoredRun):
    """One run's results."""

    @cached_property
    def tables(self) -> list[Table]:
        """The run's tables, by kernel and device."""
        return tables_of(self)
