"""One campaign over the GPUs that this process sees, with statistics of each GPU from its pool."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from made_up_spaces import synthesize
from scipy.stats import kendalltau

from results_db import Store
from search_spaces.records import Workload, config_key
from search_spaces.registry import load
from tuner import settings
from tuner.base.statistics import compare_pairs
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
    Timing,
    WorkerGone,
    WorkerInfo,
    WorkerReady,
)
from workers.roles import Pool

ROOT = Path(__file__).resolve().parent.parent
#: The kernel and the workload that warm the workers up.
_OTHER = KernelRef("softmax", (str(ROOT),))
_WARM = Workload.of(rows=64, cols=1024, dtype="float32")
_START_S = 180.0
#: Minimum candidates of a final that every GPU times, and the passes of that timing.
_CANDIDATES, _PASSES = 6, 128
_LIMIT_S = 120.0
#: Synthetic tasks of a simulated campaign: their number, configs each, noise, and the seconds of a
#: build, which are about those on an H200 host.
TASKS, CONFIGS, BUILD_S = 32, 160, 0.43
SCENARIO_IDS = ("W1", "W2", "W5", "W6")
#: Real seconds per simulated second.
_SIMULATED = 0.3


@dataclass(slots=True)
class Fleet(Pool):
    """A pool with warm workers once `start` returns; it records the work of each GPU.

    Warm means the state of a farm that has already run other tasks: every builder has compiled a
    variant of another kernel, and every runner has confirmed one, so that its standby process is up
    as well. Times are seconds since then.
    """

    inner: object
    #: Whether every GPU times one final of every kernel before the pool closes.
    compare: bool = False
    held_s: Counter = field(default_factory=Counter)
    worked_s: Counter = field(default_factory=Counter)
    served: dict[str, set] = field(default_factory=dict)
    finals: dict[str, MeasureJob] = field(default_factory=dict)
    agreement: dict = field(default_factory=dict)
    driver_cpu_s: float = 0.0
    warm_at: float = 0.0
    start_s: float = 0.0
    workers: list[WorkerInfo] = field(default_factory=list)
    first: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    jobs: Counter = field(default_factory=Counter)
    seconds: Counter = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    compiled: int = 0
    _waiting: list[PoolEvent] = field(default_factory=list)
    _sent: dict[str, tuple[float, str, MeasureJob]] = field(default_factory=dict)

    @property
    def builders(self) -> int:
        return self.inner.builders

    @property
    def runners(self) -> int:
        return self.inner.runners

    @property
    def warm(self) -> bool:
        return self.inner.warm

    def start(self) -> None:
        began = time.perf_counter()
        self.inner.start()
        self._await(began, lambda: len(self.workers) >= self.inner.runners, "runners")
        variant = self._warm_builders(began)
        self._warm_runners(began, variant)
        self.warm_at = time.perf_counter()
        self.start_s = self.warm_at - began
        self.driver_cpu_s = -time.process_time()

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
        self._sent[job.job_id] = time.perf_counter(), worker_id, job
        self.served.setdefault(worker_id, set()).add((job.kernel, job.workload))
        known = self.finals.get(job.kernel.spec)
        if job.mode is Mode.RACE and len(job.candidates) > (len(known.candidates) if known else 0):
            self.finals[job.kernel.spec] = job
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
        self.driver_cpu_s += time.process_time()
        if self.compare and not kill:
            self.agreement = compared(self.inner, [w.worker_id for w in self.workers], self.finals)
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
        sent, worker_id, job = self._sent.pop(event.job_id)
        mode, held_s = job.mode.value, time.perf_counter() - sent
        self.last[mode] = self._now()
        self.held_s[worker_id] += held_s
        self.seconds[f"{mode}_held"] += held_s
        if not isinstance(event.result, Measurement):
            return
        self.worked_s[worker_id] += event.result.device_s
        self.compiled += event.result.compiled
        self.seconds[f"{mode}_device"] += event.result.device_s
        self.seconds[f"{mode}_timing"] += event.result.timing_s


def campaign(
    count: int,
    config: Path,
    out: Path,
    *,
    pool: str,
    builders: int,
    in_flight: int | None,
    trials: int | None,
    strategy: str | None,
    compare: bool,
    simulate: bool,
) -> dict:
    """Run the campaign `many` on `count` GPUs: its seconds, shares, winners and agreement."""
    overrides = {
        "database": {"url": f"sqlite:///{out.resolve()}/tuner.db"},
        "paths": {"results": f"{out.resolve()}", "tables": f"{out.resolve()}/tables"},
        "pool": {"kind": pool, "builders": builders},
        "campaigns": {"many": {"in_flight": in_flight}},
    }
    many = overrides["campaigns"]["many"]
    if trials:
        many["budget"] = {"trials": trials}
    if strategy:
        many["strategy"] = {"name": strategy}
    if simulate:
        many |= _simulated(out)
        simulated = {"runners": count, "options": {"time_scale": _SIMULATED}}
        overrides["pool"]["devices"] = {"simulated": simulated}
        overrides["measure"] = {"baselines": None}
    loaded, _ = settings.load(config, overrides)
    options = RunOptions(base=ROOT, report=False, export=False, fresh=True)
    fleet = Fleet(pools.create(pool_spec_of(loaded, "many", options=options)), compare=compare)
    outcome = run_campaign(loaded, "many", options=options, pool=fleet)
    with Store.open(loaded.database.url) as store:
        run, tasks = store.run(outcome.run_id), store.tasks(outcome.run_id)
    return {
        "status": outcome.status,
        "summary": outcome.summary,
        "in_flight": in_flight,
        "trials": outcome.trials,
        "failures": outcome.failures,
        "usage": dict(run.summary),
        "devices": sorted({t.key.device.name for t in tasks}),
        "toolchain": _toolchain(tasks[0].key.toolchain),
        "winners": {_name(t): _chosen(t.selection) for t in tasks if t.selection is not None},
        **_timeline(fleet),
    }


def _timeline(fleet: Fleet) -> dict:
    wall_s = fleet.last["confirm"]
    workers = sorted(worker.worker_id for worker in fleet.workers)
    configs = sum(fleet.jobs[mode] for mode in ("screening", "race", "confirm"))
    return {
        "wall_s": round(wall_s, 3),
        "workers_up_s": round(fleet.start_s, 3),
        "builders": fleet.builders,
        "first_s": {name: round(value, 3) for name, value in sorted(fleet.first.items())},
        "last_s": {name: round(value, 3) for name, value in sorted(fleet.last.items())},
        "jobs": dict(sorted(fleet.jobs.items())),
        "measuring_jobs": configs,
        "seconds": {name: round(value, 3) for name, value in sorted(fleet.seconds.items())},
        "busy_shares": {w: round(fleet.held_s[w] / wall_s, 3) for w in workers},
        "worked_shares": {w: round(fleet.worked_s[w] / wall_s, 3) for w in workers},
        "tasks_per_gpu": {w: len(fleet.served.get(w, ())) for w in workers},
        "builders_busy_share": round(fleet.seconds["build_cpu"] / (fleet.builders * wall_s), 3),
        "driver_cpu_s": round(fleet.driver_cpu_s, 3),
        "compiled_on_device": fleet.compiled,
        "lost": fleet.lost,
        "agreement": fleet.agreement,
    }


# -- the same finals on every GPU ------------------------------------------------------------------
def compared(pool, workers: list[str], finals: dict[str, MeasureJob]) -> dict:
    """Ratios of finalists to the first one on each GPU, and the differences between GPUs."""
    finals_spread = {}
    for spec, job in sorted(finals.items()):
        if len(job.candidates) >= _CANDIDATES:
            answers = _on_each(pool, workers, job)
            if len(answers) == len(workers):
                finals_spread[_short(spec)] = _spread(answers)
    if not finals_spread:
        return {}
    return {
        "worst": max(spread["ratio_spread"] for spread in finals_spread.values()),
        "finals": finals_spread,
    }


def _on_each(pool, workers: list[str], job: MeasureJob) -> dict[str, Measurement]:
    # The same number of passes on every GPU: a precision target would stop some GPUs earlier.
    protocol = replace(job.protocol, final_pairs=_PASSES, precision=math.inf)
    sent = {}
    for worker in workers:
        again = replace(
            job,
            job_id=f"compare:{worker}:{job.job_id}",
            mode=Mode.CONFIRM,
            baselines=(),
            checks=(),
            protocol=protocol,
            timeout_s=_LIMIT_S,
        )
        sent[again.job_id] = worker
        pool.submit_measure(worker, again)
    answers, deadline = {}, time.monotonic() + _LIMIT_S
    while len(answers) < len(workers) and time.monotonic() < deadline:
        for event in pool.poll(0.2):
            if isinstance(event, Measured) and event.job_id in sent:
                answers[sent[event.job_id]] = event.result
    return {w: answer for w, answer in answers.items() if isinstance(answer, Measurement)}


def _spread(answers: dict[str, Measurement]) -> dict:
    """Agreement of the GPUs on one final.

    ratio_spread: the widest range over GPUs of any finalist's time relative to the first
    finalist's. taus: rank agreement of every GPU with the first one. anchor_us: the first
    finalist's time.
    """
    ratios, anchors = {}, {}
    for worker, answer in answers.items():
        timed = [o for o in answer.outcomes if isinstance(o, Timing) and o.samples_us]
        if len(timed) < len(answer.outcomes):
            return {"ratio_spread": 1.0, "problem": f"{worker} could not time every finalist"}
        anchor = timed[0].samples_us
        anchors[worker] = round(statistics.median(anchor), 4)
        # A clearly slower finalist has fewer samples than the first one.
        pairs = [(one.samples_us, anchor[: len(one.samples_us)]) for one in timed]
        ratios[worker] = [compare_pairs(own, reference).value for own, reference in pairs]
    ranges = [
        math.expm1(max(column) - min(column)) for column in zip(*ratios.values(), strict=True)
    ]
    first, *others = ratios.values()
    return {
        "finalists": len(first),
        "ratio_spread": round(max(ranges), 5),
        "ratio_spreads": [round(value, 5) for value in ranges],
        "taus": [round(float(kendalltau(first, other).statistic), 4) for other in others],
        "anchor_us": anchors,
        "anchor_spread": round(max(anchors.values()) / min(anchors.values()) - 1, 5),
    }


# -- names -----------------------------------------------------------------------------------------
def _name(task) -> str:
    return f"{task.key.kernel} {task.key.workload.key}"


def _chosen(selection) -> dict:
    return {
        "winner": config_key(selection.winner),
        "tie_set": [config_key(config) for config in selection.tie_set],
        "median_us": selection.median_us,
        "verdict": selection.verdict,
    }


def _short(spec: str) -> str:
    return Path(spec.partition(":")[2]).stem if spec.startswith("recorded:") else spec


def _toolchain(toolchain) -> dict:
    names = ("python", "torch", "triton", "cuda", "driver")
    return {name: getattr(toolchain, name) for name in names}


def _simulated(out: Path) -> dict:
    """The same number of synthetic tasks, for a machine without a GPU."""
    out.mkdir(parents=True, exist_ok=True)
    tasks = [{"kernel": f"recorded:{path.resolve()}"} for path in make_tasks(out, TASKS)]
    return {"targets": ["simulated"], "tasks": tasks}


def make_tasks(folder: Path, tasks: int) -> list[Path]:
    """Files of synthetic spaces with different build times, `BUILD_S` on average."""
    paths = []
    for index in range(tasks):
        space = synthesize(
            CONFIGS,
            seed=index,
            scenario=SCENARIO_IDS[index % len(SCENARIO_IDS)],
            kernel=f"made_up_{index}",
            build_s=BUILD_S * (1 + index % 4) / 2.5,
            failures=0.05,
            twins=0.1,
        )
        paths.append(folder / f"task{index}.space.json")
        space.save(paths[-1])
    return paths
