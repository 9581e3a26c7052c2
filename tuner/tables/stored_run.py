"""One run of the results database: its tasks, trials and kernels, each read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from results_db.stored_records import RunInfo, TaskInfo, TrialRecord
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel

if TYPE_CHECKING:
    import pandas as pd


class ResultStore(Protocol):
    """The part of `results_db.Store` that exports use."""

    def run(self, run_id: int) -> RunInfo: ...

    def tasks(self, run_id: int) -> list[TaskInfo]: ...

    def trials(self, task_id: int) -> list[TrialRecord]: ...

    def trials_frame(
        self, run_id: int | None = None, task_id: int | None = None
    ) -> pd.DataFrame: ...

    def record_export(
        self,
        path: str,
        format: str,
        run_id: int | None,
        sha256: str,
        task_ids: Sequence[int] = (),
    ) -> None: ...


class StoredRun:
    """A run with its tasks and trials.

    kernels: declarations by name, for kernels that are not registered.
    """

    def __init__(
        self, store: ResultStore, run_id: int, kernels: Mapping[str, Kernel] | None = None
    ) -> None:
        self._store = store
        self._kernels = dict(kernels or {})
        self._trials: dict[int, list[TrialRecord]] = {}
        self.run_id = run_id

    @cached_property
    def run(self) -> RunInfo:
        return self._store.run(self.run_id)

    @cached_property
    def tasks(self) -> list[TaskInfo]:
        return self._store.tasks(self.run_id)

    def trials(self, task_id: int) -> list[TrialRecord]:
        if task_id not in self._trials:
            self._trials[task_id] = self._store.trials(task_id)
        return self._trials[task_id]

    def trials_frame(self) -> pd.DataFrame:
        return self._store.trials_frame(self.run_id)

    def kernel(self, name: str) -> Kernel | None:
        """The kernel's declaration; None for a name that is not registered."""
        from search_spaces import registry

        if name not in self._kernels:
            try:
                self._kernels[name] = registry.load(name)
            except TunerError:
                return None
        return self._kernels[name]
