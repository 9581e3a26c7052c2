"""The loop of a run: events from the pool into the engine, its instructions to pool and store."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from results_db import Store, StoreError, StoreMovedError, TrialRecord
from results_db.stored_records import RunStatus, SelectionRecord, Source
from search_spaces.errors import SourceChangedError
from search_spaces.source_changes import SourceGuard
from tuner import strategies
from tuner.base.tracing import span
from tuner.campaign import lease
from tuner.campaign.options import Control
from tuner.campaign.worker_start import ExpectedWorkers
from tuner.campaign.write_queue import WriteQueue
from tuner.engine import (
    Build,
    BuildersChanged,
    Drain,
    Engine,
    Event,
    Finish,
    Instruction,
    Measure,
    Record,
    Select,
    SetStage,
    Stage,
    Tick,
    progress,
)
from tuner.engine.dispatcher import Dispatcher
from tuner.engine.finals_time import TimeLeft
from tuner.progress import ProgressCallback
from workers import quiet_processors
from workers.job_records import Built, Measured, WorkerInfo, WorkerReady
from workers.roles import Pool

_POLL_S = 0.1
_PROGRESS_S = 0.25
#: Seconds between checks that the database's file is still in its place.
_PLACE_S = 1.0
#: Shorter decisions are in no trace.
_LEAST_S = 0.001
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class StageTimes:
    """Seconds of every task in each of its stages; a stage that is entered twice is added up."""

    #: Seconds by task and stage.
    stage_s: dict[int, dict[str, float]] = field(default_factory=dict)
    #: The stage of each task and when the task entered it.
    _entered: dict[int, tuple[Stage, float]] = field(default_factory=dict)

    def enter(self, task_id: int, stage: Stage, now: float) -> None:
        """A task enters a stage at the time `now` (seconds)."""
        left = self._entered.pop(task_id, None)
        if left is not None:
            seconds = self.stage_s.setdefault(task_id, {})
            name = left[0].value
            seconds[name] = seconds.get(name, 0.0) + now - left[1]
        if stage is not Stage.DONE:
            self._entered[task_id] = stage, now


@dataclass(slots=True)
class Usage:
    """How well a run uses its devices, and how many of its trials were known before."""

    dispatcher: Dispatcher
    #: Device seconds of all workers so far, used or not.
    offered_s: float = 0.0
    #: Trials that have a result, and those of them whose result an earlier run had.
    ended: int = 0
    reused: int = 0
    #: Until when device time is counted in `offered_s`.
    _counted: float = 0.0

    def start(self, now: float) -> None:
        """Count device time from `now` (seconds) on."""
        self._counted = now

    def count_workers(self, now: float) -> None:
        """Count the device time of the workers that are there now (seconds)."""
        self.offered_s += (now - self._counted) * len(self.dispatcher.workers)
        self._counted = now

    def count_trial(self, record: TrialRecord) -> None:
        """Count a trial that has its result."""
        self.ended += 1
        self.reused += record.source == Source.REUSED

    @property
    def known(self) -> str:
        """That all results were known, in words; empty where something was built or measured."""
        nothing_new = self.reused == self.ended > 0 and not self.dispatcher.configs
        return f"{self.reused} of {self.ended} reused, nothing measured" if nothing_new else ""

    def figures(self) -> dict[str, float]:
        """For the run's record.

        device_busy_share: of all device time. busy_share_while_ready: of the time in which a device
        had a job. device_s: seconds in which device processes worked. timing_s: of these, the
        seconds spent timing. configs: candidates with an answer.
        """
        used = self.dispatcher
        busy = used.busy_s / self.offered_s if self.offered_s > 0 else 0.0
        ready = used.held_s / used.busy_s if used.busy_s > 0 else 0.0
        return {
            "device_busy_share": round(min(1.0, busy), 4),
            "busy_share_while_ready": round(min(1.0, ready), 4),
            "device_s": round(used.held_s, 4),
            "timing_s": round(used.timing_s, 4),
            "configs": float(used.configs),
        }


@dataclass(slots=True)
class _KeepAlive:
    """Keeps the lease of a run and watches its database, in real time, as other drivers do."""

    store: Store
    run_id: int
    #: When the lease was renewed last, and when the database's place was checked last.
    _renewed: float = 0.0
    _checked: float = 0.0

    def beat(self, writes: WriteQueue, sources: SourceGuard) -> None:
        """Do what is due; raises `StoreMovedError` and `SourceChangedError`."""
        now = time.monotonic()
        if now - self._checked > _PLACE_S:
            self._checked = now
            self.store.check_place()
            sources.check()
        if now - self._renewed > lease.BEAT_S and writes.attempt(
            partial(self.store.beat, self.run_id)
        ):
            self._renewed = now


@dataclass(slots=True)
class Driver:
    """Runs an engine to its end over a pool and a store."""

    engine: Engine
    pool: Pool
    store: Store
    run_id: int
    control: Control = field(default_factory=Control)
    on_progress: ProgressCallback | None = None
    clock: Callable[[], float] = time.monotonic
    #: How long the database may be away. Workers continue meanwhile.
    patience_s: float = 0.0
    #: The runners that are still to start, where the pool has described them.
    expected: ExpectedWorkers | None = None
    #: The UUIDs of cards that get no work.
    quarantined: Collection[str] = ()
    #: Called with a task and its stage once they are stored.
    on_stage: Callable[[int, Stage], None] = lambda _task_id, _stage: None
    #: Refuses to store results once a file of the kernels has changed.
    sources: SourceGuard = field(default_factory=lambda: SourceGuard({}))
    #: Trials that this driver has stored.
    recorded: int = 0
    stages: StageTimes = field(default_factory=StageTimes)
    used: Usage = field(init=False)
    _alive: _KeepAlive = field(init=False)
    _started: float = 0.0
    #: When progress was shown last.
    _shown: float = 0.0
    #: The time left as it is shown.
    _time_left: TimeLeft = field(default_factory=TimeLeft)
    _drained: bool = False
    #: Events of the pool that the engine has not taken.
    _waiting: list[Event] = field(default_factory=list)
    _writes: WriteQueue = field(init=False)
    #: Outcomes of tasks that progress has not shown as done yet.
    _chosen: dict[int, SelectionRecord] = field(default_factory=dict)
    _end: Finish | None = None

    def __post_init__(self) -> None:
        self._writes = WriteQueue(self.patience_s, self.clock, self.sources.check)
        self.used = Usage(self.engine.dispatcher)
        self._alive = _KeepAlive(self.store, self.run_id)

    def run(self, ready: list[WorkerInfo]) -> Finish:
        """Drive until the engine finishes. `ready`: workers that the pool has announced."""
        try:
            with span("search and finals", "run"):
                end = self._drive(ready)
            self._writes.flush(lambda: self.control.killed)
            self.sources.check()
        except StoreMovedError:
            self._writes.save()  # the open connection to the deleted file still takes it
            raise
        except (StoreError, SourceChangedError):
            self._writes.drop()  # nothing more may be stored
            raise
        except BaseException:
            self._writes.save()
            raise
        self._show(last=True)
        return end

    def _drive(self, ready: list[WorkerInfo]) -> Finish:
        self._started = self.clock()
        self.used.start(self._started)
        for worker in ready:
            self._handle(WorkerReady(worker))
        if self.expected is not None:
            self._handle(Tick())  # orders the first builds
        strategies.load_numerics({spec.strategy.name for spec in self.engine.specs})
        while self._end is None:
            if self.control.killed:
                _log.info("run %d is stopped at once", self.run_id)
                return Finish(RunStatus.INTERRUPTED, "stopped at once")
            if self.expected is not None and not self.expected.started:
                self.expected.check()
                if self.control.draining:
                    _log.info("run %d is stopped before a worker has started", self.run_id)
                    return Finish(RunStatus.INTERRUPTED, "stopped before a worker had started")
            if self.control.draining and not self._drained:
                _log.info("run %d is draining", self.run_id)
                self._drained = True
                self._handle(Drain())
                continue
            if self._writes.full:
                self._writes.pause()
                continue
            self._step()
            self.used.count_workers(self.clock())
            self._show()
            self._alive.beat(self._writes, self.sources)
        return self._end

    def _step(self) -> None:
        """Give the engine one event, or write one result while no worker waits."""
        writable = self._writes.can_write
        idle = not (self.engine.builds_deferred or self._waiting or writable)
        self._waiting += self.pool.poll(_POLL_S if idle else 0.0)
        if writable and not (self.engine.builds_deferred or self._waiting):
            self._writes.write()
            return
        # Workers come first, but a database that is slower than they are holds them up.
        self._writes.write_overdue()
        if self.pool.builders != self.engine.builders:
            # Nodes have joined or left the cluster.
            self._handle(BuildersChanged(self.pool.builders))
        with quiet_processors.at_work() as free:
            if free:
                self._handle(self._next_event())
                return
        # Variants are timed on these processors. Only what devices have measured goes on, after
        # which the engine asks no strategy.
        places = (i for i, event in enumerate(self._waiting) if isinstance(event, Measured))
        if (place := next(places, None)) is not None:
            self._handle(self._waiting.pop(place))
        else:
            self._waiting += self.pool.poll(_POLL_S)

    def _next_event(self) -> Event:
        """Answers of devices before finished builds: a device waits for its next job."""
        if not self._waiting:
            return Tick()
        places = (i for i, event in enumerate(self._waiting) if not isinstance(event, Built))
        return self._waiting.pop(next(places, 0))

    def _handle(self, event: Event) -> None:
        if isinstance(event, WorkerReady) and event.worker.device.uuid in self.quarantined:
            _log.info("%s gets no work: it is in quarantine", event.worker.worker_id)
            return
        if self.expected is not None and not self.expected.accepts(event):
            return
        if isinstance(event, WorkerReady) and event.worker.calibration is not None:
            worker, calibration = event.worker, event.worker.calibration
            self._writes.add(
                partial(
                    self.store.record_calibration,
                    worker.device,
                    worker.toolchain,
                    worker.host,
                    calibration,
                )
            )
        now = self.clock()
        with span("decide", "strategy", least_s=_LEAST_S, event=type(event).__name__):
            instructions = self.engine.handle(event, now)
        for instruction in instructions:
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Record():
                record = replace(instruction.record, finished_at=datetime.now(UTC))
                self.used.count_trial(record)
                self._writes.add(partial(self._record, instruction.task_id, record))
            case Build():
                self.pool.submit_build(instruction.job)
            case Measure():
                self.pool.submit_measure(instruction.worker_id, instruction.job)
            case SetStage(task_id, stage, note):
                self.stages.enter(task_id, stage, self.clock())
                self._writes.add(partial(self._set_stage, task_id, stage, note))
            case Select(task_id, selection, baselines, finals):
                if selection.median_us is not None and selection.confirmed_at is None:
                    selection = replace(selection, confirmed_at=datetime.now(UTC))
                self._chosen[task_id] = selection
                outcome = (selection, list(baselines), list(finals))
                self._writes.add(partial(self.store.record_selection, task_id, *outcome))
            case Finish():
                self._end = instruction

    def _set_stage(self, task_id: int, stage: Stage, note: str | None) -> None:
        self.store.set_stage(task_id, stage.value, note)
        self.on_stage(task_id, stage)

    def _record(self, task_id: int, record: TrialRecord) -> None:
        self.recorded += self.store.record_trial(task_id, record)

    def _show(self, *, last: bool = False) -> None:
        now = self.clock()
        if self.on_progress is None or (now - self._shown < _PROGRESS_S and not last):
            return
        self._shown = now
        seen = progress(
            self.engine,
            now=now,
            elapsed_s=now - self._started,
            offered_s=self.used.offered_s,
            fresh=self.recorded,
            chosen=self._chosen,
            time_left=self._time_left,
        )
        done = {task.spec.task_id for task in self.engine.tasks if task.stage is Stage.DONE}
        self._chosen = {key: kept for key, kept in self._chosen.items() if key not in done}
        try:
            self.on_progress(seen)
        except OSError:
            self.on_progress = None  # the reader has left, or its disk is full
