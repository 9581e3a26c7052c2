"""A check of the declarations of a campaign's kernels before anything is built."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from search_spaces import registry, source_changes
from search_spaces.declaration import guarded_calls
from search_spaces.declaration.check import DeclarationCheck
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.records import Device
from tuner.base.tracing import span
from tuner.campaign.tasks import RequestedTask
from workers import backend_kinds
from workers.job_records import DeclarationJob, KernelRef

if TYPE_CHECKING:
    from workers.roles import PendingAnswer, Pool

_POLL_S = 0.1


def check_declarations(tasks: Sequence[RequestedTask]) -> None:
    """Call every task's declaration once for each kind of its targets; builds nothing.

    The declarations of built-in families are left out: the tests of this project check them, and
    the check loads torch, which takes seconds. Raises `TunerError` for the first mistake. A device
    of an assumed target represents a kind that this machine lacks.
    """
    _check_here(list(_jobs(tasks, ())))


class PendingCheck:
    """The same check while the driver continues, by a process of a started pool that has torch.

    A driver that has torch, and one whose pool has no such process, checks by itself, at once.
    paths: import paths of the kernels. Raises `TunerError` for the first mistake that shows without
    a call of launches and references; `wait` raises for the others.
    """

    def __init__(self, tasks: Sequence[RequestedTask], pool: Pool, paths: tuple[str, ...]) -> None:
        found = list(_jobs(tasks, paths))
        self._verdict: PendingAnswer | None = None
        if found and "torch" not in sys.modules:
            self._verdict = pool.check_declarations([job for _, job in found])
        if self._verdict is None:
            _check_here(found)

    def wait(self, stopped: Callable[[], bool]) -> bool:
        """Wait until all declarations are checked; false if `stopped` has returned true before.

        Raises `TunerError` for the first mistake.
        """
        if self._verdict is None:
            return True
        with span("wait for the check of the declarations", "waiting"):
            while not stopped():
                if self._verdict.passed(_POLL_S):
                    return True
        return False


def _check_here(jobs: Iterable[tuple[Kernel, DeclarationJob]]) -> None:
    """Check declarations in this process; raises `TunerError` for the first mistake."""
    declaration_check = DeclarationCheck()
    for kernel, job in jobs:
        declaration_check.check(kernel, job.workload, job.config, job.device)


def _jobs(
    tasks: Sequence[RequestedTask], paths: tuple[str, ...]
) -> Iterator[tuple[Kernel, DeclarationJob]]:
    """What is to be checked, after all that needs no torch has been."""
    for task in (task for task in tasks if task.kernel.spec not in registry.BUILT_IN):
        for device, assumed in _devices(task):
            kernel = registry.for_device(task.kernel, device)
            try:
                bound = guarded_calls.bind(kernel, task.workload, device)
                config = guarded_calls.default_config(kernel, task.workload, device)
                bound.why_not(config)  # calls each constraint and pruner once
            except TunerError:
                if assumed:  # the real device may have resources that the assumed one lacks
                    continue
                raise
            ref = KernelRef(kernel.spec, paths, source_changes.contents(kernel))
            yield kernel, DeclarationJob(ref, task.workload, config, device)


def stand_in(kernel: Kernel, target: str | None = None) -> Device:
    """The device of a target; by default the first one found that the kernel runs on.

    Where this machine has none, the device of an assumed target.
    """
    from search_spaces.recorded.recorded_kernel import RecordedKernel
    from workers import device

    if isinstance(kernel, RecordedKernel):
        return kernel.device
    if target is not None and ":" in target:
        return device.offline(target)
    kinds = kernel.kinds if target is None else (target,)
    for kind in kinds:
        for one in device.find_devices(kind):
            return one
    for kind in kinds:
        if usual := backend_kinds.spec(kind).usual_target:
            return device.offline(usual)
    raise TunerError(f"no {' or '.join(kinds)} device was found", "name one with --target cuda:90")


def _devices(task: RequestedTask) -> Iterator[tuple[Device, bool]]:
    """One device per kind of the task's targets, and whether it is assumed.

    Devices are assumed only where none is known: options of one kind's compiler are unknown to
    the other's.
    """
    kinds = {target.partition(":")[0]: target for target in reversed(task.targets)}
    targets = [one for kind, one in kinds.items() if not backend_kinds.spec(kind).replayed]
    known = [
        target
        for target in targets
        if ":" in target or backend_kinds.spec(target.partition(":")[0]).find_devices()
    ]
    for target in known or targets:
        yield stand_in(task.kernel, target), not known
