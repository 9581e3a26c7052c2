"""From the records of a run to the results of `tune`, one per workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from results_db.shipped import Shipped, select_shipped
from results_db.stored_records import BaselineRecord, SelectionRecord, Stage
from search_spaces.errors import TunerError
from search_spaces.records import Device, Toolchain, Value, Workload
from tuner.api.result import BaselineComparison, ResultOrigin, TuneResult
from tuner.base.log_ratio import Verdict, pick_ratio
from tuner.base.statistics import median_interval

if TYPE_CHECKING:
    from results_db import Store, TaskInfo
    from search_spaces.kernel import Kernel
    from tuner.api.databases import CallDatabase


def stored_results(
    database: CallDatabase,
    run_id: int,
    workloads: Sequence[Workload] | None,
    kernel: Kernel | None = None,
    *,
    summary: str = "",
    note: str = "",
    stage_s: Mapping[int, Mapping[str, float]] | None = None,
) -> list[TuneResult]:
    """The result of each workload of a run, in order.

    workloads: None for those of a range at which the farm looked, in the order of their sizes.
    kernel: the run's kernel, for exports. summary: of the run; it explains workloads without a
    task. note: why tasks may be unfinished. stage_s: seconds by task and stage. Raises
    `TunerError` for a run without tasks.
    """
    with database.open() as store:
        tasks = store.tasks(run_id)
        if not tasks:
            raise TunerError(f"nothing was tuned: {summary}", "run `tuner doctor`")
        if workloads is None:
            workloads = _list_looked_at(tasks)
        why = _failures(store, run_id)
        results = []
        for workload in workloads:
            mine = [task for task in tasks if task.key.workload == workload]
            task = next((t for t in mine if t.selection is not None), mine[0] if mine else None)
            if task is None:
                absent = ResultOrigin(database, run_id, None, kernel)
                name = tasks[0].key.kernel
                results.append(failed_result(name, workload, summary, absent))
                continue
            origin = ResultOrigin(database, run_id, task.task_id, kernel)
            problem = why.get(task.task_id, "") or (note if task.stage != Stage.DONE else "")
            times = (stage_s or {}).get(task.task_id, {})
            results.append(_result(task, origin, problem, times))
    return results


def _list_looked_at(tasks: Sequence[TaskInfo]) -> list[Workload]:
    """The workloads of a range that have an outcome, in the order of their sizes; else the first.

    tasks: of one range.
    """
    found = {
        task.key.workload: task.key.workload.size(task.place.dim)
        for task in tasks
        if task.selection is not None and task.place is not None
    }
    return sorted(found, key=found.__getitem__) or [tasks[0].key.workload]


def failed_result(
    kernel: str, workload: Workload, note: str, origin: ResultOrigin | None = None
) -> TuneResult:
    """The result of a workload for which nothing ran; the note says why."""
    return TuneResult(
        winner=None,
        tie_set=(),
        verdict=Verdict.UNDECIDED.value,
        median_us=None,
        speedup=None,
        baselines={},
        device="",
        note=note,
        kernel=kernel,
        workload=workload,
        reason="nothing was measured",
        _origin=origin,
    )


def _failures(store: Store, run_id: int) -> dict[int, str]:
    """Why no config of a task was correct, by task."""
    return {task.task_id: task.why_none_correct for task in store.overview(run_id)}


def _result(
    task: TaskInfo, origin: ResultOrigin, problem: str, stage_s: Mapping[str, float]
) -> TuneResult:
    chosen, key = task.selection, task.key
    ships = select_shipped(chosen) if chosen and chosen.median_us is not None else None
    over_default = ships.log_ratio if ships else None
    return TuneResult(
        winner=chosen.winner if chosen else None,
        tie_set=chosen.tie_set if chosen else (),
        verdict=(chosen.verdict if chosen else Verdict.UNDECIDED).value,
        median_us=ships.median_us if ships else None,
        speedup=over_default.ratio if over_default else None,
        baselines={b.name: b.median_us for b in task.baselines},
        device=key.device.name,
        note="; ".join(text for text in (task.note, problem) if text),
        ships=ships.config if ships else None,
        kept_because=ships.kept_because if ships else "",
        kernel=key.kernel,
        workload=key.workload,
        interval_us=median_interval(ships.samples_us(chosen, task.finals))
        if ships and chosen
        else None,
        speedup_interval=over_default.interval if over_default else None,
        reason=_reason(chosen, ships) or problem,
        comparisons={b.name: _comparison(b, ships) for b in task.baselines},
        device_facts=_facts(key.device, key.toolchain),
        stage_s=dict(stage_s),
        _origin=origin,
    )


def _comparison(baseline: BaselineRecord, ships: Shipped | None) -> BaselineComparison:
    over = ships.over(baseline) if ships else None
    return BaselineComparison(
        name=baseline.name,
        status=baseline.status.value,
        median_us=baseline.median_us,
        ratio=over.ratio if over else None,
        interval=over.interval if over else None,
        message=baseline.message,
    )


def _reason(chosen: SelectionRecord | None, ships: Shipped | None) -> str:
    """The figures behind the verdict, and the choice from the tie set, in one line."""
    if chosen is None:
        return ""
    against = pick_ratio(chosen.log_ratio)
    parts = []
    if against is not None:
        interval = against.interval
        ends = f", 95 % interval {interval[0]:.3f} to {interval[1]:.3f}" if interval else ""
        parts.append(f"the default config takes {against.ratio:.3f} times the winner's time{ends}")
    elif chosen.median_us is not None:
        parts.append("the default config has no confirmed time")
    if chosen.reason:
        parts.append(f"choice: {chosen.reason}")
    if ships is not None and ships.kept_because:
        parts.append(f"the default config ships: {ships.kept_because}")
    return "; ".join(parts)


def _facts(device: Device, tools: Toolchain) -> dict[str, Value]:
    """What a user would note down about the device and its software; unknown facts left out."""
    facts: dict[str, Value] = {
        "name": device.name,
        "target": device.target,
        "power_limit_w": device.power_limit_w,
        "driver": tools.driver,
        "torch": tools.torch,
        "triton": tools.triton,
        "cuda": tools.cuda,
        "ptxas": tools.ptxas,
        "compiler": tools.compiler,
        "python": tools.python,
    }
    return {name: value for name, value in facts.items() if value}
