"""What one call of `tuner run` changes of a campaign, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from search_spaces.errors import TunerError
from search_spaces.near_names import did_you_mean
from tuner.campaign.declaration_check import rehearse
from tuner.campaign.tasks import RequestedTask, requested_tasks
from tuner.engine.instructions import Fault
from tuner.settings.models import Budget, CampaignConfig, Settings, StrategyConfig


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What one call of `tuner run` changes of the campaign.

    fresh: measure everything anew, in a new run. trials, device_s: instead of the budget of every
    task. wall_s: seconds that the run as a whole may search. base: the folder relative paths start
    from.
    """

    fresh: bool = False
    seed: int | None = None
    kernels: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    trials: int | None = None
    wall_s: float | None = None
    device_s: float | None = None
    strategy: str | None = None
    report: bool = True
    export: bool = True
    base: Path = field(default_factory=Path)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What a run came to. status: `finished`, `interrupted` or `failed`.

    findings: one line for every task without a correct variant.
    """

    run_id: int
    status: str
    tasks: int
    trials: int
    failures: int
    elapsed_s: float
    summary: str
    report: Path | None = None
    tables: tuple[Path, ...] = ()
    findings: tuple[str, ...] = ()
    #: The fault of the machine that ended the run or one of its tasks; the run is interrupted.
    fault: Fault | None = None


def campaign_of(settings: Settings, name: str) -> CampaignConfig:
    """The campaign of that name; `TunerError` with the nearest name otherwise."""
    if name in settings.campaigns:
        return settings.campaigns[name]
    known = ", ".join(sorted(settings.campaigns)) or "none"
    raise TunerError(
        f"no campaign {name!r} in the configuration{did_you_mean(name, settings.campaigns)}",
        f"campaigns in config.yaml: {known}",
    )


def adjusted(campaign: CampaignConfig, options: RunOptions) -> CampaignConfig:
    """The campaign with the overrides of the command line applied to every task."""
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
    return campaign.model_copy(update={"tasks": tasks})


def chosen(
    settings: Settings, campaign: CampaignConfig, options: RunOptions
) -> list[RequestedTask]:
    """The tasks of an adjusted campaign that the options leave, their declarations tried out."""
    wanted = requested_tasks(
        campaign,
        extra=settings.kernels,
        paths=(str(options.base.resolve()),),
        kernels=options.kernels,
        workloads=options.workloads,
        baselines=settings.measure.baselines or (),
    )
    rehearse(wanted)
    return wanted
