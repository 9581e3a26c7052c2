"""The loop between the engine and the world: events from the pool in, instructions carried out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from results_db import Store
from tuner import lease
from tuner.engine import (
    Build,
    Drain,
    Engine,
    Event,
    Finish,
    Instruction,
    Measure,
    Record,
    Select,
    SetStage,
    Tick,
    progress,
)
from tuner.progress import ProgressCallback
from workers.records import Built, WorkerInfo, WorkerReady
from workers.roles import Pool

_POLL_S = 0.1
_PROGRESS_S = 0.25


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
    """Runs an engine to its end over a pool and a store. recorded counts trials stored by it."""

    engine: Engine
    pool: Pool
    store: Store
    run_id: int
    control: Control = field(default_factory=Control)
    on_progress: ProgressCallback | None = None
    clock: Callable[[], float] = time.monotonic
    recorded: int = 0
    _started: float = 0.0
    _counted: float = 0.0
    _offered_s: float = 0.0
    _shown: float = 0.0
    _beat: float = 0.0
    _drained: bool = False
    _waiting: list[Event] = field(default_factory=list)
    _end: Finish | None = None

    def run(self, ready: list[WorkerInfo]) -> Finish:
        """Drive until the engine finishes; `ready` are workers the pool has announced already."""
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
            idle = not self.engine.hungry and not self._waiting
            self._waiting += self.pool.poll(_POLL_S if idle else 0.0)
            # Nodes that joined a cluster bring more of them.
            self.engine.builders = self.pool.builders
            self._handle(self._next_event())
            self._count_workers()
            self._show()
            self._keep_alive()
        self._show(last=True)
        return self._end

    def usage(self) -> dict[str, float]:
        """How well the devices were used, for the run's record.

        device_busy_share: of all device time. busy_share_while_ready: of the time in which a device
        had something to do. timing_s, configs: device seconds spent timing, challengers measured.
        """
        floor = self.engine.floor
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
            self.store.record_calibration(worker.device, worker.toolchain, worker.host, calibration)
        for instruction in self.engine.handle(event, self.clock()):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Record():
                record = replace(instruction.record, finished_at=datetime.now(UTC))
                self.recorded += self.store.record_trial(instruction.task_id, record)
            case Build():
                self.pool.submit_build(instruction.job)
            case Measure():
                self.pool.submit_measure(instruction.worker_id, instruction.job)
            case SetStage():
                self.store.set_stage(instruction.task_id, instruction.stage, instruction.note)
            case Select():
                selection = instruction.selection
                if selection.median_us is not None and selection.confirmed_at is None:
                    selection = replace(selection, confirmed_at=datetime.now(UTC))
                baselines, finals = list(instruction.baselines), list(instruction.finals)
                self.store.record_selection(instruction.task_id, selection, baselines, finals)
            case Finish():
                self._end = instruction

    def _count_workers(self) -> None:
        """Device time that there was, used or not; workers come and go."""
        now = self.clock()
        self._offered_s += (now - self._counted) * len(self.engine.floor.workers)
        self._counted = now

    def _keep_alive(self) -> None:
        now = self.clock()
        if now - self._beat > lease.BEAT_S:
            self._beat = now
            lease.keep(self.store, self.run_id)

    def _show(self, *, last: bool = False) -> None:
        now = self.clock()
        if self.on_progress is None or (now - self._shown < _PROGRESS_S and not last):
            return
        self._shown = now
        elapsed = now - self._started
        self.on_progress(
            progress(
                self.engine,
                elapsed_s=elapsed,
                offered_s=self._offered_s,
                fresh=self.recorded,
            )
        )
