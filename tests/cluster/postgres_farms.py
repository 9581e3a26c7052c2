"""A farm whose database is a PostgreSQL server."""

from __future__ import annotations

from dataclasses import dataclass

from farms import Farm

from results_db import Store
from results_db.stored_records import RunInfo, TrialRecord


@dataclass
class PostgresFarm(Farm):
    """A farm whose database is on a server."""

    url: str = ""

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "TUNER__DATABASE__URL": self.url}

    def count(self, where: str = "") -> int:
        return len(self.stored()[1])

    def stored(self) -> tuple[list[RunInfo], dict[str, TrialRecord]]:
        """All runs, and the trials of this farm's kernel by attempt."""
        with Store.open(self.url) as store:
            runs = store.runs()
            tasks = [task for run in runs for task in store.tasks(run.run_id)]
            mine = [t for t in tasks if t.key.launch_hash == self.launch_hash]
            trials = [trial for task in mine for trial in store.trials(task.task_id)]
        found = {trial.attempt_id: trial for trial in trials}
        assert len(found) == len(trials)
        return runs, found

    @property
    def launch_hash(self) -> str:
        from search_spaces.recorded.recorded_kernel import RecordedKernel

        return RecordedKernel(self.space).launch_hash()
