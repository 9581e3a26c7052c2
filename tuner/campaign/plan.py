"""What a campaign would do on this machine, without starting anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from results_db import NothingStoredError, Store
from search_spaces.records import Device, Workload
from tuner.campaign import environment
from tuner.campaign.known_results import kept
from tuner.campaign.options import RunOptions, adjusted, campaign_of, chosen
from tuner.campaign.tasks import ScheduledTask, place, runner_kinds
from tuner.settings import anchored
from tuner.settings.models import Settings
from workers.records import WorkerInfo


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A line of the plan. mode: `measure`, or `compile` where no such device is here.

    known: configs whose results are taken over from earlier runs.
    """

    kernel: str
    workload: Workload
    device: Device
    mode: str
    space_size: int
    budget_trials: int | None
    known: int
    estimate_s: float | None
    note: str = ""


def plan(settings: Settings, name: str, options: RunOptions) -> list[PlannedTask]:
    """What `run_campaign` would do on this machine, without starting anything."""
    from workers import device, toolchain

    campaign = adjusted(campaign_of(settings, name), options)
    wanted = chosen(settings, campaign, options)
    workers = []
    for kind in sorted(runner_kinds(wanted) - {"interpreter"}):
        found = [device.detect("cpu")] if kind == "cpu" else _found(kind)
        tools = toolchain.current(kind)
        workers += [WorkerInfo(f"{kind}-{i}", d, tools) for i, d in enumerate(found)]
    placed, notes = place(wanted, workers, toolchain.current("cuda"))
    known = _known(settings, options, placed)
    lines = [_planned(item, count) for item, count in zip(placed, known, strict=True)]
    absent = Device("none", "", "")
    lines += [PlannedTask("", Workload(()), absent, "skip", 0, 0, 0, 0.0, n) for n in notes]
    return lines


def _found(kind: str) -> list[Device]:
    from workers import device

    if kind == "simulated":
        return [Device("simulated", "simulated device", "simulated")]
    return list(device.found(kind))


def _known(settings: Settings, options: RunOptions, placed: Sequence[ScheduledTask]) -> list[int]:
    """How many configs of each task the database has results for; none where all is new."""
    nothing = [0] * len(placed)
    if options.fresh:
        return nothing
    protocol = environment.protocol_key(environment.protocol(settings.measure))
    url = anchored(settings, options.base).database.url
    try:
        with Store.open(url, create=False) as store:
            return [_known_of(store, item, protocol) for item in placed]
    except NothingStoredError:
        return nothing


def _known_of(store: Store, item: ScheduledTask, protocol: str) -> int:
    space = item.wanted.bind(item.device)
    found = kept(store.known_trials(item.key(protocol)))
    return sum(space.feasible(trial.config) for trial in found)


def _planned(item: ScheduledTask, known: int) -> PlannedTask:
    size = item.wanted.bind(item.device).size()
    budget = item.wanted.budget.trials_at_most
    trials = size if budget is None else min(size, budget)
    return PlannedTask(
        kernel=item.wanted.kernel.name,
        workload=item.wanted.workload,
        device=item.device,
        mode="compile" if item.compile_only else "measure",
        space_size=size,
        budget_trials=trials,
        known=known,
        estimate_s=max(0, trials - known)
        * environment.seconds_per_trial(item.device.kind, item.compile_only),
    )
