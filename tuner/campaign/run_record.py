"""A run's record in the database, begun or resumed, and concluded."""

from __future__ import annotations

import logging
import os
import platform
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results_db.stored_records import RunInfo, Stage, TaskInfo
from search_spaces.records import Value, digest
from tuner.base.tracing import trace_calls
from tuner.campaign.options import RunOptions, RunOutcome
from tuner.campaign.tasks import ScheduledTask
from tuner.engine import Finish
from tuner.engine.warm_start import default_failed
from tuner.settings.sections import CampaignConfig, Settings
from tuner.traces import timeline_so_far

if TYPE_CHECKING:
    from results_db import Store

#: How the note of a task ends whose device is not here.
_NOT_TIMED = "compiled for it, not timed"
_log = logging.getLogger(__name__)

_REVISION = "TUNER_REVISION"


def collect_facts(base: Path, *, fresh: bool) -> dict[str, Value]:
    """Host, system and state of the sources, for the report's environment panel."""
    return {
        "host": socket.gethostname(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count() or 0,
        "git": read_revision(base),
        "dirty": bool(_git(base, "status", "--porcelain", "--untracked-files=no")),
        "fresh": fresh,
    }


def read_revision(base: Path) -> str:
    """The git revision of a folder; empty where there is none.

    The variable `TUNER_REVISION` takes precedence, for sources without their history.
    """
    return os.environ.get(_REVISION) or _git(base, "rev-parse", "--short=12", "HEAD")


def _git(base: Path, *arguments: str) -> str:
    command = ["git", "-C", str(base), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What identifies the runs of a campaign: a run is resumed where all of it is the same."""

    name: str
    campaign: CampaignConfig
    settings: Settings
    options: RunOptions

    def document(self) -> dict[str, Any]:
        """The campaign, the measuring protocol and the filters, as JSON types."""
        spec = self.campaign.describe_work()
        spec["measure"] = self.settings.measure.model_dump(mode="json")
        spec["only"] = [list(self.options.kernels), list(self.options.workloads)]
        return spec

    def find_unfinished(self, store: Store) -> RunInfo | None:
        """The interrupted run that a new call would resume, if there is one."""
        return store.unfinished_run(self.name, digest(self.document()))

    def begin(self, store: Store, tasks: Sequence[ScheduledTask]) -> RunInfo:
        """The interrupted run of the same spec, or a new one; always a new one with `fresh`."""
        document, fresh = self.document(), self.options.fresh
        facts = collect_facts(self.options.base, fresh=fresh)
        facts["devices"] = ", ".join(sorted({task.device.name for task in tasks}))
        strategy = self.campaign.tasks[0].strategy or self.campaign.strategy
        return store.begin_run(
            self.name, digest(document), strategy.seed, facts, document, resume=not fresh
        )


def ensure_task(store: Store, run_id: int, item: ScheduledTask, protocol_key: str) -> TaskInfo:
    """The task's record in the run, created where it is missing."""
    kernel, workload = item.requested.kernel, item.requested.workload
    cost = kernel.cost(workload)
    note = ""
    if item.compile_only:
        note = f"no {item.device.target} device here: {_NOT_TIMED}"
    task = store.ensure_task(
        run_id,
        item.key(protocol_key),
        flops=cost.flops,
        bytes=cost.bytes,
        tolerance=kernel.tolerance(workload).relative,
        note=note,
        place=item.requested.place,
    )
    if task.stage != Stage.DONE and task.note != note:  # the note explains the interruption
        store.set_stage(task.task_id, task.stage, note)
        task = replace(task, note=note)
    return task


@trace_calls("conclude the run", "database")
def conclude(
    store: Store,
    run_id: int,
    end: Finish,
    notes: Sequence[str],
    elapsed_s: float,
    usage: Mapping[str, float],
) -> RunOutcome:
    """Close the run in the database and return its outcome, without report and tables."""
    stored = store.overview(run_id)
    tasks = [task for task in stored if not task.left_out]
    trials = sum(task.trials for task in tasks)
    failures = trials - sum(task.correct for task in tasks)
    selected = sum(task.selection is not None for task in tasks)
    checks = store.summarize_checks(run_id)
    summary = (
        f"{trials} trials ({failures} failed) over {len(tasks)} tasks, {selected} with a winner"
    )
    untimed = sum(task.note.endswith(_NOT_TIMED) for task in tasks)
    if untimed:
        summary += (
            f", {untimed} compiled, not timed: no such device here ({checks.checked} configs "
            f"verified in Triton's interpreter, {checks.unchecked} not checked)"
        )
    if left_out := len(stored) - len(tasks):
        summary += f", {left_out} sizes of ranges left out"
    notes = [*notes, *_caveats(store, run_id)]
    if checks.wrong:
        notes.append(checks.wrong)
    broken = sum(t.selection is not None and default_failed(t.selection) for t in tasks)
    if broken:
        notes.append(f"the default config of {broken} of them fails, see the report")
    summary = "; ".join([summary, *([end.message] if end.message else []), *notes])
    timeline = timeline_so_far()
    if timeline is not None:
        store.record_timeline(run_id, timeline)
    facts = {"summary": summary, "elapsed_s": round(elapsed_s, 3), "notes": "; ".join(notes)}
    _log.info("run %d %s: %s", run_id, end.status, summary)
    store.finish_run(run_id, end.status, {"trials": trials, **facts, **usage})
    return RunOutcome(
        run_id=run_id,
        status=end.status,
        tasks=len(tasks),
        trials=trials,
        failures=failures,
        elapsed_s=elapsed_s,
        summary=summary,
        untimed=untimed,
        fault=end.fault,
    )


def _caveats(store: Store, run_id: int) -> list[str]:
    compiled, reason = store.count_device_compiles(run_id)
    if not compiled:
        return []
    text = f"{compiled} launches compiled on a device worker, see docs/building.md"
    return [text + (f" ({reason})" if reason else "")]
