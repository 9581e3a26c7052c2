"""Tuning with a real device and recorded builds: ten seeds cost the builds of one space.

The farm's own builders build every config of every space once, spaces in order. A campaign then
runs as under `tuner run`, but its pool wraps the farm's: a build result arrives after its recorded
seconds times a scale, given the number of builders. Nothing is confirmed: the campaign ends at the
instruction to confirm, which names its choice.
"""

from __future__ import annotations

import heapq
import itertools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from search_spaces.records import Device, Status, config_key
from tuner import settings
from tuner.campaign import Control, RunOptions, run_campaign
from tuner.campaign.tasks import RequestedTask
from workers import pools
from workers.job_records import (
    Artifact,
    BuildJob,
    Built,
    Failure,
    JobLost,
    KernelRef,
    Measured,
    MeasureJob,
    Measurement,
    Mode,
    PoolEvent,
    PoolSpec,
    WorkerGone,
    WorkerInfo,
    WorkerReady,
)

ROOT = Path(__file__).resolve().parent.parent
_START_S = 240.0
_TRIES = 3


class Farm:
    """The builders and the single runner for all spaces.

    `built` holds the result of every build by space. A build that is lost with its builder is
    retried.
    """

    def __init__(self, kind: str, builders: int | None) -> None:
        spec = PoolSpec(
            "local",
            {kind: 1},
            builders,
            options={kind: {"standby": False}} if kind in ("cuda", "hip") else {},
            paths=(f"{ROOT}",),
        )
        self.inner = pools.create(spec)
        self.worker: WorkerInfo | None = None
        self.built: dict[str, dict[str, Artifact | Failure]] = {}
        self.build_wall_s: dict[str, float] = {}
        self._wanted: dict[str, int] = {}
        self._jobs: dict[str, tuple[str, BuildJob, int]] = {}
        self._began: dict[str, float] = {}
        self._others: list[PoolEvent] = []

    def start(self) -> WorkerInfo:
        self.inner.start()
        deadline = time.monotonic() + _START_S
        while self.worker is None:
            self.pump(0.2)
            if time.monotonic() > deadline:
                raise RuntimeError(f"no runner was ready within {_START_S:g} s")
        return self.worker

    def build_ahead(self, name: str, task: RequestedTask, configs, device: Device) -> None:
        """Submit all builds of a space; they run after those submitted earlier."""
        self.built[name], self._wanted[name] = {}, len(configs)
        ref = KernelRef(task.kernel.spec, (f"{ROOT}",))
        self._began[name] = time.monotonic()
        for number, config in enumerate(configs):
            job = BuildJob(f"{name}#{number}", ref, task.workload, dict(config), device)
            self._jobs[job.job_id] = name, job, 0
            self.inner.submit_build(job)

    def missing(self, name: str) -> int:
        return self._wanted[name] - len(self.built[name])

    def await_built(self, name: str, deadline: float | None = None) -> bool:
        """Whether the whole space is built by the deadline (seconds, monotonic clock)."""
        while self.missing(name):
            if deadline and time.monotonic() > deadline:
                return False
            self.pump(0.2)
        self.build_wall_s.setdefault(name, time.monotonic() - self._began[name])
        return True

    def forget(self, name: str) -> None:
        self.built.pop(name, None)

    def pump(self, timeout_s: float) -> list[PoolEvent]:
        """Store the results of submitted builds; returns the other events."""
        others = []
        for event in self.inner.poll(timeout_s):
            if isinstance(event, Built) and event.job_id in self._jobs:
                name, job, _ = self._jobs.pop(event.job_id)
                if name in self.built:
                    self.built[name][config_key(job.config)] = event.result
            elif isinstance(event, JobLost) and event.job_id in self._jobs:
                self._again(event)
            else:
                if isinstance(event, WorkerReady):
                    self.worker = event.worker
                others.append(event)
        return others

    def _again(self, event: JobLost) -> None:
        name, job, tries = self._jobs[event.job_id]
        if tries + 1 < _TRIES:
            self._jobs[event.job_id] = name, job, tries + 1
            self.inner.submit_build(job)
            return
        del self._jobs[event.job_id]
        if name in self.built:
            lost = Failure(Status.COMPILE, f"the builder was lost: {event.reason}")
            self.built[name][config_key(job.config)] = lost

    def close(self) -> None:
        self.inner.close(kill=True)


@dataclass(slots=True)
class Replay:
    """The pool of one campaign: recorded builds and the farm's runner; a `Pool` for the driver."""

    farm: Farm
    #: The result of every build, by config key.
    builds: dict[str, Artifact | Failure]
    control: Control
    builders: int
    #: Seconds of waiting per recorded second of a build.
    scale: float
    runners: int = 1
    warm: bool = True
    chosen: dict | None = None
    known_s: float | None = None
    seconds: Counter = field(default_factory=Counter)
    candidates: int = 0
    methods: set[str] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)
    _free: list[float] = field(default_factory=list)
    _due: list[tuple[float, int, PoolEvent]] = field(default_factory=list)
    _sent: dict[str, MeasureJob] = field(default_factory=dict)
    _number: itertools.count = field(default_factory=itertools.count)
    _began: float = 0.0

    def start(self) -> None:
        self._began = time.monotonic()
        self._free = [self._began] * self.builders
        self._at(0.0, WorkerReady(self.farm.worker))

    def submit_build(self, job: BuildJob) -> None:
        # Only a confirmation needs builds at the check size, and this pool makes none.
        result = self.builds[config_key(job.config)]
        if isinstance(result, Artifact):
            result = replace(result, config=job.config)
        start = max(time.monotonic(), heapq.heappop(self._free))
        end = start + self.scale * result.build_s
        heapq.heappush(self._free, end)
        self._at(end, Built(job.job_id, result))

    def submit_measure(self, worker_id: str, job: MeasureJob) -> None:
        if job.mode is Mode.CONFIRM:
            self.chosen = dict(job.candidates[0].config)
            self.known_s = time.monotonic() - self._began
            self.control.kill()
            return
        self._sent[job.job_id] = job
        self.farm.inner.submit_measure(worker_id, job)

    def poll(self, timeout_s: float) -> Sequence[PoolEvent]:
        now = time.monotonic()
        wait_s = min(timeout_s, max(0.0, self._due[0][0] - now)) if self._due else timeout_s
        events = self.farm.pump(wait_s)
        for event in events:
            self._learn(event)
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            events.append(heapq.heappop(self._due)[2])
        return events

    def close(self, *, kill: bool = False) -> None:
        """Wait for running measurements, so that the next campaign has the device alone; the farm
        stays up.
        """
        deadline = time.monotonic() + _START_S
        while self._sent and time.monotonic() < deadline:
            for event in self.farm.pump(0.2):
                self._learn(event)

    def _at(self, when: float, event: PoolEvent) -> None:
        heapq.heappush(self._due, (when, next(self._number), event))

    def _learn(self, event: PoolEvent) -> None:
        if isinstance(event, WorkerGone):
            self.lost.append(event.reason)
        if isinstance(event, JobLost):
            self._sent.pop(event.job_id, None)
        if not isinstance(event, Measured) or event.job_id not in self._sent:
            return
        job, result = self._sent.pop(event.job_id), event.result
        if not isinstance(result, Measurement):
            return
        mode = job.mode.value
        self.seconds[f"{mode}_device"] += result.device_s
        self.seconds[f"{mode}_timing"] += result.timing_s
        self.methods.add(result.method)
        if job.mode is Mode.SCREENING:
            self.candidates += len(job.candidates) - job.incumbent


def search(farm: Farm, name: str, task: RequestedTask, seed: int, options: dict) -> dict:
    """One campaign over a built space: its choice, its trials and their cost.

    options: `strategy`, `strategy_options`, `trials`, `builders`, `build_scale`, `measure`.
    """
    control = Control()
    pool = Replay(farm, farm.built[name], control, options["builders"], options["build_scale"])
    with tempfile.TemporaryDirectory(prefix="tuner-regret-") as folder:
        loaded = _settings(Path(folder), task, seed, options)
        run = RunOptions(base=ROOT, report=False, export=False, fresh=True)
        outcome = run_campaign(loaded, "task", options=run, control=control, pool=pool)
        trials = _trials(loaded.database.url, outcome.run_id)
    return {"seed": seed, **_summary(pool, trials)}


def _settings(folder: Path, task: RequestedTask, seed: int, options: dict):
    strategy = {"name": options["strategy"], "seed": seed}
    strategy["options"] = dict(options.get("strategy_options") or {})
    line = {"kernel": task.kernel.spec, "workloads": [task.workload.as_dict()]}
    document = {
        "version": 1,
        "database": {"url": f"sqlite:///{folder}/tuner.db"},
        "paths": {"results": f"{folder}", "tables": f"{folder}/tables"},
        "pool": {"kind": "local"},
        "measure": options["measure"],
        "campaigns": {
            "task": {
                "targets": list(task.targets),
                "tasks": [{**line, "space": task.config.space}],
                "budget": {"trials": options["trials"]},
                "strategy": strategy,
                "in_flight": 1,
            }
        },
    }
    path = folder / "config.yaml"
    path.write_text(json.dumps(document))
    return settings.load(path, {})[0]


def _trials(url: str, run_id: int):
    from results_db import Store

    with Store.open(url) as store:
        (task,) = store.tasks(run_id)
        return store.trials(task.task_id)


def _summary(pool: Replay, trials) -> dict:
    timing_s = pool.seconds["screening_timing"] + pool.seconds["race_timing"]
    device_s = pool.seconds["screening_device"] + pool.seconds["race_device"]
    correct = [t for t in trials if t.status is Status.CORRECT]
    return {
        "chosen": pool.chosen,
        "tried": [dict(t.config) for t in correct],
        "trials": len(trials),
        "statuses": dict(sorted(Counter(t.status.value for t in trials).items())),
        "measured": pool.candidates,
        "known_s": round(pool.known_s, 3) if pool.known_s is not None else None,
        "gpu_s": round(device_s, 4),
        "timing_s": round(timing_s, 4),
        "finals_timing_s": round(pool.seconds["race_timing"], 4),
        "timing_ms_per_config": round(1e3 * timing_s / max(1, pool.candidates), 4),
        "screening_ms_per_config": round(
            1e3 * pool.seconds["screening_timing"] / max(1, pool.candidates), 4
        ),
        "gpu_ms_per_config": round(1e3 * device_s / max(1, pool.candidates), 3),
        "methods": sorted(pool.methods),
        "lost": pool.lost,
    }
