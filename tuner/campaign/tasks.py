"""From a campaign's task entries to tasks: kernel x workload x device of the targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from results_db.stored_records import TaskInfo, TaskKey, TrialFilter, TrialRecord
from search_spaces import registry, source_changes
from search_spaces.absent_device.fake_driver import answering_if_used
from search_spaces.baselines import list_baselines
from search_spaces.declaration import guarded_calls
from search_spaces.errors import TunerError, WorkloadError
from search_spaces.kernel import Kernel
from search_spaces.near_names import did_you_mean
from search_spaces.recorded.model_calls import ModelCall, read_calls
from search_spaces.records import Device, Status, Toolchain, Workload
from search_spaces.size_range import RangePlace
from search_spaces.space import BoundSpace
from tuner import strategies
from tuner.campaign.early_start import kinds_of_targets
from tuner.campaign.range_workloads import read_line
from tuner.settings.sections import Budget, CampaignConfig, StrategyConfig, TaskConfig
from workers import backend_kinds
from workers.job_records import WorkerInfo
from workers.processes import machine_faults

if TYPE_CHECKING:
    from results_db import Store


#: Of matrix products of a GPU, and of its memory, about.
_FLOPS_PER_S, _BYTES_PER_S = 800e12, 4e12


@dataclass(frozen=True, slots=True)
class Load:
    """The calls of one workload in a day."""

    calls: float
    #: Seconds of the day, where a record tells their share.
    recorded_s: float | None = None


@dataclass(frozen=True, slots=True)
class RequestedTask:
    """A kernel and workload of a campaign, with those of its targets that the kernel runs on."""

    kernel: Kernel
    workload: Workload
    targets: tuple[str, ...]
    budget: Budget
    strategy: StrategyConfig
    config: TaskConfig
    #: Where the workload is one of the sizes of a range.
    place: RangePlace | None = None
    #: How often it is called, where the campaign says so.
    load: Load | None = None

    def bind(self, device: Device) -> BoundSpace:
        """The search space on a device, narrowed by the campaign; raises when it is empty."""
        bound = guarded_calls.bind(self.kernel, self.workload, device)
        if self.config.space:
            bound = bound.restrict(self.config.space)
        bound.require_feasible()
        return bound

    @property
    def label(self) -> str:
        return f"{self.kernel.name} {self.workload.key}"


@dataclass(frozen=True, slots=True)
class ScheduledTask:
    """A requested task on one device.

    A task is compile-only where no worker has such a device.
    """

    requested: RequestedTask
    device: Device
    toolchain: Toolchain
    compile_only: bool = False

    @property
    def space_hash(self) -> str:
        """A digest of the space that the kernel declares for this device."""
        with answering_if_used(self.device):
            return self.requested.kernel.space_hash(self.requested.workload)

    def key(self, protocol: str) -> TaskKey:
        """The key of this task's results. protocol: digest of the measuring protocol."""
        kernel = self.requested.kernel
        return TaskKey(
            kernel=kernel.name,
            launch_hash=kernel.launch_hash(),
            space_hash=self.space_hash,
            workload=self.requested.workload,
            device=self.device,
            toolchain=self.toolchain,
            protocol=protocol,
            kernel_hashes=kernel.kernel_hashes(),
        )


def requested_tasks(
    campaign: CampaignConfig,
    *,
    extra: Sequence[str] = (),
    paths: Sequence[str] = (),
    kernels: Sequence[str] = (),
    workloads: Sequence[str] = (),
    baselines: Sequence[str] = (),
) -> list[RequestedTask]:
    """All tasks of a campaign, filtered by kernel names and by words of the workload key.

    extra: specs of kernels that the configuration adds; a campaign may use their names. baselines:
    names, each of which some kernel must have. Raises `TunerError` for a kernel that does not
    import, a workload that its kernel rejects, an unknown baseline and a filter without a match.
    """
    loads: dict[tuple[str, str], Load] = {}
    named = [
        replace(task, load=loads.get((task.kernel.name, task.workload.key), task.load))
        for line in _list_lines(campaign.tasks, Path(paths[0] if paths else "."), loads)
        for task in _tasks_of(campaign, line, _kernel_of(campaign, line, extra, paths), paths)
    ]
    by_kernel: dict[str, list[RequestedTask]] = {}
    for task in named:
        by_kernel.setdefault(task.kernel.spec, []).append(task)
    for tasks in by_kernel.values():
        guarded_calls.refuse_alike(tasks[0].kernel, [task.workload for task in tasks])
    _check_baselines(named, baselines)
    kept = [
        task
        for task in named
        if (not kernels or task.kernel.name in kernels or task.config.kernel in kernels)
        and all(word in task.workload.key.split() for text in workloads for word in text.split())
    ]
    if not kept:
        names = sorted({task.kernel.name for task in named})
        filters = [f"--kernel {name}" for name in kernels]
        filters += [f"--workload '{text}'" for text in workloads]
        raise TunerError(
            f"no task of the campaign matches {' '.join(filters)}",
            f"its kernels are {', '.join(names)}; a workload filter looks like 'dtype=bfloat16'",
        )
    return kept


def _list_lines(
    lines: Sequence[TaskConfig], folder: Path, loads: dict[tuple[str, str], Load]
) -> Iterator[TaskConfig]:
    """The lines of a campaign, with those of `from_model` replaced by lines of kernels.

    folder: that of config.yaml. loads: gets those of calls, by kernel and workload. What its kernel
    refuses is left out. Raises `TunerError` for a file that holds no calls, and for an unknown
    kernel.
    """
    for line in lines:
        if not line.from_model:
            yield line
            continue
        calls = [each for each in read_calls(folder / line.from_model) if _is_taken(each)]
        loads |= _find_loads(calls, line.weight or 1.0)
        for name in dict.fromkeys(call.kernel for call in calls):
            kept = [dict(each.dims) for each in calls if each.kernel == name]
            changes = {"kernel": name, "workloads": kept, "from_model": ""}
            if kept:
                yield line.model_copy(update=changes)


def _find_loads(calls: Sequence[ModelCall], runs: float) -> dict[tuple[str, str], Load]:
    """The loads of calls, by kernel and workload. runs: how often a day what was recorded is run.

    Where shares of the time were recorded, they divide the time that all calls have by their work.
    """
    shared, found, whole_s = sum(each.share or 0.0 for each in calls), {}, 0.0
    for each in calls:
        kernel = registry.load(each.kernel)
        workload = guarded_calls.order_dims(kernel, each.workload)
        whole_s += runs * each.count * estimate_s(kernel, workload)
        found[each.kernel, workload.key] = each
    return {
        key: Load(runs * e.count, whole_s * (e.share or 0.0) / shared if shared else None)
        for key, e in found.items()
    }


def estimate_s(kernel: Kernel, workload: Workload) -> float:
    """The time of a call as its work tells; of different devices it tells only the order."""
    cost = kernel.cost(workload)
    return max(cost.flops / _FLOPS_PER_S, cost.bytes / _BYTES_PER_S)


def _is_taken(call: ModelCall) -> bool:
    try:
        registry.load(call.kernel).check_workload(call.workload)
    except WorkloadError:
        return False
    return True


def _kernel_of(
    campaign: CampaignConfig, line: TaskConfig, extra: Sequence[str], paths: Sequence[str]
) -> Kernel:
    from workers import device

    return kernel_named(
        line.kernel, extra, paths, device.assume_device(line.targets or campaign.targets)
    )


def kernel_named(
    name: str, extra: Sequence[str], paths: Sequence[str], device: Device | None = None
) -> Kernel:
    """The kernel of that name or spec; `extra` are specs of kernels that the configuration adds.

    device: the device that it will probably run on.
    """
    if ":" not in name and name not in registry.available():
        for spec in extra:
            kernel = source_changes.current(spec, paths, device)
            if kernel.name == name:
                return kernel
    return source_changes.current(name, paths, device)


def _check_baselines(tasks: Sequence[RequestedTask], names: Sequence[str]) -> None:
    known: dict[str, set[str]] = {}
    for task in tasks if names else ():
        own = known.setdefault(task.kernel.name, set())
        own.update(list_baselines(task.kernel, task.workload))
    for name in names:
        if not any(name in own for own in known.values()):
            raise TunerError(
                f"measure.baselines: no kernel of the campaign has a baseline {name!r}"
                f"{did_you_mean(name, sorted(set().union(*known.values())))}",
                "; ".join(
                    f"{k} has {', '.join(sorted(own)) or 'none'}" for k, own in known.items()
                ),
            )


def _tasks_of(
    campaign: CampaignConfig, line: TaskConfig, kernel: Kernel, paths: Sequence[str]
) -> Iterator[RequestedTask]:
    all_targets = line.targets or campaign.targets
    targets = tuple(_anchor(t, paths) for t in all_targets if _kind(t) in kernel.kinds)
    if not targets:
        raise TunerError(
            f"kernel {kernel.name!r} runs on {', '.join(kernel.kinds)}, but its targets are "
            f"{', '.join(all_targets)}",
            f"add one of {', '.join(kernel.kinds)} to the targets of the campaign or the task",
        )
    kernel, placed = read_line(line, kernel, paths)
    strategy = line.strategy or campaign.strategy
    strategies.check(strategy.name, strategy.options)
    for given, place in placed:
        workload = guarded_calls.order_dims(kernel, given)
        guarded_calls.check(kernel, workload)
        yield RequestedTask(
            place=place,
            kernel=kernel,
            workload=workload,
            targets=targets,
            budget=_merge(campaign.budget, line.budget),
            strategy=strategy,
            config=line,
            load=None if line.weight is None else Load(line.weight),
        )


def _anchor(target: str, paths: Sequence[str]) -> str:
    """The target; one that replays a recording with the absolute path of that file."""
    kind, _, file = target.partition(":")
    path = registry.find_file(file, paths) if file and backend_kinds.spec(kind).replayed else None
    return f"{kind}:{path}" if path else target


def _merge(campaign: Budget, line: Budget | None) -> Budget:
    if line is None:
        return campaign
    return Budget(**{**campaign.model_dump(), **line.model_dump(exclude_none=True)})


def _kind(target: str) -> str:
    kind = target.partition(":")[0]
    if kind not in backend_kinds.names() or not backend_kinds.spec(kind).timed:
        known = backend_kinds.target_kinds()
        raise TunerError(
            f"unknown target {target!r}{did_you_mean(kind, known)}",
            f"targets are {', '.join(known)}, or a code target such as cuda:90",
        )
    return kind


def runner_kinds(tasks: Sequence[RequestedTask]) -> set[str]:
    """The kinds of runners that the tasks need."""
    targets = {target for task in tasks for target in task.targets}
    for target in targets:
        _kind(target)  # raises for a kind that is no target
    return kinds_of_targets(targets)


def assign_devices(
    tasks: Sequence[RequestedTask], workers: Sequence[WorkerInfo]
) -> tuple[list[ScheduledTask], list[str]]:
    """Assign tasks to the devices of workers; returns them and a note for each task left out."""
    scheduled: list[ScheduledTask] = []
    notes: list[str] = []
    taken: set[tuple[str, Workload, str]] = set()
    for task in tasks:
        if _is_superseded(task, workers):
            continue
        seen: set[str] = set()
        for target in task.targets:
            for item in _on_target(task, target, workers):
                if item.device.fingerprint not in seen:
                    seen.add(item.device.fingerprint)
                    key = (task.kernel.spec, task.workload, item.device.fingerprint)
                    if key in taken:
                        notes.append(f"{task.label}: listed twice; the first entry is used")
                    else:
                        scheduled.append(item)
                    taken.add(key)
        if not seen:
            notes.append(f"{task.label}: no device for {', '.join(task.targets)}")
    return scheduled, notes


def _on_target(
    task: RequestedTask, target: str, workers: Sequence[WorkerInfo]
) -> Iterator[ScheduledTask]:
    kind, _, code = target.partition(":")
    backend = backend_kinds.spec(kind)
    if backend.replayed:
        yield from _replay(task, kind, code, workers)
        return
    found = [
        w for w in workers if w.device.kind == kind and (not code or w.device.target == target)
    ]
    for worker in found:
        yield ScheduledTask(_for_device(task, worker.device), worker.device, worker.toolchain)
    if code and not found and backend.usual_target:
        absent, tools = backend.offline(target), backend.toolchain()
        yield ScheduledTask(_for_device(task, absent), absent, tools, compile_only=True)


def _for_device(task: RequestedTask, device: Device) -> RequestedTask:
    """The task with its kernel's variant for that device."""
    return replace(task, kernel=registry.for_device(task.kernel, device))


def _is_superseded(task: RequestedTask, workers: Sequence[WorkerInfo]) -> bool:
    """Whether a recording's task also names an accelerator that a worker has."""
    named = {target.partition(":")[0] for target in task.config.targets or ()}
    here = {w.device.kind for w in workers if backend_kinds.spec(w.device.kind).accelerator}
    return bool(named & here) and all(backend_kinds.spec(_kind(t)).replayed for t in task.targets)


def _replay(
    task: RequestedTask, kind: str, file: str, workers: Sequence[WorkerInfo]
) -> Iterator[ScheduledTask]:
    """The recorded device of a `recorded:FILE` kernel, where a worker replays recordings."""
    from search_spaces.recorded.recorded_kernel import RecordedKernel

    kernel = task.kernel
    if isinstance(kernel, RecordedKernel) and any(w.device.kind == kind for w in workers):
        recording = Path(kernel.spec.removeprefix("recorded:")).resolve()
        if not file or recording == Path(file).resolve():
            yield ScheduledTask(task, kernel.device, kernel.recorded.toolchain)


def lost(trial: TrialRecord) -> bool:
    """Whether a stored failure is due to the machine or a lost worker and not to its config."""
    failed = trial.status is not Status.CORRECT
    return failed and machine_faults.is_named_in(trial.message, trial.detail)


def drop_lost(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The trials without those that were lost."""
    return [trial for trial in trials if not lost(trial)]


def reload_trials(store: Store, task: TaskInfo) -> list[TrialRecord]:
    """The trials of a resumed task; lost ones are deleted from the database."""
    trials = store.trials(task.task_id)
    again = {trial.attempt_id for trial in trials if lost(trial)}
    if not again:
        return trials
    found = store.find_trials(TrialFilter(run_id=task.run_id))
    store.forget([each for each in found if each.attempt_id in again])
    return [trial for trial in trials if trial.attempt_id not in again]
