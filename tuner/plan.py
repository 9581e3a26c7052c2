"""What a campaign would do on this machine, without starting anything."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.records import Device, Toolchain, Workload
from tuner import environment
from tuner.config import Settings
from tuner.options import RunOptions, adjusted, campaign_of, chosen
from tuner.tasks import Placed, place, runner_kinds
from workers.records import WorkerInfo


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A line of the plan. mode: `measure`, or `compile` where no such device is here."""

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
        workers += [WorkerInfo(f"{kind}-{i}", d, Toolchain()) for i, d in enumerate(found)]
    placed, notes = place(wanted, workers, toolchain.current("cuda"))
    lines = [_planned(item) for item in placed]
    absent = Device("none", "", "")
    lines += [PlannedTask("", Workload(()), absent, "skip", 0, 0, 0, 0.0, n) for n in notes]
    return lines


def _found(kind: str) -> list[Device]:
    from workers import device

    if kind == "simulated":
        return [Device("simulated", "simulated device", "simulated")]
    return list(device.found(kind))


def _planned(item: Placed) -> PlannedTask:
    size = item.wanted.bind(item.device).size()
    budget = item.wanted.budget.trials
    trials = size if budget is None else min(size, budget)
    return PlannedTask(
        kernel=item.wanted.kernel.name,
        workload=item.wanted.workload,
        device=item.device,
        mode="compile" if item.compile_only else "measure",
        space_size=size,
        budget_trials=trials,
        known=0,
        estimate_s=trials * environment.seconds_per_trial(item.device.kind, item.compile_only),
    )
