"""The parts of one run that belong together while it lasts: pool, store, engine and products."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from results_db.errors import StoreMovedError
from results_db.patience import Patience
from results_db.records import RunInfo, TaskInfo, TrialRecord
from search_spaces.declaration import calls
from search_spaces.errors import TunerError
from search_spaces.records import Config, Workload, config_key, digest
from tuner.campaign import environment, known_results, lease
from tuner.campaign.driver import Control, Driver
from tuner.campaign.options import RunOptions, RunOutcome
from tuner.campaign.pool_spec import required_pool
from tuner.campaign.tasks import RequestedTask, ScheduledTask, place
from tuner.engine import Engine, Finish, TaskBudget, TaskSpec
from tuner.engine.default_config import default_failed
from tuner.progress import ProgressCallback
from tuner.settings.models import CampaignConfig, Settings
from workers.records import (
    KernelRef,
    MeasurementProtocol,
    WorkerGone,
    WorkerInfo,
    WorkerReady,
)

if TYPE_CHECKING:
    from results_db import Store
    from workers.roles import Pool


@dataclass(slots=True)
class CampaignRun:
    """One run of one campaign."""

    settings: Settings
    name: str
    campaign: CampaignConfig
    options: RunOptions
    store: Store
    control: Control
    #: The run this driver holds; None before it has one.
    _held: int | None = None
    #: When, on the pool's clock, no search asks for more; None for a run without that limit.
    ends_at: float | None = None

    def drive(
        self,
        wanted: list[RequestedTask],
        on_progress: ProgressCallback | None,
        pool: Pool | None = None,
    ) -> RunOutcome:
        """Hold a run of the campaign from its first worker to its last product.

        pool: a pool that is not started, by default one of the kind in the settings.
        """
        try:
            outcome = self._drive(wanted, on_progress, pool)
            self.store.check_place()
            return outcome
        except StoreMovedError as error:
            self._give_up(error)
            raise self._rescued(error) from error
        except BaseException as error:
            self._give_up(error)
            raise
        finally:
            lease.leave(self.store)

    def _drive(
        self,
        wanted: list[RequestedTask],
        on_progress: ProgressCallback | None,
        pool: Pool | None,
    ) -> RunOutcome:
        from workers import pools

        started = time.monotonic()
        if not self.options.fresh:
            under_way = self.store.unfinished_run(self.name, digest(self._run_spec()))
            if under_way is not None:
                lease.check(under_way)
        if pool is None:
            pool = pools.create(required_pool(self.settings, wanted, self.options.base))
        # A pool in virtual time brings its own clock.
        clock = getattr(pool, "clock", time.monotonic)
        if self.options.wall_s is not None:
            self.ends_at = clock() + self.options.wall_s
        killed = True
        try:
            pool.start()
            workers = self._await_workers(pool)
            info, specs, notes = self._prepare(wanted, workers)
            engine = Engine(specs, builders=pool.builders, in_flight=self.campaign.in_flight)
            driver = Driver(
                engine,
                pool,
                self.store.waiting(Patience()),
                info.run_id,
                self.control,
                on_progress,
                clock,
                self.settings.database.patience,
            )
            end = driver.run(workers)
            killed = self.control.killed
        finally:
            pool.close(kill=killed)
        elapsed_s = time.monotonic() - started
        outcome = self._conclude(info, end, notes, elapsed_s, driver.usage())
        return self._products(wanted, outcome)

    # -- workers -------------------------------------------------------------------------------
    def _await_workers(self, pool: Pool) -> list[WorkerInfo]:
        """The workers that come up in time; at least one must."""
        ready: dict[str, WorkerInfo] = {}
        gone: WorkerGone | None = None
        deadline = time.monotonic() + self.settings.pool.connect_timeout * 4
        while len(ready) < pool.runners and time.monotonic() < deadline:
            if self.control.draining:
                raise KeyboardInterrupt
            for event in pool.poll(0.2):
                if isinstance(event, WorkerReady):
                    ready[event.worker.worker_id] = event.worker
                elif isinstance(event, WorkerGone):
                    ready.pop(event.worker_id, None)
                    gone = event
        if not ready and (pool.runners or gone):
            why = f": {gone.worker_id}: {gone.reason}" if gone else ""
            remedy = gone.remedy if gone else ""
            raise TunerError(
                f"no worker came up{why}",
                remedy or "run `tuner doctor`, and see the workers' logs for the cause",
            )
        return list(ready.values())

    # -- tasks ---------------------------------------------------------------------------------
    def _prepare(
        self, wanted: list[RequestedTask], workers: list[WorkerInfo]
    ) -> tuple[RunInfo, list[TaskSpec], list[str]]:
        from workers import toolchain

        placed, notes = place(wanted, workers, toolchain.current("cuda"))
        if not placed:
            raise TunerError(
                f"campaign {self.name!r} has no task it can run here: {notes[0]}",
                "run `tuner workers list` and compare with the targets",
            )
        info = self._run_info(placed)
        self.store = lease.take(self.store, info)
        self._held = info.run_id
        fresh = bool(info.environment.get("fresh"))
        protocol = environment.protocol(self.settings.measure)
        specs = []
        for item in placed:
            task = self._ensure(info, item, protocol)
            if task.stage != "done":
                specs.append(self._spec(item, task, protocol, fresh=fresh))
        return info, specs, notes

    def _run_info(self, placed: Sequence[ScheduledTask]) -> RunInfo:
        """The interrupted run of the very same campaign, or a new one."""
        spec, fresh = self._run_spec(), self.options.fresh
        facts = environment.facts(self.options.base, fresh=fresh)
        facts["devices"] = ", ".join(sorted({p.device.name for p in placed}))
        seed = self.campaign.tasks[0].strategy or self.campaign.strategy
        return self.store.begin_run(
            self.name, digest(spec), seed.seed, facts, spec, resume=not fresh
        )

    def _run_spec(self) -> dict[str, Any]:
        """What two calls must agree on for one to go on with the run of the other."""
        spec = self.campaign.model_dump(mode="json", exclude={"schedule", "description"})
        spec["measure"] = self.settings.measure.model_dump(mode="json")
        spec["only"] = [list(self.options.kernels), list(self.options.workloads)]
        return spec

    def _ensure(
        self, info: RunInfo, item: ScheduledTask, protocol: MeasurementProtocol
    ) -> TaskInfo:
        kernel, workload = item.wanted.kernel, item.wanted.workload
        cost = kernel.cost(workload)
        note = ""
        if item.compile_only:
            note = (
                f"no {item.device.target} device here: compiled for it and verified in Triton's "
                "interpreter, not timed"
            )
        task = self.store.ensure_task(
            info.run_id,
            item.key(environment.protocol_key(protocol)),
            flops=cost.flops,
            bytes=cost.bytes,
            tolerance=kernel.tolerance(workload).relative,
            note=note,
        )
        if task.stage != "done" and task.note != note:  # it says why the run was interrupted
            self.store.set_stage(task.task_id, task.stage, note)
            task = replace(task, note=note)
        return task

    def _spec(
        self, item: ScheduledTask, task: TaskInfo, protocol: MeasurementProtocol, *, fresh: bool
    ) -> TaskSpec:
        from tuner import strategies

        wanted, kernel, workload = item.wanted, item.wanted.kernel, item.wanted.workload
        space = wanted.bind(item.device)
        seed = environment.task_seed(wanted.strategy.seed, kernel.name, workload)
        budget = wanted.budget
        found = [] if fresh else self.store.known_trials(task.key, exclude_task=task.task_id)
        return TaskSpec(
            task_id=task.task_id,
            label=wanted.label,
            kernel=KernelRef(kernel.spec, (str(self.options.base.resolve()),)),
            workload=workload,
            device=item.device,
            space=space,
            strategy=strategies.create(wanted.strategy.name, space, seed, wanted.strategy.options),
            default=self._default(item),
            listed=_listed(item),
            budget=TaskBudget(
                trials=budget.trials_at_most,
                device_s=budget.device,
                wall_s=budget.wall,
                ends_at=self.ends_at,
                polish=wanted.strategy.polish,
                gain=budget.expected_gain,
            ),
            compile_only=item.compile_only,
            baselines=environment.baselines(self.settings.measure, kernel.baselines(workload)),
            protocol=protocol,
            finalists=self.settings.measure.finalists,
            build_timeout_s=self.settings.pool.build_timeout,
            measure_timeout_s=self.settings.pool.measure_timeout,
            baseline_timeout_s=self.settings.pool.baseline_timeout,
            finished=known_results.resumed(self.store, task),
            known=[r for r in known_results.kept(found) if space.feasible(r.config)],
            timed={} if fresh else self._timed(task),
            settled=None if fresh else self.store.settled(task.key, exclude_task=task.task_id),
            neighbours=self._neighbours(kernel.name, item, task.run_id),
            check_size=_odd(item),
        )

    def _timed(self, task: TaskInfo) -> dict[str, TrialRecord]:
        """Times that any revision of the kernel's code has of binaries, by their digests."""
        found = self.store.timed_trials(task.key, exclude_task=task.task_id)
        return {record.binary_hash: record for record in found}

    def _default(self, item: ScheduledTask) -> Config:
        """The kernel's default, or the nearest start in a space that was narrowed without it."""
        space = item.wanted.bind(item.device)
        default = calls.default_config(item.wanted.kernel, item.wanted.workload, item.device)
        if not space.feasible(default):
            default = next(iter(space.enumerate()))
        return dict(default)

    def _neighbours(self, kernel: str, item: ScheduledTask, run_id: int) -> list[Config]:
        """Winners of the nearest workloads of the same device from earlier runs, nearest first."""
        found = self.store.winners(kernel, item.device.fingerprint, before_run=run_id)
        here = item.wanted.workload
        near = sorted(found, key=lambda pair: environment.distance(here, pair[0]))
        distinct: dict[str, Config] = {config_key(config): config for _, config in near}
        return list(distinct.values())[:3]

    # -- the end -------------------------------------------------------------------------------
    def _conclude(
        self,
        info: RunInfo,
        end: Finish,
        notes: list[str],
        elapsed_s: float,
        usage: Mapping[str, float],
    ) -> RunOutcome:
        """Close the run in the database; report and tables are not made yet."""
        tasks = self.store.overview(info.run_id)
        trials = sum(task.trials for task in tasks)
        failures = trials - sum(task.correct for task in tasks)
        selected = sum(task.selection is not None for task in tasks)
        summary = (
            f"{trials} trials ({failures} failed) over {len(tasks)} tasks, {selected} with a winner"
        )
        compiled, why = self.store.compiled(info.run_id)
        if compiled:
            notes = [
                *notes,
                f"{compiled} launches compiled on a device worker, see docs/building.md"
                + (f" ({why})" if why else ""),
            ]
        broken = sum(t.selection is not None and default_failed(t.selection) for t in tasks)
        if broken:
            notes = [*notes, f"the default config of {broken} of them fails, see the report"]
        summary = "; ".join([summary, *([end.message] if end.message else []), *notes])
        facts = {"summary": summary, "elapsed_s": round(elapsed_s, 3), "notes": "; ".join(notes)}
        facts |= usage
        self.store.finish_run(info.run_id, end.status, facts)
        return RunOutcome(
            run_id=info.run_id,
            status=end.status,
            tasks=len(tasks),
            trials=trials,
            failures=failures,
            elapsed_s=elapsed_s,
            summary=summary,
            fault=end.fault,
        )

    def _give_up(self, error: BaseException) -> None:
        """Release the run where the database can still be written, so that it can be resumed."""
        if self._held is not None:
            with suppress(TunerError):
                message = error.message if isinstance(error, TunerError) else type(error).__name__
                at_once = self.store.waiting(Patience())
                at_once.finish_run(self._held, "interrupted", {"summary": message})

    def _rescued(self, error: StoreMovedError) -> StoreMovedError:
        """The same error, with the place where the deleted file's contents are now."""
        path = self.store.rescue()
        return StoreMovedError(
            f"{error.message}; what it held was saved to {path}",
            f"move that file to the place in database.url and run again to go on, or {error.hint}",
        )

    def _products(self, wanted: list[RequestedTask], outcome: RunOutcome) -> RunOutcome:
        """Tables and report, also of a run that was interrupted: they say so.

        A run of some workloads only leaves tables alone: its part would replace the whole.
        """
        if self.options.export and not self.options.workloads:
            from tuner import tables

            folder = self.options.base / self.settings.paths.tables
            kernels = {task.kernel.name: task.kernel for task in wanted}
            written = tables.export(self.store, outcome.run_id, folder, "tuner", kernels)
            outcome = replace(outcome, tables=tuple(written))
        if self.options.report:
            import reports

            target = self.options.base / self.settings.paths.results / "report.html"
            outcome = replace(outcome, report=reports.write(self.store, outcome.run_id, target))
        return outcome


def _listed(item: ScheduledTask) -> list[Config]:
    """Configs among which users choose today, as far as the space was not narrowed."""
    kernel, workload = item.wanted.kernel, item.wanted.workload
    space = item.wanted.bind(item.device)
    with calls.asking(kernel, "listed_configs", workload):
        return [c for c in kernel.listed_configs(workload, item.device) if space.feasible(c)]


def _odd(item: ScheduledTask) -> Workload | None:
    """Where a launch is bound to a compiled size, the odd-sized workload winners must also pass."""
    if item.compile_only or item.device.kind not in ("cuda", "hip"):
        return None
    odd = item.wanted.kernel.small_workload(item.wanted.workload)
    return None if odd == item.wanted.workload else odd
