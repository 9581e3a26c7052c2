"""The preparation of confirmations in the standby process while the other process searches.

A confirmation needs a task's inputs, references and baselines, whose compilation takes seconds. The
standby makes them, one part at a time, as soon as the runner gets a task's first job. Parts that
launch work on the device run between jobs, and a job waits until such a part has ended, so that
nothing disturbs a timed run. Making the task, for which compilations wait, takes the next turn
between two jobs. The others wait for a pause of the search first, and where there is none for
their turn, because the confirmation would occupy the device as long for them. Parts that compile
run at low priority. The confirmation does whatever the standby has not done by then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from search_spaces.records import Workload
from workers.job_records import KernelRef, MeasureJob, Mode, PartKind, PartResult, PreparationPart
from workers.machine_lock import DeviceLock
from workers.processes.standby import ChildWithStandby
from workers.processes.supervised_child import ChildError, SupervisedChild
from workers.processes.worker_lost import one_line

_log = logging.getLogger(__name__)
#: Tasks that a standby prepares and keeps at a time.
MOST_TASKS = 4
#: So many standbys prepare one task. Where processes crash in series, preparing each new standby
#: would cost more than one confirmation.
_MOST_STANDBYS = 3
#: The device is idle when no job has run for this long; the next job of a busy search comes sooner.
_IDLE_S = 0.01
#: After waiting this long for an idle device, a part takes its turn between two jobs.
_TURN_AFTER_S = 1.0
#: A job waits this long for a part on the device; then the standby is killed.
_PATIENCE_S = 2.0
#: The longest a part on the device may take.
_PART_TIMEOUT_S = 10.0
#: After a task's race only that task is prepared for this long, because its confirmation follows.
_CONFIRMATION_FOLLOWS_S = 3.0
_POLL_S, _BUSY_POLL_S = 0.005, 0.05

_Key = tuple[KernelRef, Workload]


@dataclass(slots=True)
class _Plan:
    """What a standby has still to do for one task."""

    #: The names of all baselines.
    baselines: tuple[str, ...]
    parts: list[PreparationPart] = field(
        default_factory=lambda: [PreparationPart(PartKind.IMPORT), PreparationPart(PartKind.TASK)]
    )
    #: Baselines that were compiled, whether or not everything of them was.
    compiled: set[str] = field(default_factory=set)


class StandbyPreparation:
    """Has the standby of one runner prepare the confirmations of the runner's tasks.

    children: the runner's processes. device_lock: makes the lock of the device, which a part that
    launches something holds, or None. Methods are for the runner's thread, `close` for any thread.
    """

    def __init__(
        self,
        children: ChildWithStandby,
        device_lock: Callable[[], DeviceLock | None] = lambda: None,
    ) -> None:
        self._children = children
        self._device_lock = device_lock
        self._changed = threading.Condition()
        #: The tasks to prepare, the latest last.
        self._tasks: OrderedDict[_Key, MeasureJob] = OrderedDict()
        #: The plans of the standby with `_planned_pid`.
        self._plans: dict[_Key, _Plan] = {}
        self._planned_pid: int | None = None
        #: How many standbys have had a plan for a task.
        self._standbys: Counter[_Key] = Counter()
        #: Tasks at which a standby died or was killed.
        self._given_up: set[_Key] = set()
        #: Jobs that use the device now.
        self._jobs = 0
        self._idle_since = 0.0
        #: When a part on the device was begun, or could first be done.
        self._turn_since = 0.0
        #: The child that does a part on the device.
        self._on_device: SupervisedChild | None = None
        #: Whether a confirmation runs.
        self._confirming = False
        #: The task whose confirmation follows, and until when it is expected.
        self._next: tuple[_Key, float] | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, job: MeasureJob) -> None:
        """Prepare the confirmation of this job's task, unless it has begun."""
        if job.mode not in (Mode.SCREENING, Mode.RACE) or not self._children.has_standby:
            return
        key = _key(job)
        with self._changed:
            if job.mode is Mode.RACE:
                self._next = (key, time.monotonic() + _CONFIRMATION_FOLLOWS_S)
            if not job.upcoming_baselines or key in self._given_up or self._closed:
                return
            if key not in self._tasks or _prepared_from(self._tasks[key]) != _prepared_from(job):
                kept = replace(job, candidates=(), mode=Mode.SCREENING, verified=frozenset())
                self._tasks[key] = kept
                self._plans.pop(key, None)
                while len(self._tasks) > MOST_TASKS:
                    oldest, _ = self._tasks.popitem(last=False)
                    self._plans.pop(oldest, None)
            if self._thread is None and self._has_work():
                self._thread = threading.Thread(target=self._work, name="preparation", daemon=True)
                self._thread.start()

    @contextmanager
    def job_on(self, child: SupervisedChild, job: MeasureJob) -> Iterator[None]:
        """A job of the runner on this child. No part launches anything while it runs."""
        if not job.candidates:
            yield
            return
        confirms = job.mode is Mode.CONFIRM
        with self._changed:
            self._jobs += 1
            self._confirming = confirms
            patience_s = None if confirms else _PATIENCE_S
            ended = self._changed.wait_for(lambda: self._on_device is None, patience_s)
            stuck = None if ended else self._on_device
        if stuck is not None and stuck is not child:
            _log.info("a standby process occupied the device for too long; it was killed")
            stuck.kill()
        try:
            yield
        finally:
            with self._changed:
                self._jobs -= 1
                self._idle_since = time.monotonic()
                self._confirming = False
                if confirms:
                    self._next = None
                self._changed.notify_all()

    def forget(self, job: MeasureJob) -> None:
        """The task is confirmed. It may be searched again in a later run."""
        key = _key(job)
        with self._changed:
            self._tasks.pop(key, None)
            self._plans.pop(key, None)
            self._standbys.pop(key, None)
            self._given_up.discard(key)

    def close(self) -> None:
        """Begin no further part. The caller ends the children."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _has_work(self) -> bool:
        """Whether a thread would find parts to do, or a standby that is about to be ready."""
        if self._children.standby_pid != self._planned_pid:
            return True
        return any(key not in self._plans or self._plans[key].parts for key in self._tasks)

    # -- the thread ----------------------------------------------------------------------------
    def _work(self) -> None:
        """Do parts until there is none left, or no standby to do them."""
        self._turn_since = 0.0
        lock = self._device_lock()
        while True:
            with self._changed:
                found = self._wait_for_part()
                if found is None:
                    self._thread = None
                    if lock is not None:
                        lock.close()
                    return
                child, key, part = found
                if part.on_device and lock is not None and not lock.take():
                    self._changed.wait(_BUSY_POLL_S)
                    continue
                job, plan = self._tasks[key], self._plans[key]
                if part.on_device:
                    self._on_device = child
                    self._turn_since = 0.0
            result = self._do(child, key, job, part)
            if lock is not None:
                lock.release()
            with self._changed:
                self._on_device = None
                self._changed.notify_all()
                if self._plans.get(key) is plan:
                    _advance(plan, part, result)

    def _wait_for_part(self) -> tuple[SupervisedChild, _Key, PreparationPart] | None:
        while not self._closed and self._children.has_standby:
            child = self._children.ready_standby
            pid = child.pid if child is not None else None
            if child is not None and pid is not None:
                if pid != self._planned_pid:
                    self._planned_pid, self._plans = pid, {}
                for key, job in self._tasks.items():
                    if key not in self._plans:
                        self._plans[key] = self._new_plan(key, job)
                if not any(self._plans[key].parts for key in self._tasks):
                    return None
                if not self._confirming and (found := self._possible()):
                    return child, *found
            self._changed.wait(_POLL_S if not self._jobs else _BUSY_POLL_S)
        return None

    def _new_plan(self, key: _Key, job: MeasureJob) -> _Plan:
        self._standbys[key] += 1
        if self._standbys[key] > _MOST_STANDBYS:
            return _Plan((), parts=[])
        return _Plan(job.upcoming_baselines)

    def _possible(self) -> tuple[_Key, PreparationPart] | None:
        """A part that can be done now; parts on the device first, because it may soon be busy."""
        now = time.monotonic()
        self._turn_since = self._turn_since or now
        waited = now - self._turn_since >= _TURN_AFTER_S
        idle = waited or now - self._idle_since >= _IDLE_S
        keys = list(self._tasks)
        if self._next is not None and now < self._next[1]:
            keys = [key for key in keys if key == self._next[0]]
        possible = [
            (key, part)
            for key in keys
            for part in _open_parts(self._plans[key])
            if not part.on_device or (not self._jobs and (idle or part.kind is PartKind.TASK))
        ]
        return min(possible, key=lambda found: not found[1].on_device, default=None)

    def _do(
        self, child: SupervisedChild, key: _Key, job: MeasureJob, part: PreparationPart
    ) -> PartResult:
        timeout_s = _PART_TIMEOUT_S if part.on_device else job.baseline_timeout_s
        started = time.monotonic()
        try:
            found: PartResult
            found, poisoned = child.request("prepare_part", job, part, timeout_s=timeout_s)
        except Exception as error:  # also those of a process that cannot be started again
            _log.info("a confirmation is not prepared further: %s", one_line(f"{error}"))
            poisoned = isinstance(error, ChildError)
            found = PartResult(done=False)
            self._give_up(key)
        if poisoned:
            child.kill()
            self._give_up(key)
        took_s = time.monotonic() - started
        _log.debug("%s of %s: %s in %.2f s", part.kind, job.workload.key, found, took_s)
        return found

    def _give_up(self, key: _Key) -> None:
        with self._changed:
            self._given_up.add(key)
            self._tasks.pop(key, None)
            self._plans.pop(key, None)


def _key(job: MeasureJob) -> _Key:
    return job.kernel, job.workload


def _prepared_from(job: MeasureJob) -> tuple[object, ...]:
    """What a preparation depends on besides the task; it may differ in a later run."""
    protocol = job.protocol
    return job.upcoming_baselines, protocol.seeds, protocol.cache, protocol.numerics


def _open_parts(plan: _Plan) -> list[PreparationPart]:
    """The parts that may come next: baselines last, and their launches after their compilations."""
    first = [part for part in plan.parts if not part.baseline]
    if first:
        return first
    compiling = {part.baseline for part in plan.parts if part.kind is PartKind.COMPILE}
    return [
        part
        for part in plan.parts
        if part.kind is PartKind.COMPILE or part.baseline not in compiling
    ]


def _advance(plan: _Plan, part: PreparationPart, result: PartResult) -> None:
    """Take a part off a plan and add what follows from its result."""
    plan.parts.remove(part)
    if part.kind is PartKind.COMPILE:
        plan.compiled.add(part.baseline)
    if not result.done:
        # A baseline that was not compiled is not launched.
        plan.parts = [other for other in plan.parts if other.baseline != part.baseline]
    elif part.kind is PartKind.TASK:
        launches = [name for name in plan.baselines if name not in result.compile_first]
        plan.parts += [PreparationPart(PartKind.LAUNCH, name) for name in launches]
    for name in result.compile_first:
        if name not in plan.compiled:
            plan.parts += [
                PreparationPart(PartKind.COMPILE, name),
                PreparationPart(PartKind.LAUNCH, name),
            ]
