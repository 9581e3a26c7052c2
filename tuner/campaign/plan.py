"""The plan of a campaign on this machine, for `tuner run --dry-run`; starts nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from results_db import NothingStoredError, Store
from search_spaces.records import Device, Workload
from tuner.campaign.declaration_check import check_declarations
from tuner.campaign.options import RunOptions, adjust_campaign, campaign_of, requested_of
from tuner.campaign.task_gains import expect_gains
from tuner.campaign.tasks import ScheduledTask, assign_devices, drop_lost, runner_kinds
from tuner.engine.range_search import COMPARED
from tuner.engine.task import find_group, in_turns
from tuner.settings import anchor
from tuner.settings.sections import Settings
from workers import backend_kinds
from workers.job_records import WorkerInfo

#: Estimated seconds of a trial that is compiled only.
_COMPILE_S = 1.2
#: Tasks up to which the plan counts the feasible configs of each.
_COUNTED = 200


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A line of the plan."""

    kernel: str
    workload: Workload
    device: Device
    #: `measure`; `compare` for a size of a range, which is searched only where that may pay;
    #: `compile` where this machine has no such device; `skip` for a task left out.
    mode: str
    #: Feasible configs; None where a plan of many tasks does not count them.
    space_size: int | None
    #: The most trials the budget allows; None without such a limit.
    budget_trials: int | None
    #: Configs whose results are reused from earlier runs.
    known: int
    estimate_s: float | None
    #: Why the task is left out, or what it is expected to save.
    note: str = ""
    #: Seconds a day that it is expected to save; 0 where the campaign does not weigh it.
    gain_s: float = 0.0


def plan(settings: Settings, name: str, options: RunOptions) -> list[PlannedTask]:
    """The tasks that `run_campaign` would carry out on this machine, in their order."""
    campaign = adjust_campaign(campaign_of(settings, name), options)
    requested = requested_of(settings, campaign, options)
    check_declarations(requested)
    workers = []
    for backend in map(backend_kinds.spec, sorted(runner_kinds(requested))):
        tools = backend.toolchain()
        for number, device in enumerate(backend.find_devices() if backend.timed else ()):
            workers.append(WorkerInfo(f"{backend.kind}-{number}", device, tools))
    scheduled, notes = assign_devices(requested, workers)
    known, gains = _read_store(settings, options, scheduled)
    counted = len(scheduled) <= _COUNTED
    rows = zip(scheduled, known, gains, strict=True)
    ordered = in_turns(rows, lambda row: (_find_group(row[0]), row[2]))
    lines = [_plan_task(*row, sum(gains), counted=counted) for row in ordered]
    now = datetime.now(UTC)
    planned = _leave_out(lines, workers, campaign.limit_s(now, now))
    absent = Device("none", "", "")
    planned += [PlannedTask("", Workload(()), absent, "skip", 0, 0, 0, 0.0, n) for n in notes]
    return planned


def _find_group(item: ScheduledTask) -> Hashable:
    one = item.requested
    return find_group(one.kernel.spec, item.device, one.workload, one.place)


def _leave_out(
    lines: Sequence[PlannedTask], workers: Sequence[WorkerInfo], limit_s: float | None
) -> list[PlannedTask]:
    """The lines, where those are skipped that begin after the end of the run."""
    runners = Counter(worker.device.fingerprint for worker in workers)
    busy_s: dict[str, float] = defaultdict(float)
    planned = []
    for line in lines:
        device = line.device.fingerprint
        late = limit_s is not None and busy_s[device] >= limit_s
        busy_s[device] += (line.estimate_s or 0.0) / max(1, runners[device])
        note = f"left out by the end of the run; {line.note}".rstrip("; ")
        planned.append(replace(line, mode="skip", note=note) if late else line)
    return planned


def _read_store(
    settings: Settings, options: RunOptions, tasks: Sequence[ScheduledTask]
) -> tuple[list[int], list[float]]:
    """How many configs of each task have results in the database that a run would reuse, and what
    each is expected to save."""
    nothing = [0] * len(tasks)
    protocol = settings.measure.make_protocol().key
    url = anchor(settings, options.base).database.url
    try:
        with Store.open(url, create=False) as store:
            known = [_known_of(store, item, protocol) for item in tasks]
            gains = expect_gains(tasks, store.list_confirmed)
            return nothing if options.fresh else known, gains
    except NothingStoredError:
        return nothing, expect_gains(tasks, list)


def _known_of(store: Store, item: ScheduledTask, protocol: str) -> int:
    space = item.requested.bind(item.device)
    found = drop_lost(store.known_trials(item.key(protocol)))
    return sum(space.feasible(trial.config) for trial in found)


def _plan_task(
    item: ScheduledTask, known: int, gain_s: float, all_s: float, *, counted: bool
) -> PlannedTask:
    """known: configs with results. gain_s: expected to be saved a day, all_s: by all tasks."""
    space, budget = item.requested.bind(item.device), item.requested.budget.trials_at_most
    size = space.size() if counted or budget is None else None
    trials = space.cardinality() if size is None else size
    trials = trials if budget is None else min(trials, budget)
    place, mode = item.requested.place, "compile" if item.compile_only else "measure"
    if place is not None and place.between is not None:
        trials, mode = min(trials, COMPARED), "compare"
    each_s = backend_kinds.spec(item.device.kind).seconds_per_trial
    each_s = _COMPILE_S if item.compile_only else each_s
    return PlannedTask(
        kernel=item.requested.kernel.name,
        workload=item.requested.workload,
        device=item.device,
        mode=mode,
        space_size=size,
        budget_trials=trials,
        known=known,
        estimate_s=max(0, trials - known) * each_s,
        note=f"{gain_s / all_s:.1%} of what is expected to be saved" if gain_s else "",
        gain_s=gain_s,
    )
