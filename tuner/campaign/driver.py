"""The loop between the engine and the world: events from the pool in, instructions carried out."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from results_db import Store, StoreAwayError, StoreError, StoreMovedError, TrialRecord
from results_db.patience import Outage
from results_db.records import SelectionRecord
from tuner.campaign import lease
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
from tuner.progress import ProgressCallback
from workers.records import Built, WorkerInfo, WorkerReady
from workers.roles import Pool

_POLL_S = 0.1
_PROGRESS_S = 0.25
#: So many results may wait to be written down while workers are waiting, and so long. A driver that
#: is killed loses what waits: less than a second of work.
_UNWRITTEN = 64
_UNWRITTEN_S = 0.5
#: So many may wait while the database is away; then the workers wait too.
_MOST_UNWRITTEN = 1000
#: Between looks at whether the database's file is still in its place.
_PLACE_S = 1.0
_log = logging.getLogger("tuner.database")


class Control:
    """How a running campaign is asked to stop; may be called from any thread or signal handler."""

    def __init__(self) -> None:
        self._drain = threading.Event()
        self._kill = threading.Event()

    def drain(self) -> None:
        """Finish what is in flight, start nothing new."""
        self._drain.set()

    def kill(self) -> None:
        """Stop at once; what is in flight is lost, what is recorded stays."""
        self._kill.set()

    @property
    def draining(self) -> bool:
        return self._drain.is_set()

    @property
    def killed(self) -> bool:
        return self._kill.is_set()


@dataclass(slots=True)
class Driver:
    """Runs an engine to its end over a pool and a store. recorded counts trials stored by it.

    patience_s: how long the database may be away; workers go on meanwhile.
    """

    engine: Engine
    pool: Pool
    store: Store
    run_id: int
    control: Control = field(default_factory=Control)
    on_progress: ProgressCallback | None = None
    clock: Callable[[], float] = time.monotonic
    patience_s: float = 0.0
    recorded: int = 0
    _started: float = 0.0
    _counted: float = 0.0
    _offered_s: float = 0.0
    _shown: float = 0.0
    _beat: float = 0.0
    _looked: float = 0.0
    _drained: bool = False
    _waiting: list[Event] = field(default_factory=list)
    #: With the moment each came. Writing one of them twice must be as good as once.
    _unwritten: deque[tuple[float, Callable[[], object]]] = field(default_factory=deque)
    _outage: Outage = field(init=False)
    #: Of tasks that were not shown as done yet.
    _chosen: dict[int, SelectionRecord] = field(default_factory=dict)
    _end: Finish | None = None

    def __post_init__(self) -> None:
        self._outage = Outage(self.patience_s)

    def run(self, ready: list[WorkerInfo]) -> Finish:
        """Drive until the engine finishes; `ready` are workers the pool has announced already."""
        try:
            end = self._drive(ready)
            self._flush()
        except StoreMovedError:
            self._save_rest()  # the connection to the deleted file still takes it
            raise
        except StoreError:
            self._drop_rest()  # nor can that be written
            raise
        except BaseException:
            self._save_rest()
            raise
        self._show(last=True)
        return end

    def _drive(self, ready: list[WorkerInfo]) -> Finish:
        self._started = self._counted = self.clock()
        for worker in ready:
            self._handle(WorkerReady(worker))
        while self._end is None:
            if self.control.killed:
                return Finish("interrupted", "stopped at once")
            if self.control.draining and not self._drained:
                self._drained = True
                self._handle(Drain())
                continue
            if self._outage.lasts and len(self._unwritten) >= _MOST_UNWRITTEN:
                time.sleep(_POLL_S)
                self._write(1)
                continue
            writable = bool(self._unwritten) and not self._outage.waits
            idle = not (self.engine.builds_deferred or self._waiting or writable)
            self._waiting += self.pool.poll(_POLL_S if idle else 0.0)
            if writable and not (self.engine.builds_deferred or self._waiting):
                self._write(1)
            else:
                # Workers first; but a database that is slower than they are holds them up.
                self._write(self._overdue())
                if self.pool.builders != self.engine.builders:
                    # Nodes have joined or left the cluster.
                    self._handle(BuildersChanged(self.pool.builders))
                self._handle(self._next_event())
            self._count_workers()
            self._show()
            self._keep_alive()
        return self._end

    def usage(self) -> dict[str, float]:
        """How well the devices were used, for the run's record.

        device_busy_share: of all device time. busy_share_while_ready: of the time in which a device
        had something to do. timing_s, configs: device seconds spent timing, candidates measured.
        """
        floor = self.engine.dispatcher
        busy = floor.busy_s / self._offered_s if self._offered_s > 0 else 0.0
        ready = floor.held_s / floor.busy_s if floor.busy_s > 0 else 0.0
        return {
            "device_busy_share": round(min(1.0, busy), 4),
            "busy_share_while_ready": round(min(1.0, ready), 4),
            "device_s": round(floor.held_s, 4),
            "timing_s": round(floor.timing_s, 4),
            "configs": float(floor.configs),
        }

    def _next_event(self) -> Event:
        """A device that has answered waits for its next job; a builder has that already."""
        if not self._waiting:
            return Tick()
        places = (i for i, event in enumerate(self._waiting) if not isinstance(event, Built))
        return self._waiting.pop(next(places, 0))

    def _handle(self, event: Event) -> None:
        if isinstance(event, WorkerReady) and event.worker.calibration is not None:
            worker, calibration = event.worker, event.worker.calibration
            self._keep(
                partial(
                    self.store.record_calibration,
                    worker.device,
                    worker.toolchain,
                    worker.host,
                    calibration,
                )
            )
        for instruction in self.engine.handle(event, self.clock()):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Record():
                record = replace(instruction.record, finished_at=datetime.now(UTC))
                self._keep(partial(self._record, instruction.task_id, record))
            case Build():
                self.pool.submit_build(instruction.job)
            case Measure():
                self.pool.submit_measure(instruction.worker_id, instruction.job)
            case SetStage(task_id, stage, note):
                self._keep(partial(self.store.set_stage, task_id, stage.value, note))
            case Select(task_id, selection, baselines, finals):
                if selection.median_us is not None and selection.confirmed_at is None:
                    selection = replace(selection, confirmed_at=datetime.now(UTC))
                self._chosen[task_id] = selection
                outcome = (selection, list(baselines), list(finals))
                self._keep(partial(self.store.record_selection, task_id, *outcome))
            case Finish():
                self._end = instruction

    def _keep(self, write: Callable[[], object]) -> None:
        self._unwritten.append((self.clock(), write))

    def _record(self, task_id: int, record: TrialRecord) -> None:
        self.recorded += self.store.record_trial(task_id, record)

    def _overdue(self) -> int:
        """How many results cannot wait any longer: too many wait, or they have waited too long."""
        latest = self.clock() - _UNWRITTEN_S
        late = sum(came <= latest for came, _ in self._unwritten)
        return max(late, len(self._unwritten) - _UNWRITTEN)

    def _write(self, count: int) -> None:
        """Write down the next `count` of what is to be, in its order, if the database answers."""
        for _ in range(count):
            if not self._unwritten or self._outage.waits:
                return
            try:
                self._unwritten[0][1]()
            except StoreAwayError as error:
                self._outage.failed(error)
                return
            self._outage.over()
            self._unwritten.popleft()

    def _flush(self) -> None:
        """Write down all that is left; unless told to stop at once, wait for the database."""
        while self._unwritten:
            self._write(len(self._unwritten))
            if self._outage.lasts and self.control.killed:
                self._drop_rest()
            elif self._outage.lasts:
                time.sleep(_POLL_S)

    def _save_rest(self) -> None:
        """Write down what can be, when the run ends by an error."""
        with suppress(StoreError):
            self._write(len(self._unwritten))
        self._drop_rest()

    def _drop_rest(self) -> None:
        if self._unwritten:
            _log.warning("tuner: %d results could not be stored", len(self._unwritten))
            self._unwritten.clear()

    def _count_workers(self) -> None:
        """Device time that there was, used or not; workers come and go."""
        now = self.clock()
        self._offered_s += (now - self._counted) * len(self.engine.dispatcher.workers)
        self._counted = now

    def _keep_alive(self) -> None:
        """Real time, whatever the pool's clock says: other drivers wait in real time."""
        now = time.monotonic()
        if now - self._looked > _PLACE_S:
            self._looked = now
            self.store.check_place()
        if now - self._beat > lease.BEAT_S and not self._outage.waits:
            try:
                self.store.beat(self.run_id)
            except StoreAwayError as error:
                self._outage.failed(error)
            else:
                self._outage.over()
                self._beat = now

    def _show(self, *, last: bool = False) -> None:
        now = self.clock()
        if self.on_progress is None or (now - self._shown < _PROGRESS_S and not last):
            return
        self._shown = now
        elapsed = now - self._started
        seen = progress(
            self.engine,
            elapsed_s=elapsed,
            offered_s=self._offered_s,
            fresh=self.recorded,
            chosen=self._chosen,
        )
        done = {task.spec.task_id for task in self.engine.tasks if task.stage is Stage.DONE}
        self._chosen = {key: kept for key, kept in self._chosen.items() if key not in done}
        try:
            self.on_progress(seen)
        except OSError:
            self.on_progress = None  # the reader has left, or its disk is full
