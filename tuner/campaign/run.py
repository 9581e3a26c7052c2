"""One run of a campaign while it lasts: the pool, the engine's driver and the run's record."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from results_db.errors import StoreMovedError
from results_db.patience import Patience
from search_spaces.errors import TunerError
from tuner.campaign import environment, lease
from tuner.campaign.driver import Control, Driver
from tuner.campaign.event_log import EventLog
from tuner.campaign.options import RunOptions, RunOutcome
from tuner.campaign.pool_spec import required_pool
from tuner.campaign.products import write_products
from tuner.campaign.run_record import RunSpec, conclude, ensure_task
from tuner.campaign.task_specs import TaskSpecs
from tuner.campaign.tasks import RequestedTask, assign_devices
from tuner.engine import Engine, TaskSpec
from tuner.progress import ProgressCallback
from tuner.settings.models import CampaignConfig, Settings
from tuner.tracing import span, traced
from workers.records import WorkerGone, WorkerInfo, WorkerReady

if TYPE_CHECKING:
    from results_db import Store
    from workers.records import PoolSpec
    from workers.roles import Pool

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class CampaignRun:
    """One run of one campaign."""

    settings: Settings
    name: str
    campaign: CampaignConfig
    options: RunOptions
    store: Store
    control: Control
    #: The moment on the pool's clock after which no search asks for another config; None: never.
    ends_at: float | None = None
    #: The run that this driver holds; None before it has one.
    _run_id: int | None = None
    _spec: RunSpec = field(init=False)

    def __post_init__(self) -> None:
        self._spec = RunSpec(self.name, self.campaign, self.settings, self.options)

    def drive(
        self,
        tasks: list[RequestedTask],
        on_progress: ProgressCallback | None,
        pool: Pool | None = None,
        create_pool: Callable[[PoolSpec], Pool] | None = None,
    ) -> RunOutcome:
        """Carry the run out, from the start of the workers to report and tables.

        pool: a pool that is not started, by default the one that `create_pool` makes; by default
        one of the kind in the settings.
        """
        try:
            outcome = self._drive(tasks, on_progress, pool, create_pool)
            self.store.check_place()
            return outcome
        except StoreMovedError as error:
            self._release(error)
            raise self._rescued(error) from error
        except BaseException as error:
            self._release(error)
            raise
        finally:
            lease.leave(self.store)

    def _drive(
        self,
        tasks: list[RequestedTask],
        on_progress: ProgressCallback | None,
        pool: Pool | None,
        create_pool: Callable[[PoolSpec], Pool] | None,
    ) -> RunOutcome:
        from workers import pools

        started = time.monotonic()
        if not self.options.fresh:
            unfinished = self._spec.unfinished(self.store)
            if unfinished is not None:
                lease.check(unfinished)
        if pool is None:
            create = create_pool or pools.create
            pool = create(required_pool(self.settings, tasks, self.options.base))
        # A pool in virtual time brings its own clock.
        clock = getattr(pool, "clock", time.monotonic)
        if self.options.wall_s is not None:
            self.ends_at = clock() + self.options.wall_s
        killed = True
        try:
            with span("start the pool", "start"):
                pool.start()
            workers = self._await_workers(pool)
            run_id, specs, notes = self._prepare(tasks, workers)
            engine = Engine(specs, builders=pool.builders, in_flight=self.campaign.in_flight)
            driver = Driver(
                engine,
                pool,
                self.store.waiting(Patience()),
                run_id,
                self.control,
                on_progress,
                clock,
                self.settings.database.patience,
                EventLog(self.options.events, engine) if self.options.events else None,
            )
            end = driver.run(workers)
            killed = self.control.killed
        finally:
            with span("close the pool", "end"):
                pool.close(kill=killed)
        elapsed_s = time.monotonic() - started
        outcome = conclude(self.store, run_id, end, notes, elapsed_s, driver.usage())
        outcome = replace(outcome, stage_s=driver.stages.stage_s)
        _log.info("run %d %s: %s", run_id, outcome.status, outcome.summary)
        return write_products(self.store, self.settings, self.options, tasks, outcome)

    @traced("wait for the workers", "waiting")
    def _await_workers(self, pool: Pool) -> list[WorkerInfo]:
        """Wait for the workers to start; `TunerError` where none does in time."""
        ready: dict[str, WorkerInfo] = {}
        gone: WorkerGone | None = None
        deadline = time.monotonic() + self.settings.pool.connect_timeout * 4
        _log.info("waiting for %d runners", pool.runners)
        while len(ready) < pool.runners and time.monotonic() < deadline:
            if self.control.draining:
                raise KeyboardInterrupt
            for event in pool.poll(0.2):
                if isinstance(event, WorkerReady):
                    ready[event.worker.worker_id] = event.worker
                    _log.info("%s is ready: %s", event.worker.worker_id, event.worker.device.name)
                elif isinstance(event, WorkerGone):
                    ready.pop(event.worker_id, None)
                    gone = event
                    _log.warning("%s did not start: %s", event.worker_id, event.reason)
        if not ready and (pool.runners or gone):
            reason = f": {gone.worker_id}: {gone.reason}" if gone else ""
            remedy = gone.remedy if gone else ""
            raise TunerError(
                f"no worker came up{reason}",
                remedy or "run `tuner doctor`, and see the workers' logs for the cause",
            )
        return list(ready.values())

    @traced("prepare the tasks", "start")
    def _prepare(
        self, tasks: list[RequestedTask], workers: list[WorkerInfo]
    ) -> tuple[int, list[TaskSpec], list[str]]:
        """Hold the run's record; returns its number, the specs of open tasks, and notes."""
        scheduled, notes = assign_devices(tasks, workers)
        for note in notes:
            _log.info("left out: %s", note)
        if not scheduled:
            raise TunerError(
                f"campaign {self.name!r} has no task it can run here: {notes[0]}",
                "run `tuner workers list` and compare with the targets",
            )
        info = self._spec.begin(self.store, scheduled)
        self.store = lease.take(self.store, info)
        self._run_id = info.run_id
        specs_of = TaskSpecs(
            self.store,
            self.settings,
            str(self.options.base.resolve()),
            bool(info.environment.get("fresh")),
            self.ends_at,
        )
        protocol_key = environment.protocol_key(environment.protocol(self.settings.measure))
        specs = []
        for item in scheduled:
            task = ensure_task(self.store, info.run_id, item, protocol_key)
            if task.stage != "done":
                specs.append(specs_of.of(item, task))
        _log.info(
            "run %d of %s: %d of %d tasks are open",
            info.run_id, self.name, len(specs), len(scheduled),
        )  # fmt: skip
        return info.run_id, specs, notes

    def _release(self, error: BaseException) -> None:
        """Mark the run interrupted where the database still takes it, so that it can be resumed."""
        if self._run_id is not None:
            message = error.message if isinstance(error, TunerError) else type(error).__name__
            _log.info("run %d is interrupted: %s", self._run_id, message)
            with suppress(TunerError):
                at_once = self.store.waiting(Patience())
                at_once.finish_run(self._run_id, "interrupted", {"summary": message})

    def _rescued(self, error: StoreMovedError) -> StoreMovedError:
        """The same error, with the path to which the deleted file's contents were saved."""
        path = self.store.rescue()
        return StoreMovedError(
            f"{error.message}; its contents were saved to {path}",
            f"move that file to the place in database.url and rerun to resume, or {error.hint}",
        )
