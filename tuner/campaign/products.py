"""The files that a run leaves: tables and the report."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tuner.campaign.options import RunOptions, RunOutcome
from tuner.campaign.tasks import RequestedTask
from tuner.settings.models import Settings
from tuner.tracing import span

if TYPE_CHECKING:
    from results_db import Store

_log = logging.getLogger(__name__)


def write_products(
    store: Store,
    settings: Settings,
    options: RunOptions,
    tasks: Sequence[RequestedTask],
    outcome: RunOutcome,
) -> RunOutcome:
    """Write tables and report, also for an interrupted run, and add their paths to the outcome.

    A run that `options.workloads` narrows writes no tables: they would replace the complete ones.
    """
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
