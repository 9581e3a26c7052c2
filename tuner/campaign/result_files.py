"""The files that a run leaves: tables and the report."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from tuner.campaign.options import RunOptions, RunOutcome
from tuner.campaign.tasks import RequestedTask
from tuner.settings.sections import Settings
from tuner.tracing import span

if TYPE_CHECKING:
    from results_db import Store

_log = logging.getLogger(__name__)


def load_libraries(options: RunOptions) -> None:
    """Begin to import what a report is drawn with, in a thread, while the driver is idle."""
    if options.report:

        def load() -> None:
            for module in ("pandas", "reports.page", "reports.figures", "reports.source"):
                import_module(module)

        threading.Thread(target=load, name="imports", daemon=True).start()


def write_products(
    store: Store,
    settings: Settings,
    options: RunOptions,
    tasks: Sequence[RequestedTask],
    outcome: RunOutcome,
) -> RunOutcome:
    """Write tables and report, also for an interrupted run, and add their paths to the outcome.

    A run that `options.workloads` narrows writes no tables: they would replace the complete ones.
    A run that was stopped before its first trial writes nothing.
    """
    if outcome.status == "interrupted" and not outcome.trials:
        return outcome
    if options.export and not options.workloads:
        from tuner import tables

        folder = options.base / settings.paths.tables
        kernels = {task.kernel.name: task.kernel for task in tasks}
        with span("write the tables", "output"):
            written = tables.export(store, outcome.run_id, folder, "tuner", kernels)
        outcome = replace(outcome, tables=tuple(written))
        _log.info("wrote %d tables to %s", len(written), folder)
    if options.report:
        import reports

        target = options.base / settings.paths.results / "report.html"
        with span("write the report", "output"):
            outcome = replace(outcome, report=reports.write(store, outcome.run_id, target))
        _log.info("wrote the report %s", outcome.report)
    return outcome
