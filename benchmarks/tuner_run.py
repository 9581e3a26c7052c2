"""Tuner's side of a comparison: one task tuned with cold caches, timed at its pool.

The campaign runs as under `tuner run`, but its pool is wrapped. Times are those of the jobs that
workers receive and of the answers that they send.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from matmul_tasks import MatmulTask

from search_spaces.records import Workload, config_key
from search_spaces.registry import load
from tuner import settings
from tuner.campaign import RunOptions, pool_spec_of, run_campaign
from workers import device as devices
from workers import pools
from workers.job_records import (
    Artifact,
    BuildJob,
    Built,
    JobLost,
    KernelRef,
    Measured,
    MeasureJob,
    Measurement,
    Mode,
    PoolEvent,
    WorkerGone,
    WorkerInfo,
    WorkerReady,
)

ROOT = Path(__file__).resolve().parent.parent
#: The kernel and the workload that warm the workers up.
_OTHER = KernelRef("softmax", (str(ROOT),))
_WARM = Workload.of(rows=64, cols=1024, dtype="float32")
_START_S = 180.0


@dataclass(slots=True)
class WatchedPool:
    """A pool with warm workers once `start` returns; it records the times of jobs and answers.

    Warm means the state of a farm that has already run other tasks: every builder has compiled a
    variant of another kernel, and every runner has confirmed one, so that its standby process is up
    as well. Times are seconds since then.
    """

    inner: object
    warm_at: float = 0.0
    start_s: float = 0.0
    workers: list[WorkerInfo] = field(default_factory=list)
    first: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    jobs: Counter = field(default_factory=Counter)
    seconds: Counter = field(default_factory=Counter)
    configs: set[str] = field(default_factory=set)
    nominated: dict | None = None
    lost: list[str] = field(default_factory=list)
    compiled: int = 0
    _waiting: list[PoolEvent] = field(default_factory=list)
    _sent: dict[str, tuple[float, MeasureJob]] = field(default_factory=dict)

    @property
    def builders(self) -> int:
        return self.inner.builders

    @property
    def runners(self) -> int:
        return self.inner.runners

    @property
    def warm(self) -> bool:
        return self.inner.warm

    def describe_workers(self) -> None:
        """None: the campaign starts when all workers are ready."""
        return

    def start(self) -> None:
        began = time.perf_counter()
        self.inner.start()
        self._await(began, lambda: len(self.workers) >= self.inner.runners, "runners")
        variant = self._warm_builders(began)
        self._warm_runners(began, variant)
        self.warm_at = time.perf_counter()
        self.start_s = self.warm_at - began

    def _warm_builders(self, began: float) -> Artifact:
        """Let every builder compile a variant of another kernel; returns the variant."""
        kernel = load(_OTHER.spec)
        real = [w.device for w in self.workers if w.device.kind in ("cuda", "hip")]
        device = real[0] if real else devices.offline("cuda:90")
        config = kernel.default_config(_WARM, device)
        built: dict[str, object] = {}
        for index in range(self.inner.builders):
            self.inner.submit_build(BuildJob(f"warm:{index}", _OTHER, _WARM, config, device))

        def all_answered() -> bool:
            built.update(self._answers(Built))
            return len(built) >= self.inner.builders

        self._await(began, all_answered, "builders")
        return next(event.result for event in built.values() if isinstance(event, Built))

    def _warm_runners(self, began: float, variant: Artifact) -> None:
        """Let every device screen a variant of another kernel, then confirm it.

        The standby process makes the confirmation, because the device's process has already
        measured the variant.
        """
        workers = [w.worker_id for w in self.workers if w.device.kind in ("cuda", "hip")]
        for mode in (Mode.SCREENING, Mode.CONFIRM):
            for worker_id in workers:
                job = MeasureJob(f"warm:{mode}:{worker_id}", _OTHER, _WARM, (variant,), mode)
                self.inner.submit_measure(worker_id, job)
            answers: dict[str, PoolEvent] = {}

            def all_answered(answers: dict[str, PoolEvent] = answers) -> bool:
                answers.update(self._answers(Measured))
                return len(answers) >= len(workers)

            self._await(began, all_answered, f"device processes ({mode})")
            for event in answers.values():
                if not isinstance(event, Measured) or not isinstance(event.result, Measurement):
                    raise RuntimeError(f"a runner failed to warm up: {event}")

    def _answers(self, kind: type) -> dict[str, PoolEvent]:
        """Take the answers to warm-up jobs from the received events."""
        answers = [e for e in self._waiting if isinstance(e, kind | JobLost)]
        self._waiting = [e for e in self._waiting if e not in answers]
        return {event.job_id: event for event in answers}

    def _await(self, began: float, there, what: str) -> None:
        while not there():
            if time.perf_counter() - began > _START_S:
                raise RuntimeError(f"the {what} were not ready within {_START_S:g} s")
            for event in self.inner.poll(0.1):
                if isinstance(event, WorkerReady):
                    self.workers.append(event.worker)
                if isinstance(event, WorkerGone):
                    raise RuntimeError(f"worker {event.worker_id} is gone: {event.reason}")
                self._waiting.append(event)

    # -- while it runs -----------------------------------------------------------------------------
    def submit_build(self, job: BuildJob) -> None:
        self._note("build")
        self.inner.submit_build(job)

    def submit_measure(self, worker_id: str, job: MeasureJob) -> None:
        self._note(job.mode.value)
        if job.mode is Mode.CONFIRM and self.nominated is None:
            self.nominated = dict(job.candidates[0].config)
        self._sent[job.job_id] = (time.perf_counter(), job)
        self.inner.submit_measure(worker_id, job)

    def poll(self, timeout_s: float) -> Sequence[PoolEvent]:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            return waiting
        events = self.inner.poll(timeout_s)
        for event in events:
            self._learn(event)
        return events

    def close(self, *, kill: bool = False) -> None:
        self.inner.close(kill=kill)

    def _now(self) -> float:
        return time.perf_counter() - self.warm_at

    def _note(self, what: str) -> None:
        self.first.setdefault(what, self._now())
        self.jobs[what] += 1

    def _learn(self, event: PoolEvent) -> None:
        if isinstance(event, JobLost):
            self.lost.append(event.reason)
        if isinstance(event, Built):
            self.last["build"] = self._now()
            self.seconds["build_cpu"] += getattr(event.result, "build_s", 0.0)
        if not isinstance(event, Measured) or event.job_id not in self._sent:
            return
        sent, job = self._sent.pop(event.job_id)
        mode = job.mode.value
        self.last[mode] = self._now()
        self.seconds[f"{mode}_held"] += time.perf_counter() - sent
        if not isinstance(event.result, Measurement):
            return
        self.compiled += event.result.compiled
        self.seconds[f"{mode}_device"] += event.result.device_s
        self.seconds[f"{mode}_timing"] += event.result.timing_s
        if job.mode in (Mode.SCREENING, Mode.RACE):
            self.configs.update(config_key(a.config) for a in job.candidates)


def tune_once(task: MatmulTask, seed: int, options: dict) -> dict:
    """Tune the task with empty caches; returns when the winner was known and when it was confirmed.

    options: `strategy`, `strategy_options`, `trials` (a number or `auto`), `polish`, `baselines`,
    and `recorded`, a recorded space to search instead of a device. Seconds count from warm workers:
    `wall_s` to the instruction to confirm the winner, `confirmed_s` to the answer.
    """
    with tempfile.TemporaryDirectory(prefix="tuner-bench-") as folder:
        loaded = _settings(Path(folder), task, seed, options)
        _import_strategy(loaded.campaigns["task"].strategy, seed)
        run = RunOptions(base=ROOT, report=False, export=False, fresh=True)
        # Modules that Triton compiles for the host go into an empty folder as well.
        with _triton_home(folder):
            pool = WatchedPool(pools.create(pool_spec_of(loaded, "task", options=run)))
            outcome = run_campaign(loaded, "task", options=run, pool=pool)
        stored = _stored(loaded.database.url, outcome.run_id)
    return {"seed": seed, "status": outcome.status, **stored, **_timeline(pool, stored)}


@contextmanager
def _triton_home(folder: str) -> Iterator[None]:
    """Let Triton keep its host modules below the folder, in child processes too."""
    earlier = os.environ.get("TRITON_HOME")
    os.environ["TRITON_HOME"] = folder
    try:
        yield
    finally:
        if earlier is None:
            del os.environ["TRITON_HOME"]
        else:
            os.environ["TRITON_HOME"] = earlier


def _settings(folder: Path, task: MatmulTask, seed: int, options: dict):
    recorded = options.get("recorded")
    line = {"kernel": f"recorded:{ROOT / recorded}" if recorded else "matmul", "space": task.space}
    if not recorded:
        line["workloads"] = [task.workload.as_dict()]
    strategy = {"name": options["strategy"], "seed": seed}
    strategy["options"] = dict(options.get("strategy_options") or {})
    strategy["polish"] = options.get("polish", 0)
    trials = options["trials"]
    document = {
        "version": 1,
        "database": {"url": f"sqlite:///{folder}/tuner.db"},
        "paths": {"results": f"{folder}", "tables": f"{folder}/tables"},
        "pool": {"kind": "local"},
        "campaigns": {
            "task": {
                "targets": ["simulated" if recorded else "cuda"],
                "tasks": [line],
                "budget": {"trials": trials if trials == "auto" else int(trials)},
                "strategy": strategy,
                "in_flight": 1,
            }
        },
    }
    if options.get("baselines"):
        document["measure"] = {"baselines": options["baselines"]}
    path = folder / "config.yaml"
    path.write_text(_yaml(document))
    return settings.load(path, {})[0]


def _yaml(document: dict) -> str:
    import json

    return json.dumps(document, indent=1)


def _import_strategy(strategy, seed: int) -> None:
    """Import the driver's modules before timing starts: imports count in no tool's time."""
    from search_spaces.params import PowerOfTwo
    from search_spaces.records import Device
    from search_spaces.space import SearchSpace
    from tuner import strategies

    bound = SearchSpace([PowerOfTwo("a", 1, 8)]).bind(Workload.of(), Device("cpu", "", "cpu"))
    strategies.create(strategy.name, bound, seed, strategy.options).ask(1)


def _stored(url: str, run_id: int) -> dict:
    from results_db import Store

    with Store.open(url) as store:
        run, (info,) = store.run(run_id), store.tasks(run_id)
        trials = store.trials(info.task_id)
    chosen = info.selection
    return {
        "usage": dict(run.summary),
        "winner": dict(chosen.winner) if chosen else None,
        "verdict_against_default": chosen.verdict if chosen else None,
        "reason": chosen.reason if chosen else info.note,
        "tie_set": len(chosen.tie_set) if chosen else 0,
        "confirmed_us": chosen.median_us if chosen else None,
        "trials": len(trials),
        "statuses": dict(Counter(trial.status.value for trial in trials)),
        "binaries": len({trial.binary_hash for trial in trials if trial.binary_hash}),
        "device": info.key.device.name,
        "toolchain": {
            name: getattr(info.key.toolchain, name)
            for name in ("python", "torch", "triton", "cuda", "driver")
        },
    }


def _timeline(pool: WatchedPool, stored: dict) -> dict:
    known_s = pool.first.get("confirm")
    seconds = {name: round(value, 4) for name, value in sorted(pool.seconds.items())}
    searching = sum(pool.seconds[f"{mode}_held"] for mode in ("screening", "race"))
    timing = sum(pool.seconds[f"{mode}_timing"] for mode in ("screening", "race"))
    return {
        "wall_s": round(known_s, 3) if known_s is not None else None,
        "confirmed_s": round(pool.last["confirm"], 3) if "confirm" in pool.last else None,
        "confirmation_changed_it": pool.nominated is not None
        and pool.nominated != stored["winner"],
        "workers_up_s": round(pool.start_s, 3),
        "builders": pool.builders,
        "first_s": {name: round(value, 3) for name, value in sorted(pool.first.items())},
        "last_s": {name: round(value, 3) for name, value in sorted(pool.last.items())},
        "jobs": dict(sorted(pool.jobs.items())),
        "seconds": seconds,
        "measured_configs": len(pool.configs),
        "gpu_ms_per_config": round(1000 * timing / len(pool.configs), 3) if pool.configs else None,
        "busy": round(searching / known_s, 3) if known_s else None,
        "compiled_on_device": pool.compiled,
        "lost": pool.lost,
        "card": [worker.device.uuid for worker in pool.workers],
    }
