"""Evaluate given configs as tasks of the engine, with their records in a store of their own."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from results_db import NothingStoredError, Store, StoreError
from results_db.promotion_records import QuarantineRecord
from results_db.stored_records import RunStatus, TaskInfo, TrialRecord
from search_spaces.declaration import guarded_calls
from search_spaces.errors import TunerError
from search_spaces.recorded.recorded_kernel import RecordedKernel
from search_spaces.records import Config, Device, Status, Workload, config_key
from tuner.campaign import Control
from tuner.campaign.driver import Driver
from tuner.campaign.quarantine import find_quarantined, without_quarantined
from tuner.campaign.run_record import ensure_task
from tuner.campaign.tasks import RequestedTask, ScheduledTask
from tuner.campaign.worker_start import START_TIMEOUTS, StartedPool, await_workers
from tuner.compare.named_configs import Variant
from tuner.compare.targets import BenchTarget
from tuner.engine import Aim, Engine, TaskBudget, TaskSpec
from tuner.progress import ProgressCallback
from tuner.settings.sections import Budget, Settings, StrategyConfig, TaskConfig
from workers import backend_kinds, pools
from workers.job_records import Artifact, Calibration, PoolSpec, WorkerInfo

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GivenTask:
    """Configs of one workload that are to be compared or verified; at least one."""

    target: BenchTarget
    workload: Workload
    variants: Sequence[Variant]
    #: Names of the baselines of a comparison.
    baselines: tuple[str, ...] = ()
    #: Whether a comparison need not measure on a device what was built; None: it measures.
    is_settled: Callable[[Device, Sequence[Artifact]], bool] | None = None


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What became of the configs of a task."""

    given: GivenTask
    #: The stored task, with the outcome and the baselines of a comparison.
    task: TaskInfo
    #: By config key.
    trials: Mapping[str, TrialRecord]
    #: Of the device; None where it has none.
    calibration: Calibration | None = None

    def record_of(self, variant: Variant) -> TrialRecord:
        """The trial of one of the given configs."""
        return self.trials[config_key(variant.config)]


class GivenConfigs:
    """The `Strategy` that suggests the given configs in their order."""

    name = "given"
    replays = True

    def __init__(self, configs: Iterable[Config]) -> None:
        self._left = iter(configs)

    def ask(self, n: int) -> list[Config]:
        """The next configs."""
        return list(islice(self._left, n))

    def tell(self, config: Config, score: float | None, status: Status) -> None:
        """Results change nothing."""


def evaluate(
    settings: Settings,
    given: Sequence[GivenTask],
    aim: Aim,
    *,
    build_only: bool = False,
    on_progress: ProgressCallback | None = None,
) -> list[Evaluated]:
    """Compare or verify the configs of each task on this machine, with one runner of each kind.

    Cards in quarantine get no work; `TunerError` where that leaves none.

    A comparison is the farm's confirmation: a fresh process verifies all configs, the first one
    also at the check size, then times them interleaved. Where a runner stands in for the device,
    configs are compiled and run by it. build_only: nothing is run. Results come in the order of
    the tasks; a config that fails is a value. Raises `TunerError` where no worker comes up or the
    machine does not recover.
    """
    if not given:
        return []
    away = _read_quarantined(settings)
    pool = pools.create(_pool_spec(settings, given, build_only=build_only, all_cards=bool(away)))
    timeout_s = settings.pool.connect_timeout * START_TIMEOUTS
    control = Control()
    with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        url = f"sqlite:///{Path(folder) / 'given.db'}"
        with StartedPool(pool) as started, Store.open(url) as store:
            ready = without_quarantined(await_workers(pool, control, timeout_s), away)
            # Two tasks may be of one workload: each has a run of its own.
            runs = [
                store.begin_run(f"{aim} {at}", "", 0, {}, {}).run_id for at in range(len(given))
            ]
            make = partial(_make_spec, settings, store, ready, aim, build_only)
            specs = [make(run_id, each) for run_id, each in zip(runs, given, strict=True)]
            engine = Engine(specs, pool.builders)
            driver = Driver(
                engine,
                pool,
                store,
                run_id=runs[0],
                control=control,
                on_progress=on_progress,
                clock=pool.clock,
                quarantined=away.keys(),
            )
            end = driver.run(ready)
            started.close(kill=False)
            if end.status != RunStatus.FINISHED:
                remedy = end.fault.remedy if end.fault else "run `tuner doctor`"
                raise TunerError(end.message, remedy)
            return list(_read(store, given, specs, ready))


def _read_quarantined(settings: Settings) -> dict[str, QuarantineRecord]:
    """The cards that get no work, by their identifiers."""
    try:
        with Store.open(settings.database.url, create=False) as store:
            return find_quarantined(store)
    except NothingStoredError:
        return {}
    except StoreError as error:
        _log.warning("which cards are in quarantine is not known: %s", error.message)
        return {}


def _read(
    store: Store,
    given: Sequence[GivenTask],
    specs: Sequence[TaskSpec],
    ready: Sequence[WorkerInfo],
) -> Iterator[Evaluated]:
    for each, spec in zip(given, specs, strict=True):
        trials = {config_key(trial.config): trial for trial in store.trials(spec.task_id)}
        worker = _worker_of(each.target, ready)
        calibration = worker.calibration if worker else None
        yield Evaluated(each, store.task(spec.task_id), trials, calibration)


def _pool_spec(
    settings: Settings, given: Sequence[GivenTask], *, build_only: bool, all_cards: bool
) -> PoolSpec:
    """A pool on this machine, with one runner of each kind or with those of all cards.

    Recordings that are replayed in virtual time stay so.
    """
    kinds = sorted({each.target.runner for each in given})
    pool = settings.pool
    return PoolSpec(
        kind="local" if pool.kind == "ray" else pool.kind,
        runners={k: pool.runners_of(k) if all_cards else 1 for k in kinds if not build_only},
        builders=pool.builders,
        options={kind: pool.options_of(kind) for kind in kinds},
        paths=tuple(dict.fromkeys(path for each in given for path in each.target.ref.paths)),
    )


def _worker_of(target: BenchTarget, ready: Sequence[WorkerInfo]) -> WorkerInfo | None:
    return next((each for each in ready if each.device.kind == target.runner), None)


def _make_spec(
    settings: Settings,
    store: Store,
    ready: Sequence[WorkerInfo],
    aim: Aim,
    build_only: bool,
    run_id: int,
    given: GivenTask,
) -> TaskSpec:
    target, workload = given.target, given.workload
    item = _schedule(target, workload, _worker_of(target, ready), build_only=build_only)
    protocol, pool = settings.measure.make_protocol(), settings.pool
    task = ensure_task(store, run_id, item, protocol.key)
    configs = [each.config for each in given.variants]
    size = target.check_size(workload)
    if size is not None and aim is Aim.VERIFY and backend_kinds.spec(target.runner).checks_size:
        size = None  # the runner verifies it in the same job
    unchecked = []
    if size is not None:
        small = target.space(size)
        unchecked = [config_key(each) for each in configs if small.why_invalid(each) is not None]
        if aim is Aim.COMPARE and not small.feasible(configs[0]):
            size = None
    return TaskSpec(
        task_id=task.task_id,
        label=item.requested.label,
        kernel=target.ref,
        workload=workload,
        device=item.device,
        baselines=given.baselines,
        check_size=size,
        protocol=protocol,
        build_timeout_s=pool.build_timeout,
        measure_timeout_s=pool.measure_timeout,
        baseline_timeout_s=pool.baseline_timeout,
        space=target.space(workload),
        strategy=GivenConfigs(configs),
        default=guarded_calls.default_config(target.kernel, workload, target.device),
        budget=TaskBudget(trials=len(configs)),
        aim=aim,
        given=configs,
        unchecked=unchecked,
        is_settled=given.is_settled,
        compile_only=item.compile_only,
        verify=not build_only,
    )


def _schedule(
    target: BenchTarget, workload: Workload, worker: WorkerInfo | None, *, build_only: bool
) -> ScheduledTask:
    """The task on the device here; on the target's own where it is replayed or stood in for.

    A device that was only found may differ from the same device when it is opened, in its memory.
    """
    kernel, device = target.kernel, target.device
    line = TaskConfig(kernel=kernel.spec)
    requested = RequestedTask(kernel, workload, (), Budget(), StrategyConfig(), line)
    stands_in = target.runner != device.kind
    if isinstance(kernel, RecordedKernel):
        return ScheduledTask(requested, device, kernel.recorded.toolchain, build_only)
    if stands_in or worker is None:
        tools = backend_kinds.spec_of_stored(device.kind).toolchain()
        return ScheduledTask(requested, device, tools, compile_only=True)
    return ScheduledTask(requested, worker.device, worker.toolchain, build_only)
