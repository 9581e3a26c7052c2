"""What a run leaves in files: its tables and its report, prepared while it still measures."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING

from results_db import Store
from results_db.stored_records import RunStatus, Stage
from tuner.base.tracing import span
from tuner.campaign.options import RunOptions, RunOutcome
from tuner.campaign.tasks import RequestedTask
from tuner.settings.sections import Settings
from workers import quiet_processors

if TYPE_CHECKING:
    from reports.source import RunData
    from reports.task_data import TaskData
    from search_spaces.kernel import Kernel
    from tuner.tables.results import Results, Sizes

_POLL_S = 0.01
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class RunFiles:
    """The tables and the report of one run.

    The driver is idle while devices work. In the block, from the first confirmation on, a thread
    makes what concerns single tasks that are done. `write` makes the rest, and again whatever has
    changed since, so that the files do not depend on the thread.
    """

    settings: Settings
    options: RunOptions
    tasks: Sequence[RequestedTask]
    run_id: int
    #: The valid sizes of configs, and tasks as the report draws them, by task.
    _sizes: Sizes = field(default_factory=dict)
    _drawn: dict[int, TaskData] = field(default_factory=dict)
    #: Tasks that are done; None ends the thread.
    _done: queue.SimpleQueue[int | None] = field(default_factory=queue.SimpleQueue)
    _thread: threading.Thread | None = None
    _over: bool = False

    def __enter__(self) -> RunFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._done.put(None)

    def enter(self, task_id: int, stage: Stage) -> None:
        """The database has a task in this stage."""
        if stage is Stage.CONFIRM and self.options.report and self._thread is None:
            self._thread = threading.Thread(target=self._prepare, name="files", daemon=True)
            self._thread.start()
        elif stage is Stage.DONE:
            self._done.put(task_id)

    def write(self, store: Store, outcome: RunOutcome) -> RunOutcome:
        """Write the files, also of an interrupted run, and add their paths to the outcome.

        A run that `options.workloads` narrows writes no tables: they would replace the complete
        ones. A run that was stopped before its first trial writes nothing.
        """
        if outcome.status == RunStatus.INTERRUPTED and not outcome.trials:
            return outcome
        if self._thread is not None:
            self._thread.join()
        if self._exports:
            from tuner import tables

            folder = self.options.base / self.settings.paths.tables
            with span("write the tables", "output"):
                written = tables.export(
                    store, self.run_id, folder, "tuner", self._kernels, sizes=self._sizes
                )
            outcome = replace(outcome, tables=tuple(written))
            _log.info("wrote %d tables to %s", len(written), folder)
        if self.options.report:
            import reports
            from reports.folder import add_report

            target = self.options.base / self.settings.paths.results / "report.html"
            with span("write the report", "output"):
                reports.write(store, self.run_id, target, self._drawn)
                if (target.parent / "reports" / "index.html").is_file():
                    add_report(store, self.run_id, target.parent / "reports", self._drawn)
            outcome = replace(outcome, report=target)
            _log.info("wrote the report %s", outcome.report)
        return outcome

    @property
    def _exports(self) -> bool:
        return self.options.export and not self.options.workloads

    @property
    def _kernels(self) -> dict[str, Kernel]:
        return {task.kernel.name: task.kernel for task in self.tasks}

    # -- in the thread -----------------------------------------------------------------------------
    def _prepare(self) -> None:
        """Prepare tasks as they are done. What fails here is left to `write`, which reports it."""
        try:
            for module in ("pandas", "reports.page", "reports.figures"):
                import_module(module)
            from reports.source import load
            from tuner.tables import Results

            # A connection of its own; there is no second one to a database in memory.
            with Store.open(self.settings.database.url, create=False) as store:
                results = Results(store, self.run_id, self._kernels, self._sizes)
                run = load(store, self.run_id, trials_of=())
                while (task_id := self._done.get()) is not None:
                    while not self._prepare_task(store, results, run, task_id):
                        time.sleep(_POLL_S)
        except Exception:
            _log.debug("nothing more is prepared", exc_info=True)

    def _prepare_task(self, store: Store, results: Results, run: RunData, task_id: int) -> bool:
        """Prepare a task unless processors are timed; whether that is over."""
        import reports

        with quiet_processors.at_work() as free:
            if free and not self._over:
                reports.prepare(store, run, task_id, self._drawn)
                if self._exports:
                    results.prepare(task_id)
        return free or self._over
