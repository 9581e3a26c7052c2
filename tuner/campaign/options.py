"""The options of one call of `tuner run`, and its outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from results_db.stored_records import RunStatus
from search_spaces.errors import TunerError
from search_spaces.near_names import did_you_mean
from tuner.campaign.tasks import RequestedTask, requested_tasks
from tuner.engine.instructions import Fault
from tuner.settings.sections import Budget, CampaignConfig, Settings, StrategyConfig


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of one call of `tuner run`; they override the campaign."""

    #: Start a new run and reuse no stored result.
    fresh: bool = False
    seed: int | None = None
    #: Names or specs of the only kernels to tune; empty for all.
    kernels: tuple[str, ...] = ()
    #: Words of the keys of the only workloads to tune, such as `M=32`; empty for all.
    workloads: tuple[str, ...] = ()
    #: Trials per task, in place of the budget's.
    trials: int | None = None
    #: Keys of the campaign with values that take the place of its own.
    replaced: Mapping[str, object] = field(default_factory=dict)
    #: The start of the command, by `time.monotonic`.
    started_s: float = field(default_factory=time.monotonic, compare=False)
    #: Seconds of device time per task, in place of the budget's.
    device_s: float | None = None
    strategy: str | None = None
    #: Whether to write the HTML report.
    report: bool = True
    #: Whether to write tables.
    export: bool = True
    #: The folder that relative paths start from.
    base: Path = field(default_factory=Path)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The outcome of a run."""

    run_id: int
    status: RunStatus
    tasks: int
    trials: int
    failures: int
    elapsed_s: float
    summary: str
    #: Tasks that were compiled and not timed, as no such device is here.
    untimed: int = 0
    report: Path | None = None
    tables: tuple[Path, ...] = ()
    #: One line for every task without a correct variant, or for what a check found.
    findings: tuple[str, ...] = ()
    #: The entries that a check of tables has measured, as `tuner check` lists them; else None.
    entries: tuple[Mapping[str, Any], ...] | None = None
    #: The machine fault that ended the run or one of its tasks; the run is then interrupted.
    fault: Fault | None = None
    #: Seconds by task and stage: `search`, `finals`, `confirm`.
    stage_s: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    #: When the search of the first task could begin, by `time.monotonic`.
    began_s: float = 0.0
    #: When the last task was over, by `time.monotonic`.
    ended_s: float = 0.0


def campaign_of(settings: Settings, name: str) -> CampaignConfig:
    """The campaign of that name; otherwise `TunerError` with the nearest name."""
    if name in settings.campaigns:
        return settings.campaigns[name]
    known = ", ".join(sorted(settings.campaigns)) or "none"
    raise TunerError(
        f"no campaign {name!r} in the configuration{did_you_mean(name, settings.campaigns)}",
        f"campaigns in config.yaml: {known}; or a kernel's place, from `tuner spaces list`",
    )


def adjust_campaign(campaign: CampaignConfig, options: RunOptions) -> CampaignConfig:
    """The campaign with the options applied to every task."""
    changes = {"trials": options.trials, "device": options.device_s}
    changes = {k: v for k, v in changes.items() if v is not None}
    strategy = {"name": options.strategy, "seed": options.seed}
    strategy = {k: v for k, v in strategy.items() if v is not None}
    tasks = [
        line.model_copy(
            update={
                "budget": Budget(**{**(line.budget or campaign.budget).model_dump(), **changes}),
                "strategy": StrategyConfig(
                    **{**(line.strategy or campaign.strategy).model_dump(), **strategy}
                ),
            }
        )
        for line in campaign.tasks
    ]
    return campaign.model_copy(update={"tasks": tasks, **options.replaced})


def requested_of(
    settings: Settings, campaign: CampaignConfig, options: RunOptions
) -> list[RequestedTask]:
    """The tasks of an adjusted campaign that pass the options' filters."""
    if campaign.check is not None:
        raise TunerError("a check of tables has no tasks to plan", "leave --dry-run out")
    tasks = requested_tasks(
        campaign,
        extra=settings.kernels,
        paths=(str(options.base.resolve()),),
        kernels=options.kernels,
        workloads=options.workloads,
        baselines=settings.measure.baselines or (),
    )
    single = next((task for task in tasks if task.place is None), None)
    if settings.measure.numerics == "batch_invariant" and single is not None:
        raise TunerError(
            f"{single.label}: measure.numerics: batch_invariant needs a range of sizes",
            "give the size that counts rows as a range, such as 1..4096",
        )
    return tasks


class Control:
    """Stops a running campaign. Any thread or signal handler may call it."""

    def __init__(self) -> None:
        self._drain = threading.Event()
        self._kill = threading.Event()

    def drain(self) -> None:
        """Finish what is in flight, start nothing new."""
        self._drain.set()

    def kill(self) -> None:
        """Stop at once. What is in flight is lost; what is recorded is kept."""
        self._kill.set()

    @property
    def draining(self) -> bool:
        return self._drain.is_set()

    @property
    def killed(self) -> bool:
        return self._kill.is_set()
