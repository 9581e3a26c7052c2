"""A simulated pool and store for the engine: answers in a seeded random order, seeded losses."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import invariants
import pytest

from results_db.stored_records import SelectionRecord, TrialRecord
from search_spaces.params import Choice, PowerOfTwo
from search_spaces.records import Config, Device, Status, Toolchain, Workload, config_key
from search_spaces.space import BoundSpace, Constraint, SearchSpace
from tuner import strategies
from tuner.base.log_ratio import LogRatio
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
    TaskBudget,
    TaskSpec,
    Tick,
)
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
    Timing,
    WorkerGone,
    WorkerInfo,
    WorkerReady,
)

DEVICE = Device("simulated", "toy", "simulated")
#: What a compile-only task is for.
ABSENT = Device("cuda", "cuda:90 (not present)", "cuda:90")
TOOLS = Toolchain(python="3")
WORKLOAD = Workload.of(n=1024)


def seeds(count: int) -> list[object]:
    """So many seeds, of which each change tries the first and `make test-all` all."""
    return [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, count))]


def toy_space(workload: Workload = WORKLOAD, *rules: Constraint) -> BoundSpace:
    parameters = (
        PowerOfTwo("block", 16, 1024),
        Choice("stages", (1, 2, 3, 4)),
        Choice("order", ("row", "column")),
    )
    small = Constraint("fits", lambda c, w, d: c["block"] * c["stages"] <= 2048, "too large")
    return SearchSpace(parameters, (small, *rules)).bind(workload, DEVICE)


def toy_us(config: Config) -> float:
    """The true time in us. Block 128, three stages, by column is the fastest."""
    block, stages = math.log2(config["block"]), config["stages"]
    return 50 * (1 + abs(block - 7) / 4 + abs(stages - 3) / 5 + (config["order"] == "row") / 10)


def toy_bits(config: Config) -> str:
    """The bits of rows: by the order, and another one for blocks of 16."""
    return "small" if config["block"] == 16 else f"{config['order']}"


def toy_fault(config: Config) -> Status | None:
    """How a config fails; None if it works."""
    byte = hashlib.sha256(config_key(config).encode()).digest()[0]
    return {0: Status.COMPILE, 1: Status.RUNTIME, 2: Status.CORRECTNESS}.get(byte % 16)


def toy_binary(config: Config) -> str:
    """The digest of a config's binary: equal for one and two stages of a small block."""
    stages = max(2, config["stages"]) if config["block"] <= 32 else config["stages"]
    return "/".join(map(str, {**config, "stages": stages}.values()))


def spec(
    task_id: int = 1,
    *,
    strategy: str = "random",
    seed: int = 0,
    budget: TaskBudget | None = None,
    finished: tuple[TrialRecord, ...] = (),
    known: tuple[TrialRecord, ...] = (),
    default: Config | None = None,
    compile_only: bool = False,
    **more: object,
) -> TaskSpec:
    space = toy_space()
    return TaskSpec(
        task_id=task_id,
        label=f"toy {task_id}",
        kernel=KernelRef("toy"),
        workload=WORKLOAD,
        device=ABSENT if compile_only else DEVICE,
        space=space,
        strategy=strategies.create(strategy, space, seed),
        default=default or {"block": 1024, "stages": 1, "order": "row"},
        budget=budget or TaskBudget(trials=30),
        baselines=("eager",),
        finished=finished,
        known=known,
        compile_only=compile_only,
        **more,
    )


@dataclass
class World:
    """The pool and the store of an engine, without processes and without a database."""

    engine: Engine
    seed: int = 0
    workers: int = 2
    #: The device kind of the workers.
    kind: str = "simulated"
    #: The share of jobs that are lost with their worker.
    losses: float = 0.0
    #: The true time of a config at a workload, in us.
    time_us: Callable[[Workload, Config], float] = lambda workload, config: toy_us(config)
    #: Stop, as if killed, after this many records.
    stop_after: int | None = None
    #: Drain after this many records.
    drain_after: int | None = None
    records: list[tuple[int, TrialRecord]] = field(default_factory=list)
    selections: dict[int, SelectionRecord] = field(default_factory=dict)
    baselines: dict[int, list[object]] = field(default_factory=dict)
    stages: dict[int, list[str]] = field(default_factory=dict)
    notes: dict[int, str] = field(default_factory=dict)
    #: Measurements that were ordered.
    measured: list[MeasureJob] = field(default_factory=list)
    #: The worker of each of these.
    served_by: list[str] = field(default_factory=list)
    #: Builds that were ordered.
    built: list[BuildJob] = field(default_factory=list)
    finish: Finish | None = None
    #: Events that the engine has not taken.
    queue: list[Event] = field(default_factory=list)
    #: Builds and measurements that were ordered before the drain.
    ordered: tuple[int, int] = (0, 0)

    def run(self) -> World:
        rng = random.Random(self.seed)
        queue = self.queue
        if not self.records:
            queue += [WorkerReady(self._worker(i)) for i in range(self.workers)]
        busy: dict[str, str] = {}
        now = 0.0
        for _ in range(20_000):
            if self.finish is not None:
                return self
            if self.stop_after is not None and len(self.records) >= self.stop_after:
                return self
            if self.drain_after is not None and len(self.records) >= self.drain_after:
                self.drain_after = None
                self.ordered = (len(self.built), len(self.measured))
                event: Event = Drain()
            else:
                event = queue.pop(rng.randrange(len(queue))) if queue else Tick()
            now += rng.random() * 0.01
            for instruction in self.handle(event, now):
                queue.extend(self._react(instruction, rng, busy))
        raise AssertionError("the engine does not finish")

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Let the engine take the event, and check its invariants."""
        instructions = self.engine.handle(event, now)
        invariants.check(self.engine)
        return instructions

    def _worker(self, index: int) -> WorkerInfo:
        device = Device(self.kind, "toy", "simulated")
        return WorkerInfo(f"w{index}", device, TOOLS)

    def _react(self, instruction, rng, busy) -> list[Event]:
        match instruction:
            case Record():
                self.records.append((instruction.task_id, instruction.record))
            case Select():
                assert instruction.task_id not in self.selections, "selected twice"
                self.selections[instruction.task_id] = instruction.selection
                self.baselines[instruction.task_id] = list(instruction.baselines)
            case SetStage():
                self.stages.setdefault(instruction.task_id, []).append(instruction.stage)
                if instruction.note is not None:
                    self.notes[instruction.task_id] = instruction.note
            case Finish():
                self.finish = instruction
            case Build():
                self.built.append(instruction.job)
                if rng.random() < self.losses:
                    return [JobLost(instruction.job.job_id, "the builder died")]
                return [Built(instruction.job.job_id, build(instruction.job))]
            case Measure():
                return self._measure(instruction, rng)
        return []

    def _measure(self, order: Measure, rng: random.Random) -> list[Event]:
        job = order.job
        self.measured.append(job)
        self.served_by.append(order.worker_id)
        if rng.random() < self.losses:
            index = int(order.worker_id[1:])
            # In this order: the job is lost, the worker is lost, a new worker starts.
            events = [
                JobLost(job.job_id, "the worker died"),
                WorkerGone(order.worker_id, "died"),
                WorkerReady(self._worker(index)),
            ]
            for event in events[:2]:
                for instruction in self.handle(event, 0.0):
                    events.extend(self._react(instruction, rng, {}))
            return events[2:]
        return [Measured(job.job_id, order.worker_id, measure(job, rng, self.time_us))]


def build(job: BuildJob) -> Artifact | Failure:
    if toy_fault(job.config) is Status.COMPILE:
        return Failure(Status.COMPILE, "ptxas: out of luck")
    return Artifact(job.config, "simulated", TOOLS, toy_binary(job.config))


def measure(job: MeasureJob, rng: random.Random, time_us) -> Measurement | Failure:
    def true_us(config: Config) -> float:
        return time_us(job.workload, config)

    if not job.candidates:  # a preparation
        return Measurement(DEVICE, TOOLS, outcomes=())
    candidates = job.candidates[:-1] if job.incumbent else job.candidates
    deadly = [e for e in candidates if toy_fault(e.config) is Status.RUNTIME]
    if job.mode is Mode.SCREENING and deadly:
        return Failure(Status.RUNTIME, "crashed the device process twice")
    n = 40
    drift = [rng.gauss(0, 0.01) for _ in range(n)]
    reference: tuple[float, ...] | None = None
    first = job.candidates[-1] if job.incumbent else job.candidates[0]
    if job.mode is not Mode.VERIFY and (job.incumbent or job.mode is not Mode.SCREENING):
        reference = samples(true_us(first.config), drift, rng)
    outcomes = [
        outcome(job, candidate, reference, drift, rng, true_us) for candidate in job.candidates
    ]
    baselines = {}
    if job.baselines and reference:
        eager = samples(200.0, drift, rng)
        ratio = math.log(200.0 / true_us(first.config))
        baselines["eager"] = Timing(
            "eager", 200.0, eager, LogRatio(ratio, ratio - 0.001, ratio + 0.001)
        )
    return Measurement(DEVICE, TOOLS, tuple(outcomes), baselines, device_s=0.01, method="simulated")


def outcome(job, candidate, reference, drift, rng, true_us) -> Timing | Failure:
    if toy_fault(candidate.config) is Status.CORRECTNESS:
        return Failure(Status.CORRECTNESS, "relative error 0.3 over 0.01 (seed 1)")
    name, bits = config_key(candidate.config), None
    if job.rows is not None and candidate.binary_hash not in job.verified:
        bits = f"{job.rows.low}-{toy_bits(candidate.config)}"
        if job.rows.bits not in ("", bits):
            return Failure(Status.CORRECTNESS, "rows have other bits")
    if job.mode is Mode.VERIFY:
        return Timing(name, 0.0, error=1e-7, row_bits=bits)
    us = true_us(candidate.config)
    values = samples(us, drift, rng)
    ratio = math.log(us) - (math.log(sorted(reference)[len(reference) // 2]) if reference else 0)
    if not reference:
        ratio = 0.0
    median = sorted(values)[len(values) // 2]
    over = LogRatio(ratio, ratio - 0.002, ratio + 0.002)
    return Timing(name, median, values, over, error=1e-7, row_bits=bits)


def samples(us: float, drift: list[float], rng: random.Random) -> tuple[float, ...]:
    return tuple(us * math.exp(d + rng.gauss(0, 0.001)) for d in drift)
