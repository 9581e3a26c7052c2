"""One run of a campaign: plan it, bring workers up, drive the engine, select, report, export."""

from __future__ import annotations

from dataclasses import replace

from search_spaces.registry import refuse_nested
from tuner.campaign import findings
from tuner.campaign.driver import Control
from tuner.campaign.options import RunOptions, RunOutcome, adjusted, campaign_of, chosen
from tuner.campaign.plan import PlannedTask, plan
from tuner.campaign.run import CampaignRun
from tuner.engine.progress import ProgressCallback
from tuner.settings import anchored
from tuner.settings.models import Settings

__all__ = ["Control", "PlannedTask", "RunOptions", "RunOutcome", "plan", "run_campaign"]


def run_campaign(
    settings: Settings,
    name: str,
    *,
    options: RunOptions,
    on_progress: ProgressCallback | None = None,
    control: Control | None = None,
) -> RunOutcome:
    """Run a campaign, or go on with its interrupted run; returns when it is over.

    Raises `TunerError` for whatever the user can correct. Finished trials are stored one by one, at
    the latest half a second after they came, so that a kill loses less than a second of work.
    """
    from results_db import Store
    from results_db.patience import Patience

    refuse_nested("a run")
    settings = anchored(settings, options.base)
    campaign = adjusted(campaign_of(settings, name), options)
    wanted = chosen(settings, campaign, options)
    control = control or Control()
    patience = Patience(settings.database.patience, lambda: control.killed)
    with Store.open(settings.database.url, answer_s=settings.database.timeout) as opened:
        store = opened.waiting(patience)
        run = CampaignRun(settings, name, campaign, options, store, control)
        outcome = run.drive(wanted, on_progress)
        return replace(outcome, findings=tuple(findings.of_run(store, outcome.run_id)))
