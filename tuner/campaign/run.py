"""Run a campaign: from its settings to its findings, with the pool, the driver and the record."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from results_db.errors import StoreMovedError
from results_db.patience import Patience
from results_db.stored_records import RunStatus, Stage
from search_spaces import triton_versions
from search_spaces.errors import SourceChangedError, TunerError
from search_spaces.registry import refuse_nested
from search_spaces.source_changes import SourceGuard
from tuner import strategies
from tuner.base.tracing import span, trace_calls
from tuner.campaign import lease
from tuner.campaign.declaration_check import PendingCheck, check_declarations
from tuner.campaign.driver import Driver
from tuner.campaign.early_start import load_workers
from tuner.campaign.options import (
    Control,
    RunOptions,
    RunOutcome,
    adjust_campaign,
    campaign_of,
    requested_of,
)
from tuner.campaign.quarantine import find_quarantined, without_quarantined
from tuner.campaign.run_files import RunFiles
from tuner.campaign.run_record import RunSpec, conclude, ensure_task
from tuner.campaign.task_gains import expect_gains
from tuner.campaign.task_specs import TaskSpecs
from tuner.campaign.tasks import RequestedTask, assign_devices
from tuner.campaign.toolchain_check import check_tables
from tuner.campaign.worker_start import (
    START_TIMEOUTS,
    ExpectedWorkers,
    StartedPool,
    await_workers,
    required_pool,
)
from tuner.engine import Engine, TaskSpec
from tuner.engine.finals_time import limit_finals
from tuner.engine.range_search import FinishedSize
from tuner.integrations.priors import read_folder
from tuner.progress import Progress, ProgressCallback
from tuner.settings import anchor
from tuner.settings.sections import CampaignConfig, Settings
from workers import environment as worker_environment
from workers.backend_kinds import spec_of_target
from workers.job_records import OTHER_BITS, WorkerInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results_db import Store
    from workers.job_records import PoolSpec
    from workers.roles import Pool

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Announcer:
    """Reports the stages to a callback, until the callback's reader has left."""

    on_progress: ProgressCallback | None
    #: When the run began, by `time.monotonic`.
    began_s: float

    def say(self, stage: str, activity: str) -> None:
        """stage, activity: as in `Progress`."""
        if self.on_progress is None:
            return
        elapsed_s = time.monotonic() - self.began_s
        try:
            self.on_progress(Progress.of_stage(stage, activity, elapsed_s))
        except OSError:
            self.on_progress = None

    def starting(self, pool: Pool) -> None:
        """The pool has been started; its workers come up."""
        if not pool.warm:
            number = pool.builders
            self.say("starting", f"starting {number} builder{'s' * (number != 1)}")

    def opening(self, workers: Sequence[WorkerInfo]) -> None:
        """The devices of these workers are being opened."""
        names = sorted({worker.device.name for worker in workers})
        if names:
            self.say("starting", f"opening {', '.join(names)}")


@dataclass(slots=True)
class CampaignRun:
    """One run of one campaign."""

    settings: Settings
    name: str
    campaign: CampaignConfig
    options: RunOptions
    store: Store
    control: Control
    #: The files of the run's kernels.
    sources: SourceGuard
    #: The moment on the pool's clock at which the run is to be over; None: no such limit.
    ends_at: float | None = None
    #: The seconds of the whole run; None: no limit.
    limit_s: float | None = None
    #: The run that this driver holds; None before it has one.
    _run_id: int | None = None
    _spec: RunSpec = field(init=False)

    def __post_init__(self) -> None:
        self._spec = RunSpec(self.name, self.campaign, self.settings, self.options)

    def drive(
        self,
        tasks: list[RequestedTask],
        announcer: Announcer,
        started: StartedPool,
        began: float,
    ) -> RunOutcome:
        """Carry the run out on a pool that has been started, and write report and tables.

        began: when the run began, by `time.monotonic`.
        """
        try:
            outcome = self._drive(tasks, announcer, started, began)
            self.store.check_place()
            return outcome
        except StoreMovedError as error:
            self._release(error)
            raise self._rescue(error) from error
        except BaseException as error:
            self._release(error)
            raise
        finally:
            lease.leave(self.store)

    def _drive(
        self,
        tasks: list[RequestedTask],
        announcer: Announcer,
        started: StartedPool,
        began: float,
    ) -> RunOutcome:
        self._remark(tasks)
        pool = started.pool
        # A pool in virtual time brings its own clock.
        clock = pool.clock
        self._begin_or_resume(clock)
        timeout_s = self.settings.pool.connect_timeout * START_TIMEOUTS
        away = find_quarantined(self.store)
        workers = without_quarantined(list(pool.describe_workers() or ()), away)
        announcer.opening(workers)
        # Builds are ordered while the runners of a pool that has described them open their devices.
        expected = ExpectedWorkers(workers, timeout_s) if workers else None
        ready = [] if workers else await_workers(pool, self.control, timeout_s)
        ready = without_quarantined(ready, away)
        if self.control.draining:  # the run has no record yet, and needs none
            raise KeyboardInterrupt
        run_id, specs, sizes, notes = self._prepare(tasks, workers or ready)
        files = RunFiles(self.settings, self.options, tasks, run_id)
        engine = Engine(specs, pool.builders, self.campaign.in_flight, sizes)
        driver = Driver(
            engine,
            pool,
            self.store.waiting(Patience()),
            run_id=run_id,
            control=self.control,
            on_progress=announcer.on_progress,
            clock=clock,
            patience_s=self.settings.database.patience,
            expected=expected,
            quarantined=away.keys(),
            on_stage=files.enter,
            sources=self.sources,
        )
        began_s = time.monotonic()
        with files:
            end = driver.run(ready)
        ended_s = time.monotonic()
        announcer.say("closing", driver.used.known or "ending the run")
        notes += filter(None, [driver.used.known, self._remark_on_limit(engine)])
        # Processes end while the results are written.
        unopened = expected is not None and not expected.started
        started.begin_to_close(kill=self.control.killed or unopened)
        elapsed_s = time.monotonic() - began
        announcer.say("writing", "writing the results")
        outcome = conclude(self.store, run_id, end, notes, elapsed_s, driver.used.figures())
        outcome = replace(outcome, stage_s=driver.stages.stage_s, began_s=began_s, ended_s=ended_s)
        return files.write(self.store, outcome)

    def _begin_or_resume(self, clock: Callable[[], float]) -> None:
        """Refuse what another driver carries out, and find when the run is to be over."""
        unfinished = None if self.options.fresh else self._spec.find_unfinished(self.store)
        if unfinished is not None:
            lease.check(unfinished)
        spent_s = time.monotonic() - self.options.started_s
        now = datetime.now(UTC) - timedelta(seconds=spent_s)
        self.limit_s = self.campaign.limit_s(unfinished.started_at if unfinished else now, now)
        if self.limit_s is not None:
            self.ends_at = clock() + self.limit_s - spent_s

    def _remark_on_limit(self, engine: Engine) -> str:
        """What the end of the run has cut short; empty for nothing."""
        own = self.limit_s == self.campaign.wall
        limit = "time limit" if own else f"deadline {self.campaign.deadline}"
        cut = sum(task.search.asker.cut_short for task in engine.tasks)
        return f"the {limit} ended {cut} of {len(engine.tasks)} searches" if cut else ""

    def _remark(self, tasks: list[RequestedTask]) -> None:
        """Say what of this machine's environment workers do not follow, or tuner does not know."""
        remarks = worker_environment.remarks()
        specs = (spec_of_target(target) for task in tasks for target in task.targets)
        if any(spec.accelerator for spec in specs):
            remarks.append(triton_versions.remark())
        for remark in filter(None, remarks):
            _log.warning("%s", remark)

    @trace_calls("prepare the tasks", "start")
    def _prepare(
        self, tasks: list[RequestedTask], workers: list[WorkerInfo]
    ) -> tuple[int, list[TaskSpec], list[FinishedSize], list[str]]:
        """Hold the run's record; returns its number, the specs of open tasks, the sizes of ranges
        that are over, and notes."""
        scheduled, notes = assign_devices(tasks, workers)
        for note in notes:
            _log.info("left out: %s", note)
        if not scheduled:
            raise TunerError(
                f"campaign {self.name!r} has no task it can run here: {notes[0]}",
                "`tuner workers list` shows the devices here; a target such as cuda:90 (--target, "
                "or the campaign's targets) compiles and verifies without one",
            )
        info = self._spec.begin(self.store, scheduled)
        self.store = lease.take(self.store, info)
        self._run_id = info.run_id
        timed = sum(not item.compile_only for item in scheduled)
        specs_of = TaskSpecs(
            self.store,
            self.settings,
            str(self.options.base.resolve()),
            bool(info.environment.get("fresh")),
            self.ends_at,
            limit_finals(self.limit_s, timed / max(1, len(workers))),
            read_folder(self.options.base / self.settings.paths.priors),
            self.store.quarantines(),
            self.campaign.reconfirm,
        )
        protocol_key = self.settings.measure.make_protocol().key
        specs, finished = [], []
        gains = expect_gains(scheduled, self.store.list_confirmed)
        for item, gain in zip(scheduled, gains, strict=True):
            task = ensure_task(self.store, info.run_id, item, protocol_key)
            if task.stage != Stage.DONE:
                specs.append(specs_of.of(item, task, gain))
            elif task.place is not None:
                trials = self.store.trials(task.task_id)
                finished.append(FinishedSize.of(item.requested.kernel.spec, task, trials))
        _log.info(
            "run %d of %s: %d of %d tasks are open",
            info.run_id, self.name, len(specs), len(scheduled),
        )  # fmt: skip
        return info.run_id, specs, finished, notes

    def _release(self, error: BaseException) -> None:
        """End the run where the database still takes it.

        It is marked interrupted, so that it can be resumed, and failed if its code has changed.
        """
        if self._run_id is not None:
            message = error.message if isinstance(error, TunerError) else type(error).__name__
            changed = isinstance(error, SourceChangedError)
            status = RunStatus.FAILED if changed else RunStatus.INTERRUPTED
            _log.info("run %d is %s: %s", self._run_id, status, message)
            with suppress(TunerError):
                at_once = self.store.waiting(Patience())
                at_once.finish_run(self._run_id, status, {"summary": message})

    def _rescue(self, error: StoreMovedError) -> StoreMovedError:
        """The same error, with the path to which the deleted file's contents were saved."""
        path = self.store.rescue()
        return StoreMovedError(
            f"{error.message}; its contents were saved to {path}",
            f"move that file to the place in database.url and rerun to resume, or {error.hint}",
        )


def pool_spec_of(settings: Settings, name: str, *, options: RunOptions) -> PoolSpec:
    """The spec of the pool that `run_campaign` creates for a campaign when it is given none.

    Raises `TunerError` for whatever is wrong before a worker starts, mistakes in the declarations
    of kernels included.
    """
    settings = anchor(settings, options.base)
    campaign = adjust_campaign(campaign_of(settings, name), options)
    tasks = requested_of(settings, campaign, options)
    check_declarations(tasks)
    return required_pool(settings, tasks, options.base, campaign.priority)


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
    control = control or Control()
    if (wanted := campaign_of(settings, name).check) is not None:
        settings = anchor(settings, options.base)
        return check_tables(settings, name, wanted, options, control)
    if pool is None and create_pool is None:
        load_workers(settings, name, options.base)
    settings = anchor(settings, options.base)
    campaign = adjust_campaign(campaign_of(settings, name), options)
    announcer = Announcer(on_progress, began)
    announcer.say("loading", "loading the kernels")
    with span("load the kernels", "start"):
        tasks = requested_of(settings, campaign, options)
        sources = SourceGuard.of({id(task.kernel): task.kernel for task in tasks}.values())
    if pool is None:
        create = create_pool or pools.create
        pool = create(required_pool(settings, tasks, options.base, campaign.priority))
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
            return replace(outcome, findings=tuple(_list_findings(store, outcome.run_id)))


def _list_findings(store: Store, run_id: int) -> Iterator[str]:
    """One line for every task of a run that has trials, none of them correct.

    Not for a size that was tried with configs of other bits alone: others of its range serve it.
    """
    for task in store.overview(run_id):
        if task.why_none_correct and OTHER_BITS not in task.failure:
            yield f"{task.kernel} {task.workload} on {task.device}: {task.why_none_correct}"
