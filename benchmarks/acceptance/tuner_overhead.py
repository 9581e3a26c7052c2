"""Overhead of the tuner per trial, with builders and devices that answer at once (C8).

The real driver and engine run over a pool whose builds and measurements take no time, once with a
store that keeps nothing and once with SQLite in write-ahead mode on disk.
"""

from __future__ import annotations

import math
import platform
import tempfile
import time
from collections import deque
from collections.abc import Sequence

from results_db import Store
from results_db.stored_records import TaskKey
from search_spaces.params import Choice, Integer, PowerOfTwo
from search_spaces.records import Device, Toolchain, Workload, digest
from search_spaces.space import SearchSpace
from tuner import strategies
from tuner.base.log_ratio import LogRatio
from tuner.campaign.driver import Driver
from tuner.engine import Engine, TaskBudget, TaskSpec
from workers.job_records import (
    Artifact,
    BuildJob,
    Built,
    KernelRef,
    Measured,
    MeasureJob,
    Measurement,
    Mode,
    PoolEvent,
    StaticFacts,
    Timing,
    WorkerInfo,
)
from workers.roles import Pool

DEVICE = Device("simulated", "no device", "simulated")
TOOLS = Toolchain(python=platform.python_version())
WORKLOAD = Workload.of(n=1)
BUILDERS = 15
#: Samples per candidate. In real runs most candidates have fewer, so the storing cost is an upper
#: bound.
SAMPLES = 24
#: Bounds in milliseconds per trial.
BOUNDS = {"memory": 2.0, "sqlite": 10.0}


class InstantPool(Pool):
    """A pool that answers at once; a config's time is drawn from its digest."""

    builders = BUILDERS
    runners = 1
    warm = True

    def __init__(self) -> None:
        self._events: deque[PoolEvent] = deque()

    def start(self) -> None:
        """There are no processes to start."""

    def close(self, *, kill: bool = False) -> None:
        self._events.clear()

    def submit_build(self, job: BuildJob) -> None:
        facts = StaticFacts(32, 0, 1024, 4, 4096)
        binary = digest(dict(job.config))
        artifact = Artifact(job.config, "simulated", TOOLS, binary, facts, build_s=0.1)
        self._events.append(Built(job.job_id, artifact))

    def submit_measure(self, worker_id: str, job: MeasureJob) -> None:
        times = [_time_us(artifact) for artifact in job.candidates]
        incumbent = job.mode is Mode.SCREENING and job.incumbent
        reference_us = times[-1 if incumbent else 0] if times else 0.0
        outcomes = tuple(map(_timing, job.candidates, times, [reference_us] * len(times)))
        result = Measurement(DEVICE, TOOLS, outcomes, method="simulated", device_s=0.001)
        self._events.append(Measured(job.job_id, worker_id, result))

    def poll(self, timeout_s: float) -> Sequence[PoolEvent]:
        events = list(self._events)
        self._events.clear()
        return events


class NoStore:
    """A store that keeps nothing, which leaves the cost of driver, engine and strategy."""

    def record_trial(self, task_id: int, record: object) -> bool:
        return True

    def set_stage(self, task_id: int, stage: str, note: str | None = None) -> None:
        """Discard it."""

    def record_selection(self, task_id: int, *outcome: object) -> None:
        """Discard it."""

    def beat(self, run_id: int) -> None:
        """Discard it."""

    def check_place(self) -> None:
        """There is no place to check."""


def _time_us(artifact: Artifact) -> float:
    return 50.0 * (1 + int(artifact.binary_hash[:6], 16) / 2**24)


def _timing(artifact: Artifact, us: float, reference_us: float) -> Timing:
    ratio = math.log(us / reference_us)
    interval = LogRatio(ratio, ratio - 1e-3, ratio + 1e-3)
    return Timing(artifact.binary_hash, us, (us,) * SAMPLES, interval, error=1e-6)


def spec(task_id: int, trials: int, strategy: str) -> TaskSpec:
    """A task over a space of 40,960 configs with a limited number of trials."""
    space = SearchSpace(
        [
            PowerOfTwo("BLOCK_M", 16, 2048),
            PowerOfTwo("BLOCK_N", 16, 2048),
            Integer("num_stages", 1, 10),
            PowerOfTwo("num_warps", 1, 8),
            Choice("order", ("row", "column", "grouped", "none")),
            Integer("unroll", 1, 4),
        ]
    ).bind(WORKLOAD, DEVICE)
    options = {"shuffle": True} if strategy == "exhaustive" else {}
    return TaskSpec(
        task_id=task_id,
        label="no-op",
        kernel=KernelRef("no_op"),
        workload=WORKLOAD,
        device=DEVICE,
        space=space,
        strategy=strategies.create(strategy, space, 1, options),
        default=next(space.enumerate()),
        budget=TaskBudget(trials=trials),
    )


def drive(trials: int, strategy: str, store: object, task_id: int) -> float:
    """Milliseconds of wall time per trial."""
    driver = Driver(
        Engine([spec(task_id, trials, strategy)], builders=BUILDERS), InstantPool(), store, 1
    )
    began = time.perf_counter()
    end = driver.run([WorkerInfo("w", DEVICE, TOOLS)])
    took_s = time.perf_counter() - began
    if end.status != "finished" or driver.recorded != trials:
        raise RuntimeError(f"{end}: {driver.recorded} of {trials} trials were recorded")
    return 1e3 * took_s / trials


def in_memory(trials: int, strategy: str) -> float:
    return drive(trials, strategy, NoStore(), 1)


def in_sqlite(trials: int, strategy: str) -> float:
    with (
        tempfile.TemporaryDirectory(prefix="tuner-overhead-") as folder,
        Store.open(f"sqlite:///{folder}/tuner.db") as store,
    ):
        info = store.begin_run("overhead", "0", 1, {}, {})
        key = TaskKey("no_op", "0", "0", WORKLOAD, DEVICE, TOOLS, "0")
        task = store.ensure_task(info.run_id, key, flops=1.0, bytes=1.0, tolerance=0.01)
        return drive(trials, strategy, store, task.task_id)


def overhead(trials: int, strategy: str) -> dict[str, float]:
    """Milliseconds per trial without a store and with SQLite on disk."""
    return {
        "memory": round(in_memory(trials, strategy), 4),
        "sqlite": round(in_sqlite(trials, strategy), 4),
    }
