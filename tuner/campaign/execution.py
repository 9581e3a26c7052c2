"""Execution of a campaign from its settings to its findings."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from search_spaces.registry import refuse_nested
from search_spaces.source_changes import SourceGuard
from tuner import strategies
from tuner.campaign import findings
from tuner.campaign.announcer import Announcer
from tuner.campaign.declaration_check import PendingCheck, check_declarations
from tuner.campaign.driver import Control
from tuner.campaign.early_start import load_workers
from tuner.campaign.options import (
    RunOptions,
    RunOutcome,
    adjust_campaign,
    campaign_of,
    requested_of,
)
from tuner.campaign.pool_spec import required_pool
from tuner.campaign.run import CampaignRun
from tuner.campaign.started_pool import StartedPool
from tuner.progress import ProgressCallback
from tuner.settings import anchor
from tuner.settings.sections import Settings
from tuner.tracing import span

if TYPE_CHECKING:
    from workers.job_records import PoolSpec
    from workers.roles import Pool


def pool_spec_of(settings: Settings, name: str, *, options: RunOptions) -> PoolSpec:
    """The spec of the pool that `run_campaign` creates for a campaign when it is given none.

    Raises `TunerError` for whatever is wrong before a worker starts, mistakes in the declarations
    of kernels included.
    """
    settings = anchor(settings, options.base)
    tasks = requested_of(settings, adjust_campaign(campaign_of(settings, name), options), options)
    check_declarations(tasks)
    return required_pool(settings, tasks, options.base)


def run_campaign(
    settings: Settings,
    name: str,
    *,
    options: RunOptions,
    on_progress: ProgressCallback | None = None,
    control: Control | None = None,
    pool: Pool | None = None,
    create_pool: Callable[[PoolSpec], Pool] | None = None,
) -> RunOutcome:
    """Run a campaign, or resume its interrupted run; returns when it is over.

    pool: where builders and runners live, not yet started; by default one of the kind that
    `settings.pool` names. The run starts it, takes its `clock` where it has one, and closes it.
    create_pool: makes the pool from its spec, where `pool` is None.
    Raises `TunerError` for whatever the user can correct. Finished trials are stored one by one, at
    the latest half a second after they came, so that a kill loses less than a second of work.
    """
    from workers import pools

    refuse_nested("a run")
    began = time.monotonic()
    if pool is None and create_pool is None:
        load_workers(settings, name, options.base)
    settings = anchor(settings, options.base)
    campaign = adjust_campaign(campaign_of(settings, name), options)
    announcer = Announcer(on_progress, began)
    announcer.say("loading", "loading the kernels")
    with span("load the kernels", "start"):
        tasks = requested_of(settings, campaign, options)
        sources = SourceGuard.of({id(task.kernel): task.kernel for task in tasks}.values())
    control = control or Control()
    if pool is None:
        create = create_pool or pools.create
        pool = create(required_pool(settings, tasks, options.base))
    announcer.say("starting", "starting workers")
    with StartedPool(pool) as started:
        announcer.starting(pool)
        check = PendingCheck(tasks, pool, (str(options.base.resolve()),))
        # The process that checks starts meanwhile.
        strategies.load({task.strategy.name for task in tasks})
        from results_db import Store
        from results_db.patience import Patience

        if not check.wait(lambda: control.draining):  # the run has no record yet, and needs none
            raise KeyboardInterrupt
        patience = Patience(settings.database.patience, lambda: control.killed)
        with Store.open(settings.database.url, answer_s=settings.database.timeout) as opened:
            store = opened.waiting(patience)
            run = CampaignRun(settings, name, campaign, options, store, control, sources)
            outcome = run.drive(tasks, announcer, started, began)
            return replace(outcome, findings=tuple(findings.of_run(store, outcome.run_id)))
