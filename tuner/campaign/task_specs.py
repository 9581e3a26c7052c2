"""From scheduled tasks to the engine's task specs: space, known results, budget, limits."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from results_db.promotion_records import QuarantineRecord
from results_db.stored_records import TaskInfo, TrialRecord
from search_spaces import source_changes
from search_spaces.baselines import list_baselines
from search_spaces.declaration import guarded_calls
from search_spaces.records import Config, Workload, config_key
from search_spaces.space import BoundSpace
from tuner.campaign import tasks
from tuner.campaign.tasks import ScheduledTask
from tuner.engine import TaskBudget, TaskSpec
from tuner.engine.warm_start import nearest_winners
from tuner.integrations.priors import Priors
from tuner.settings.sections import Settings
from workers import backend_kinds
from workers.job_records import KernelRef

if TYPE_CHECKING:
    from results_db import Store

#: The first configs of a restricted space, among which one takes the place of the default.
_LOOKED_AT = 20_000


#: Trials after which a search with budget `auto` ends in any case, unless `max_trials` says more.
#: Most have enough after 100; where most configs fail, the expected gain may never become small.
_MOST_TRIALS = 300


@dataclass(frozen=True, slots=True)
class TaskSpecs:
    """Makes the engine's spec of each task of a run."""

    store: Store
    settings: Settings
    #: The folder that kernels given as `file.py:object` are imported from.
    path: str
    #: Whether stored results of other runs are left unused.
    fresh: bool
    #: The moment on the pool's clock at which the run is to be over; None: no such limit.
    ends_at: float | None = None
    #: The most seconds to expect of the finals of a task.
    finals_at_most_s: float = math.inf
    #: Imported configs.
    priors: Priors = field(default_factory=Priors)
    #: Cards whose results did not count for a time.
    quarantines: Sequence[QuarantineRecord] = ()
    #: Whether what earlier runs have settled is confirmed again.
    reconfirm: bool = False
    #: Winners of earlier runs by kernel and fingerprint, as far as they were asked for.
    _winners: dict[tuple[str, str], list[tuple[Workload, Config]]] = field(default_factory=dict)

    def of(self, item: ScheduledTask, task: TaskInfo, gain: float = 0.0) -> TaskSpec:
        """The spec of a task with its record in the database."""
        from tuner import strategies

        requested, kernel, workload = item.requested, item.requested.kernel, item.requested.workload
        space = requested.bind(item.device)
        seed = _task_seed(requested.strategy.seed, kernel.name, workload)
        options = requested.strategy.options
        fresh, store = self.fresh, self.store
        known = [] if fresh else store.known_trials(task.key, exclude_task=task.task_id)
        known = [each for each in known if not self._is_suspect(each.clocks, each.finished_at)]
        default = self._default(item, space)
        pool = self.settings.pool
        return TaskSpec(
            task_id=task.task_id,
            label=requested.label,
            kernel=KernelRef(kernel.spec, (self.path,), source_changes.contents(kernel)),
            workload=workload,
            device=item.device,
            space=space,
            strategy=strategies.create(requested.strategy.name, space, seed, options),
            default=default,
            listed=_listed_configs(item, space),
            budget=self._budget(item),
            compile_only=item.compile_only,
            baselines=self.settings.measure.choose_baselines(list_baselines(kernel, workload)),
            protocol=self.settings.measure.make_protocol(),
            finalists=self.settings.measure.finalists,
            build_timeout_s=pool.build_timeout,
            measure_timeout_s=pool.measure_timeout,
            baseline_timeout_s=pool.baseline_timeout,
            finished=tasks.reload_trials(store, task),
            known=[r for r in tasks.drop_lost(known) if space.feasible(r.config)],
            timed={} if fresh else self._find_timed(task),
            settled=None if fresh or self.reconfirm else self._find_settled(task, default),
            neighbours=[
                *self.priors.starts(kernel.name, workload, space),
                *self._neighbours(kernel.name, item, task.run_id),
            ],
            check_size=_check_size(item),
            narrowed=requested.config.space,
            seed=seed,
            strategy_options=options,
            place=requested.place,
            gain=gain,
            joint_dims=kernel.joint_dims,
        )

    def _budget(self, item: ScheduledTask) -> TaskBudget:
        budget = item.requested.budget
        return TaskBudget(
            trials=budget.trials_at_most or (_MOST_TRIALS if budget.expected_gain else None),
            device_s=budget.device,
            search_s=budget.search,
            ends_at=self.ends_at,
            finals_s=self._finals_s(item),
            polish=item.requested.strategy.polish,
            gain=budget.expected_gain,
        )

    def _finals_s(self, item: ScheduledTask) -> float:
        """Seconds that the finals of a task will probably take."""
        if item.compile_only:
            return 0.0
        usual_s = backend_kinds.spec(item.device.kind).seconds_of_finals
        return min(usual_s, self.finals_at_most_s)

    def _find_timed(self, task: TaskInfo) -> dict[str, TrialRecord]:
        """Stored times of binaries, by digest, whichever revision of the kernel built them."""
        found = self.store.timed_trials(task.key, exclude_task=task.task_id)
        return {
            record.binary_hash: record
            for record in found
            if not self._is_suspect(record.clocks, record.finished_at)
        }

    def _default(self, item: ScheduledTask, space: BoundSpace) -> Config:
        """What a library launches today by an imported table, else the kernel's default."""
        requested, device = item.requested, item.device.name
        shipped = self.priors.default(requested.kernel.name, requested.workload, space, device)
        return shipped or _default(item, space)

    def _find_settled(self, task: TaskInfo, default: Config) -> TaskInfo | None:
        """An earlier task with an outcome against the same default config."""
        found = self.store.find_settled(task.key, exclude_task=task.task_id)
        chosen = found.selection if found else None
        if chosen and self._is_suspect(chosen.clocks, chosen.confirmed_at):
            return None
        earlier = chosen.default if chosen else None
        return found if earlier is None or config_key(earlier) == config_key(default) else None

    def _is_suspect(self, clocks: Mapping[str, float | str], at: datetime | None) -> bool:
        """Whether a card that was off has measured a result."""
        return any(each.covers(clocks, at) for each in self.quarantines)

    def _neighbours(self, kernel: str, item: ScheduledTask, run_id: int) -> list[Config]:
        """Winners of earlier runs for the nearest workloads on the same device, nearest first."""
        of = kernel, item.device.fingerprint
        if of not in self._winners:
            self._winners[of] = self.store.winners(*of, before_run=run_id)
        return nearest_winners(item.requested.workload, self._winners[of])


def _default(item: ScheduledTask, space: BoundSpace) -> Config:
    """The kernel's default config, or the one in its place where the space excludes it."""
    requested = item.requested
    default = guarded_calls.default_config(requested.kernel, requested.workload, item.device)
    return dict(default) if space.feasible(default) else closest(space, default)


def closest(space: BoundSpace, config: Config) -> Config:
    """The feasible config with the most values of a config that the space excludes.

    Of several, the first one; it is searched for among the first configs of a large space.
    """

    def count_shared(other: Config) -> int:
        return sum(other.get(name) == value for name, value in config.items())

    found = max(itertools.islice(space.enumerate(), _LOOKED_AT), key=count_shared)
    return dict(found)


def _listed_configs(item: ScheduledTask, space: BoundSpace) -> list[Config]:
    """The configs that the kernel's users choose from today and that the space contains."""
    kernel, workload = item.requested.kernel, item.requested.workload
    with guarded_calls.guard_call(kernel, "listed_configs", workload):
        return [c for c in kernel.listed_configs(workload, item.device) if space.feasible(c)]


def _check_size(item: ScheduledTask) -> Workload | None:
    """The check size of a task whose builds are specific to sizes; None for other tasks."""
    if item.compile_only or not backend_kinds.spec(item.device.kind).checks_size:
        return None
    size = item.requested.kernel.small_workload(item.requested.workload)
    return None if size == item.requested.workload else size


def _task_seed(seed: int, kernel: str, workload: Workload) -> int:
    """The seed of one task; the same on every machine."""
    dims = " ".join(sorted(workload.key.split()))
    text = f"{seed}/{kernel}/{dims}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big")
