"""From a campaign's lines to tasks: kernels x workloads x the devices that targets name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from results_db.records import TaskKey
from search_spaces import registry
from search_spaces.absent_device.answers import told
from search_spaces.declaration import calls
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.near_names import did_you_mean
from search_spaces.records import Device, Toolchain, Workload
from search_spaces.space import BoundSpace
from tuner import strategies
from tuner.settings.models import Budget, CampaignConfig, StrategyConfig, TaskConfig
from workers.records import WorkerInfo

_DEVICE_KINDS = ("cpu", "cuda", "hip", "simulated")
_CROSS_KINDS = ("cuda", "hip")


@dataclass(frozen=True, slots=True)
class RequestedTask:
    """A kernel and workload that a campaign names, with the targets that apply to the kernel."""

    kernel: Kernel
    workload: Workload
    targets: tuple[str, ...]
    budget: Budget
    strategy: StrategyConfig
    config: TaskConfig

    def bind(self, device: Device) -> BoundSpace:
        """The feasible space on a device, narrowed as the campaign says; never empty."""
        bound = calls.bind(self.kernel, self.workload, device)
        if self.config.space:
            bound = bound.restrict(self.config.space)
        bound.require_feasible()
        return bound

    @property
    def label(self) -> str:
        return f"{self.kernel.name} {self.workload.key}"


@dataclass(frozen=True, slots=True)
class ScheduledTask:
    """A wanted task on a device that is there, or compile-only on one that is not."""

    wanted: RequestedTask
    device: Device
    toolchain: Toolchain
    compile_only: bool = False

    @property
    def space_hash(self) -> str:
        """A digest of the space that is declared for this device."""
        with told(self.device):
            return self.wanted.kernel.space_hash(self.wanted.workload)

    def key(self, protocol: str) -> TaskKey:
        """What results of this task are kept under. protocol: the measuring protocol's digest."""
        kernel = self.wanted.kernel
        return TaskKey(
            kernel=kernel.name,
            launch_hash=kernel.launch_hash(),
            check_hash=kernel.check_hash(),
            space_hash=self.space_hash,
            workload=self.wanted.workload,
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
    """All tasks a campaign names, filtered by kernel names and by words of the workload key.

    extra: specs of kernels that the configuration adds and a campaign may call by name. baselines:
    names of which each must be known to some kernel. Raises `TunerError` for kernels that do not
    import, workloads a kernel cannot take, baselines that nobody has and filters that leave
    nothing.
    """
    found = [
        wanted
        for line in campaign.tasks
        for wanted in _line(campaign, line, _kernel_of(campaign, line, extra, paths), paths)
    ]
    _check_baselines(found, baselines)
    kept = [
        w
        for w in found
        if (not kernels or w.kernel.name in kernels or w.config.kernel in kernels)
        and all(word in w.workload.key.split() for text in workloads for word in text.split())
    ]
    if not kept:
        names = sorted({w.kernel.name for w in found})
        filters = [f"--kernel {name}" for name in kernels]
        filters += [f"--workload '{text}'" for text in workloads]
        raise TunerError(
            f"no task of the campaign matches {' '.join(filters)}",
            f"its kernels are {', '.join(names)}; a workload filter looks like 'dtype=bfloat16'",
        )
    return kept


def _kernel_of(
    campaign: CampaignConfig, line: TaskConfig, extra: Sequence[str], paths: Sequence[str]
) -> Kernel:
    from workers import device

    return kernel_named(line.kernel, extra, paths, device.assumed(line.targets or campaign.targets))


def kernel_named(
    name: str, extra: Sequence[str], paths: Sequence[str], device: Device | None = None
) -> Kernel:
    """The kernel of that name or spec; `extra` are specs of kernels the configuration adds.

    device: what it most likely runs on.
    """
    if ":" not in name and name not in registry.available():
        for spec in extra:
            kernel = registry.load_undecided(spec, paths, device)
            if kernel.name == name:
                return kernel
    return registry.load_undecided(name, paths, device)


def _check_baselines(found: Sequence[RequestedTask], names: Sequence[str]) -> None:
    known: dict[str, set[str]] = {}
    for wanted in found if names else ():
        has = known.setdefault(wanted.kernel.name, set())
        has.update(wanted.kernel.baselines(wanted.workload))
    for name in names:
        if not any(name in has for has in known.values()):
            raise TunerError(
                f"measure.baselines: no kernel of the campaign has a baseline {name!r}"
                f"{did_you_mean(name, sorted(set().union(*known.values())))}",
                "; ".join(
                    f"{k} has {', '.join(sorted(has)) or 'none'}" for k, has in known.items()
                ),
            )


def _line(
    campaign: CampaignConfig, line: TaskConfig, kernel: Kernel, paths: Sequence[str]
) -> Iterator[RequestedTask]:
    named = line.targets or campaign.targets
    targets = tuple(_anchored(t, paths) for t in named if _kind(t) in kernel.kinds)
    if not targets:
        raise TunerError(
            f"kernel {kernel.name!r} runs on {', '.join(kernel.kinds)}, but its targets are "
            f"{', '.join(named)}",
            f"add one of {', '.join(kernel.kinds)} to the targets of the campaign or the task",
        )
    if line.workloads == "all":
        workloads = calls.workloads(kernel)
    else:
        workloads = [Workload.from_mapping(dims) for dims in line.workloads]
    strategy = line.strategy or campaign.strategy
    strategies.check(strategy.name, strategy.options)
    for workload in workloads:
        calls.check(kernel, workload)
        yield RequestedTask(
            kernel=kernel,
            workload=workload,
            targets=targets,
            budget=_merge(campaign.budget, line.budget),
            strategy=strategy,
            config=line,
        )


def _anchored(target: str, paths: Sequence[str]) -> str:
    """A simulated target with the path of its recording made absolute."""
    kind, _, file = target.partition(":")
    found = registry.find_file(file, paths) if kind == "simulated" and file else None
    return f"{kind}:{found}" if found else target


def _merge(campaign: Budget, line: Budget | None) -> Budget:
    if line is None:
        return campaign
    return Budget(**{**campaign.model_dump(), **line.model_dump(exclude_none=True)})


def _kind(target: str) -> str:
    kind = target.partition(":")[0]
    if kind not in _DEVICE_KINDS:
        raise TunerError(
            f"unknown target {target!r}",
            f"targets are {', '.join(_DEVICE_KINDS)}, or a code target such as cuda:90",
        )
    return kind


def runner_kinds(wanted: Sequence[RequestedTask]) -> set[str]:
    """The backend kinds whose runners a pool has to bring up; code targets also want an
    interpreter, for the case that no such device is there."""
    kinds: set[str] = set()
    for target in (t for w in wanted for t in w.targets):
        kind = _kind(target)
        kinds.add(kind)
        if ":" in target and kind in _CROSS_KINDS:
            kinds.add("interpreter")
    return kinds


def place(
    wanted: Sequence[RequestedTask], workers: Sequence[WorkerInfo], cross_toolchain: Toolchain
) -> tuple[list[ScheduledTask], list[str]]:
    """Put tasks on the devices that workers hold; also one line per task that is left out.

    `cross_toolchain` is what compiles for code targets nobody here owns.
    """
    placed: list[ScheduledTask] = []
    notes: list[str] = []
    taken: set[tuple[str, Workload, str]] = set()
    for task in wanted:
        seen: set[str] = set()
        for target in task.targets:
            for item in _place(task, target, workers, cross_toolchain):
                if item.device.fingerprint not in seen:
                    seen.add(item.device.fingerprint)
                    key = (task.kernel.spec, task.workload, item.device.fingerprint)
                    if key in taken:
                        notes.append(f"{task.label}: named twice, only the first counts")
                    else:
                        placed.append(item)
                    taken.add(key)
        if not seen:
            notes.append(f"{task.label}: no device for {', '.join(task.targets)}")
    return placed, notes


def _place(
    task: RequestedTask, target: str, workers: Sequence[WorkerInfo], cross_toolchain: Toolchain
) -> Iterator[ScheduledTask]:
    kind, _, code = target.partition(":")
    if kind == "simulated":
        yield from _replay(task, code, workers)
        return
    here = [w for w in workers if w.device.kind == kind and (not code or w.device.target == target)]
    for worker in here:
        yield ScheduledTask(_for(task, worker.device), worker.device, worker.toolchain)
    if code and not here and kind in _CROSS_KINDS:
        from workers import device

        absent = device.offline(target)
        yield ScheduledTask(_for(task, absent), absent, cross_toolchain, compile_only=True)


def _for(task: RequestedTask, device: Device) -> RequestedTask:
    """The task with its kernel as it is for that device."""
    return replace(task, kernel=registry.for_device(task.kernel, device))


def _replay(
    task: RequestedTask, file: str, workers: Sequence[WorkerInfo]
) -> Iterator[ScheduledTask]:
    """The device that was recorded, where a worker replays recordings; of other kernels none."""
    from search_spaces.recorded.kernel import RecordedKernel

    kernel = task.kernel
    if isinstance(kernel, RecordedKernel) and any(w.device.kind == "simulated" for w in workers):
        named = Path(kernel.spec.removeprefix("recorded:")).resolve()
        if not file or named == Path(file).resolve():
            yield ScheduledTask(task, kernel.device, kernel.recorded.toolchain)
