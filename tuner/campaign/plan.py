"""The plan of a campaign on this machine, for `tuner run --dry-run`; starts nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from results_db import NothingStoredError, Store
from search_spaces.records import Device, Workload
from tuner.campaign.declaration_check import check_declarations
from tuner.campaign.options import RunOptions, adjust_campaign, campaign_of, requested_of
from tuner.campaign.tasks import ScheduledTask, assign_devices, drop_lost, runner_kinds
from tuner.engine.range_search import COMPARED
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
    #: Why the task is left out, or its share of the time of recorded calls.
    note: str = ""


def plan(settings: Settings, name: str, options: RunOptions) -> list[PlannedTask]:
    """The tasks that `run_campaign` would carry out on this machine."""
    campaign = adjust_campaign(campaign_of(settings, name), options)
    requested = requested_of(settings, campaign, options)
    check_declarations(requested)
    workers = []
    for backend in map(backend_kinds.spec, sorted(runner_kinds(requested))):
        tools = backend.toolchain()
        for number, device in enumerate(backend.find_devices() if backend.timed else ()):
            workers.append(WorkerInfo(f"{backend.kind}-{number}", device, tools))
    scheduled, notes = assign_devices(requested, workers)
    scheduled = sorted(scheduled, key=lambda item: -item.requested.share)
    known = _count_known(settings, options, scheduled)
    counted = len(scheduled) <= _COUNTED
    lines = [_plan_task(*pair, counted=counted) for pair in zip(scheduled, known, strict=True)]
    absent = Device("none", "", "")
    lines += [PlannedTask("", Workload(()), absent, "skip", 0, 0, 0, 0.0, n) for n in notes]
    return lines


def _count_known(
    settings: Settings, options: RunOptions, tasks: Sequence[ScheduledTask]
) -> list[int]:
    """How many configs of each task have results in the database that a run would reuse."""
    nothing = [0] * len(tasks)
    if options.fresh:
        return nothing
    protocol = settings.measure.make_protocol().key
    url = anchor(settings, options.base).database.url
    try:
        with Store.open(url, create=False) as store:
            return [_known_of(store, item, protocol) for item in tasks]
    except NothingStoredError:
        return nothing


def _known_of(store: Store, item: ScheduledTask, protocol: str) -> int:
    space = item.requested.bind(item.device)
    found = drop_lost(store.known_trials(item.key(protocol)))
    return sum(space.feasible(trial.config) for trial in found)


def _plan_task(item: ScheduledTask, known: int, *, counted: bool) -> PlannedTask:
    space, budget = item.requested.bind(item.device), item.requested.budget.trials_at_most
    size = space.size() if counted or budget is None else None
    trials = space.cardinality() if size is None else size
    trials = trials if budget is None else min(trials, budget)
    place, mode = item.requested.place, "compile" if item.compile_only else "measure"
    if place is not None and place.between is not None:
        trials, mode = min(trials, COMPARED), "compare"
    return PlannedTask(
        kernel=item.requested.kernel.name,
        workload=item.requested.workload,
        device=item.device,
        mode=mode,
        space_size=size,
        budget_trials=trials,
        known=known,
        estimate_s=max(0, trials - known)
        * _seconds_per_trial(item.device.kind, compile_only=item.compile_only),
        note=f"{item.requested.share:.1%} of the calls' time" if item.requested.share else "",
    )


def _seconds_per_trial(kind: str, *, compile_only: bool) -> float:
    return _COMPILE_S if compile_only else backend_kinds.spec(kind).seconds_per_trial
