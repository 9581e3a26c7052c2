"""A simulated fortnight of a farm: what its morning notes say of what was planted.

    python benchmarks/fortnight.py --fortnights 3 --output results/cpu/fortnight.json

Real are the scheduler, driver, engine, database, regressions, quarantines and notes; simulated are
the devices, their clock, and faults. The first night and the first one under another toolchain
search 200 tasks on 40 cards; the others confirm the stored winners again (`reconfirm: true`).
Nights follow one another without a wait: schedules get dates of their own, records have the present
time. Planted: three tasks slower by 3, 5 and 10 % under one toolchain; Triton changes on night 8,
which makes some tasks faster and some slower, and two do not build; five bad cards; 60 faults.

The noise is resampled. Times of one config, against the default config in the same pass, differ
between sessions as in passes of one campaign on two H200s (`read_pass_noise`); what a session has
in common as in `card_nights.py`, like the differences of cards and nights. Product thresholds were
set on seeds below 100.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import lzma
import math
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median, median_low
from typing import Any

sys.path.append(str(Path(__file__).parent))

from card_nights import RECORDED, RESULTS, read_noise

from results_db import Store
from results_db.shipped import select_shipped
from results_db.task_history import is_suspect
from search_spaces.recorded.entries import Noise
from search_spaces.records import Device, Status, Toolchain, config_key
from tuner.campaign import Control, RunOptions, run_campaign
from tuner.cli.history import follow_run
from tuner.schedule.ticker import tick
from tuner.settings.sections import Settings
from tuner.views.news import list_events
from workers.backend_spec import BackendSpec
from workers.backends.simulated.backend import SampleSource, SimulatedTimer
from workers.job_records import (
    Artifact,
    BuildJob,
    Built,
    Failure,
    JobLost,
    Measured,
    MeasureJob,
    Measurement,
    PoolEvent,
    PoolSpec,
    Timing,
    WorkerGone,
    WorkerInfo,
    WorkerReady,
)
from workers.measure.race.modes import collect_samples, compare
from workers.measure.timers.timer import Candidate
from workers.roles import Pool

KIND, NIGHTLY = "fleet", "nightly"
#: The night on which Triton changes.
CHANGED = 8
BEFORE, BEHIND = (Toolchain(torch="2.13.0", triton=each) for each in ("3.7.1", "3.8.0"))
BASELINES = {"eager": 1.5, "vendor": 1.1}
FAULTS = ("crash", "hang", "wrong", "lost", "killed")
OF_CARDS = ("drifts", "errors", "voided", "slow", "noisy")
SLOWER = (0.03, 0.05, 0.1)
#: What a toolchain makes of the tasks that it makes faster or slower.
BETTER, WORSE = 0.92, 1.06
#: Across a change of the toolchain, a true change of ln(time) that a note must name; one that no
#: note may name.
SURE, NONE = 0.05, 0.005
#: The same between runs with nothing changed.
FAR = 0.15
#: Kernels as a user declares them: one config in four is a quarter faster than the default.
KERNELS = """
from search_spaces.kernel import Cost, Kernel, Tolerance
from search_spaces.params import Choice
from search_spaces.records import Workload
from search_spaces.space import SearchSpace


class Made(Kernel):
    kinds = ("fleet",)

    def workloads(self):
        return [Workload.of(n=number) for number in range(1, 21)]

    def space(self, workload):
        return SearchSpace([Choice("block", (1, 2, 3, 4))], kernel=self.name)

    def default_config(self, workload, device):
        return {"block": 1}

    def check_workload(self, workload):
        pass

    def make_inputs(self, workload, seed, device):
        return {}

    def outputs(self, workload):
        return {}

    def reference(self, workload, inputs):
        return {}

    def tolerance(self, workload):
        return Tolerance(1e-2, 1e-2)

    def cost(self, workload):
        return Cost(1e6, 1e6)

    def baselines(self, workload):
        return dict.fromkeys(("eager", "vendor"), self.reference)


"""
_CONFIRMED = """
select kernel.name, workload.key, finalist.config, finalist.median_us from finalist
join task on task.id = finalist.task_id join kernel on kernel.id = task.kernel_id
join workload on workload.id = task.workload_id
where finalist.stage = 'confirm' and finalist.median_us >= 20
"""
ENTRY_POINTS = """[tuner.backends]
fleet = fortnight:FleetSpec
[tuner.pools]
fleet = fortnight:FleetPool
"""


# -- what is true ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Sizes:
    """How large a fortnight is. Tasks come in kernels of ten."""

    nights: int = 14
    tasks: int = 200
    cards: int = 40
    faults: int = 60
    #: The bad cards, and by how much tasks become slower.
    bad: tuple[str, ...] = OF_CARDS
    slower: tuple[float, float, float] = SLOWER


@dataclass
class World:
    """The true times of a farm, and what is planted."""

    seed: int
    sizes: Sizes
    noise: dict[str, list[float]]
    night: int = 0
    control: Control = field(default_factory=Control)
    #: The night's faults by the job that has them, and those that happened.
    due: list[tuple[int, str]] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    jobs: int = 0

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)
        self.draw, sizes = draw, self.sizes
        self.tasks = [(f"made_{at // 10}", at % 10 + 1) for at in range(sizes.tasks)]
        self.us = {task: math.exp(draw.uniform(3.5, 6.5)) for task in self.tasks}
        mixed = iter(draw.sample(self.tasks, sizes.tasks))
        begins = zip((4, 5, CHANGED + 3), sizes.slower, strict=True)
        self.slower = {next(mixed): each for each in begins}
        few = max(1, sizes.tasks // 10)
        self.toolchain = {next(mixed): factor for factor in (BETTER, WORSE) for _ in range(few)}
        self.broken = {next(mixed) for _ in range(2)}
        names = [f"GPU-{number}" for number in range(sizes.cards)]
        self.level = {card: draw.gauss(0, 0.012) for card in names}
        self.bad = dict(zip(draw.sample(names[1:], len(sizes.bad)), sizes.bad, strict=True))
        self.since = {
            card: draw.randint(5, min(CHANGED + 2, sizes.nights - 1)) for card in self.bad
        }
        self.plan = defaultdict(list)
        for number in range(sizes.faults):
            job = draw.randint(5, sizes.tasks)
            self.plan[draw.randint(1, sizes.nights)].append((job, FAULTS[number % len(FAULTS)]))

    def begin(self, night: int) -> None:
        self.night, self.jobs, self.due = night, 0, sorted(self.plan[night])
        self.warm = self.draw.gauss(0, 0.003)
        self.of_night = {card: self.draw.gauss(0, 0.002) for card in self.level}

    @property
    def tools(self) -> Toolchain:
        return BEFORE if self.night < CHANGED else BEHIND

    def true_log(self, task: tuple[str, int], name: str, night: int) -> float:
        """ln(time in us) of a config or baseline on a card without a level of its own."""
        log = math.log(self.us[task])
        if name in BASELINES:
            return log + math.log(BASELINES[name])
        block = json.loads(name)["block"]
        log += {1: 0.0, 2: -0.25, 3: -0.2, 4: 0.1}[block]
        since, share = self.slower.get(task, (math.inf, 0.0))
        log += math.log1p(share) if night >= since and block != 1 else 0.0
        return log + (math.log(self.toolchain.get(task, 1.0)) if night >= CHANGED else 0.0)

    def is_bad(self, card: str) -> str:
        return self.bad.get(card, "") if self.night >= self.since.get(card, math.inf) else ""

    def draw_times(self, task: tuple[str, int], names: list[str], card: str) -> dict[str, float]:
        """The medians in us of one pass."""
        what, draw = self.is_bad(card), self.draw
        common = self.level[card] + self.warm + self.of_night[card] + draw.choice(self.noise["all"])
        common += {"drifts": 0.02, "slow": 0.05}.get(what, 0.0)
        found = {}
        for name in names:
            own = draw.gauss(0, 0.002) if name in BASELINES else 0.0
            if name not in (*BASELINES, config_key({"block": 1})):
                own = draw.choice(self.noise["own"]) / math.sqrt(2)
            own += draw.gauss(0, 0.05) if what == "noisy" else 0.0
            found[name] = math.exp(self.true_log(task, name, self.night) + common + own)
        return found

    def read_clocks(self, card: str) -> dict[str, float | str]:
        """What the monitor says of a confirmation."""
        what, level = self.is_bad(card), self.level[card]
        slow = {"drifts": 0.02, "slow": 0.05}.get(what, 0.0)
        rate = 4.3 * math.exp(level / 5 - slow + self.copies[card])
        clocks: dict[str, float | str] = {"card": card, "copy_tb_s": rate}
        clocks |= {"memory_errors": 2.0} if what == "errors" else {}
        voided = what == "voided" and self.draw.random() < 0.8
        return clocks | ({"throttled": "hw_slowdown"} if voided else {})

    @property
    def copies(self) -> dict[str, float]:
        draw = random.Random(f"{self.seed}/{self.night}")
        return {card: draw.gauss(0, 0.0025) for card in self.level}

    def take_fault(self, *kinds: str) -> str:
        """The fault of the present job, if it is one of these."""
        for each in self.due:
            if each[0] <= self.jobs and each[1] in kinds:
                self.due.remove(each)
                self.happened[each[1]] += 1
                return each[1]
        return ""


WORLD: World


# -- simulated devices -----------------------------------------------------------------------------
class FleetSpec(BackendSpec):
    """Simulated H200s."""

    kind = KIND
    accelerator = True
    standby = False

    def find_devices(self) -> list[Device]:
        return [replace(DEVICE, uuid=card) for card in WORLD.level]

    def toolchain(self) -> Toolchain:
        return WORLD.tools


#: Of single samples.
NOISE = Noise(sigma=0.004, drift_sd=0.003, drift_tau_s=0.1)
DEVICE = Device(KIND, "NVIDIA H200", "fleet:90", sm_count=132, memory_bytes=139 << 30)


class FleetPool(Pool):
    """Builders and devices in virtual time, with the faults that are due."""

    warm = True
    builders = 64

    def __init__(self, spec: PoolSpec) -> None:
        self._wanted = spec.runners.get(KIND)
        self._now, self._order = 0.0, itertools.count()
        self._events: list[tuple[float, int, PoolEvent]] = []

    def clock(self) -> float:
        return self._now

    @property
    def runners(self) -> int:
        return len(WORLD.level) if self._wanted is None else self._wanted

    def start(self) -> None:
        for card in list(WORLD.level)[: self.runners]:
            self._at(0.0, self._ready(card))

    def _ready(self, card: str) -> WorkerReady:
        return WorkerReady(WorkerInfo(card, replace(DEVICE, uuid=card), WORLD.tools))

    def submit_build(self, job: BuildJob) -> None:
        task, key = _task_of(job), config_key(job.config)
        text = f"{task}/{key}/{WORLD.tools.triton}"
        result: Artifact | Failure = Artifact(job.config, DEVICE.target, WORLD.tools, text)
        if task in WORLD.broken and WORLD.night >= CHANGED:
            result = Failure(Status.COMPILE, "no such intrinsic")
        self._at(self._now + 0.5, Built(job.job_id, result))

    def submit_measure(self, worker_id: str, job: MeasureJob) -> None:
        WORLD.jobs += 1
        if WORLD.take_fault("killed"):
            WORLD.control.kill()
        if WORLD.take_fault("lost"):
            self._at(self._now + 0.1, WorkerGone(worker_id, "its machine is gone"))
            self._at(self._now + 0.1, JobLost(job.job_id, "its machine is gone"))
            self._at(self._now + 30.0, self._ready(worker_id))
            return
        result = _measure(job, worker_id)
        self._at(self._now + result.device_s, Measured(job.job_id, worker_id, result))

    def poll(self, timeout_s: float) -> list[PoolEvent]:
        until = self._now + timeout_s
        if not self._events or self._events[0][0] > until:
            self._now = until
            return []
        self._now = max(self._now, self._events[0][0])
        found = []
        while self._events and self._events[0][0] <= self._now:
            found.append(heapq.heappop(self._events)[2])
        return found

    def close(self, *, kill: bool = False) -> None:
        self._events.clear()

    def _at(self, when: float, event: PoolEvent) -> None:
        heapq.heappush(self._events, (when, next(self._order), event))


def _task_of(job: BuildJob | MeasureJob) -> tuple[str, int]:
    _, _, name = job.kernel.spec.partition(":")
    return name.lower(), job.workload.size("n")


_FAILURES = {
    "crash": Failure(Status.RUNTIME, "the process died of SIGSEGV"),
    "hang": Failure(Status.TIMEOUT, "no answer for 60 s"),
    "wrong": Failure(Status.CORRECTNESS, "output differs from the reference"),
}


def _measure(job: MeasureJob, card: str) -> Measurement:
    """A pass in simulated time; a fault that is due hits one config, never the default."""
    task, keys = _task_of(job), [config_key(each.config) for each in job.candidates]
    failed: dict[str, Failure] = {}
    hit = [key for key in keys if key != config_key({"block": 1})]
    if hit and (fault := WORLD.take_fault(*_FAILURES)):
        failed[WORLD.draw.choice(hit)] = _FAILURES[fault]
    timer = SimulatedTimer(NOISE, f"{WORLD.seed}/{WORLD.night}", job.job_id, is_warm=True)
    names = [key for key in keys if key not in failed]
    incumbent = job.incumbent and keys[-1] not in failed
    timed = [*names, *job.baselines] if len(names) > int(incumbent) else []
    us = WORLD.draw_times(task, timed, card)
    runs = [
        Candidate(name, SampleSource(us[name], (), timer, name).sample, baseline=name in BASELINES)
        for name in timed
    ]
    found: dict[str, Timing] = {name: Timing(name, 0.0, error=1e-3) for name in names}
    if runs:
        taken = collect_samples(job.mode, timer, runs, job.protocol, incumbent=incumbent)
        reference = taken[-1 if incumbent else 0]
        for name, times in zip(timed, taken, strict=True):
            ratio = compare(job.mode, times, reference, job.protocol, 0.0)
            found[name] = Timing(name, median(times), tuple(times), ratio, 1e-3)
    return Measurement(
        replace(DEVICE, uuid=card),
        WORLD.tools,
        tuple(failed.get(key) or found[key] for key in keys),
        {name: found[name] for name in job.baselines if name in found},
        method="simulated",
        device_s=timer.device_s + 0.01,
        timing_s=timer.device_s,
        clocks=WORLD.read_clocks(card),
    )


# -- nights and mornings ---------------------------------------------------------------------------
@dataclass
class Findings:
    """What the mornings said, against what was planted."""

    wrong: list[str] = field(default_factory=list)
    right_mornings: int = 0
    named: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)
    unnamed: int = 0
    lost: int = 0
    doubled: int = 0


def follow(seed: int, sizes: Sizes, noise: dict[str, list[float]]) -> dict[str, Any]:
    """The figures of one fortnight."""
    global WORLD
    began = time.monotonic()
    WORLD, found = World(seed, sizes, noise), Findings()
    with tempfile.TemporaryDirectory() as name, Store.open(f"sqlite:///{name}/farm.db") as store:
        folder = Path(name)
        settings = _configure(folder)
        for night in range(1, sizes.nights + 1):
            WORLD.begin(night)
            since = store.now()
            _pass_night(settings, folder, store)
            _judge_trials(store, found)
            _judge_morning(store, since, night, found)
    return _summarise(found) | {"seed": seed, "wall_s": round(time.monotonic() - began, 1)}


def _configure(folder: Path) -> Settings:
    kernels = sorted({kernel for kernel, _ in WORLD.tasks})
    lines = [f'{k.title()} = type("{k}", (Made,), {{"name": "{k}"}})' for k in kernels]
    (folder / "fleet_kernels.py").write_text(KERNELS + "\n".join(lines) + "\n")
    facts = folder / "fortnight-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: fortnight\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(ENTRY_POINTS)
    sys.path.append(f"{folder}")
    tasks = [
        {
            "kernel": f"fleet_kernels.py:{kernel.title()}",
            "workloads": [{"n": n} for own, n in WORLD.tasks if own == kernel],
        }
        for kernel in kernels
    ]
    campaign = {
        "tasks": tasks, "targets": [KIND], "strategy": "exhaustive", "reconfirm": True,
        "schedule": {"cron": "0 22 * * *"},
    }  # fmt: skip
    measure = {
        "final_pairs": 8, "rounds": 3, "round_pairs": 6, "warm_ms": 0, "finalists": 3,
        "pairs": [1, 3],
    }  # fmt: skip
    return Settings.model_validate(
        {
            "database": {"url": f"sqlite:///{folder}/farm.db"},
            "paths": {"results": f"{folder}", "tables": f"{folder}/tables"},
            "pool": {"kind": KIND, "devices": {KIND: {"runners": WORLD.sizes.cards}}},
            "measure": measure,
            "kernels": [each["kernel"] for each in tasks],
            "campaigns": {NIGHTLY: campaign},
        }
    )


def _pass_night(settings: Settings, folder: Path, store: Store) -> None:
    """Ticks from ten in the evening until the run is over; a killed driver is resumed."""
    evening = datetime(2026, 1, WORLD.night, 22, tzinfo=UTC)

    def start(name: str) -> Any:
        WORLD.control = Control()
        options = RunOptions(base=folder, report=False)
        outcome = run_campaign(settings, name, options=options, control=WORLD.control)
        follow_run(settings, folder, name, outcome, quiet=True)
        return outcome

    for minute in range(20):
        fires = tick(settings, store, evening + timedelta(minutes=minute), "host", start)
        if fires and fires[-1].state == "finished":
            return
    raise RuntimeError(f"night {WORLD.night}: {fires}")


def _judge_trials(store: Store, found: Findings) -> None:
    """Each config of each task has one trial."""
    for task in store.tasks(store.runs(limit=1)[0].run_id):
        keys = [config_key(each.config) for each in store.trials(task.task_id)]
        found.doubled += len(keys) - len(set(keys))
        found.lost += 4 - len(set(keys))


def _judge_morning(store: Store, since: datetime, night: int, found: Findings) -> None:
    lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in list_events(store, since):
        lines[event["what"]].append(event)
    wrong = [
        *_judge_cards(lines["quarantine"], night, found),
        *_judge_slower(store, lines["slower"], night, found),
        *_judge_changes(store, lines["faster"], lines["slower"], night, found),
    ]
    left_out = {_name(event) for event in lines["no winner"]}
    if left_out != (WORLD.broken if night >= CHANGED else set()):
        wrong.append(f"left out: {sorted(left_out)}")
    known = {"runs", "trials", "device hours", "run hours", "quarantine", "slower", "faster"}
    wrong += [f"{lines[what]}" for what in lines.keys() - known - {"no winner"} if lines[what]]
    found.right_mornings += not wrong
    found.wrong += [f"morning {night}: {each}" for each in wrong]


def _name(event: dict[str, Any]) -> tuple[str, int]:
    return event["kernel"], int(event["workload"].removeprefix("n="))


def _judge_cards(lines: list[dict[str, Any]], night: int, found: Findings) -> Iterator[str]:
    named = {event["text"].partition(":")[0]: event["text"] for event in lines}
    for card, text in named.items():
        found.quarantined.setdefault(card, night)
        if card not in WORLD.bad or WORLD.since[card] > night:
            yield f"a healthy card in quarantine: {text}"
    for card, since in WORLD.since.items():
        if since < night and card not in named:
            yield f"{card} ({WORLD.bad[card]} since night {since}) is not in quarantine"


def _judge_slower(
    store: Store, lines: list[dict[str, Any]], night: int, found: Findings
) -> Iterator[str]:
    """Lines of regressions; those of a changed toolchain are judged as changes."""
    for event in (each for each in lines if "triton" not in each["text"]):
        task = _name(event)
        since, share = WORLD.slower.get(task, (math.inf, 0.0))
        if night < since:
            found.unnamed += 1
            yield f"no regression: {task} {event['text']}"
        else:
            found.named.setdefault(f"{share:.0%}", night - int(since) + 1)
    for task, (since, share) in WORLD.slower.items():
        if night == since + 2 and f"{share:.0%}" not in found.named:
            yield f"not named: {task}, slower by {share:.0%} since night {since}"


def _judge_changes(
    store: Store,
    faster: list[dict[str, Any]],
    slower: list[dict[str, Any]],
    night: int,
    found: Findings,
) -> Iterator[str]:
    """What ships is faster or slower than in the run before, by its true times."""
    said = {_name(each): f"faster {each['text']}" for each in faster}
    by_tools = [each for each in slower if "triton" in each["text"]]
    said |= {_name(each): f"slower {each['text']}" for each in by_tools}
    for task, true in _list_true_changes(store).items():
        text = said.get(task, "")
        if true < -(SURE if night == CHANGED else FAR) and not text.startswith("faster"):
            yield f"not named: {task} is {math.expm1(true):+.1%}, {text}"
        if night == CHANGED and true > SURE and not text.startswith("slower"):
            yield f"not named: {task} is {math.expm1(true):+.1%} by the toolchain, {text}"
        if night == CHANGED and text and "triton 3.7.1 -> 3.8.0" not in text:
            yield f"not attributed: {task} {text}"
        wrong = true > -NONE if text.startswith("faster") else true < NONE
        if text and wrong:
            yield f"no such change: {task} {text}, truly {math.expm1(true):+.1%}"


def _list_true_changes(store: Store) -> dict[tuple[str, int], float]:
    """ln(time / time before) of what each task ships, by what is timed in the same pass: against
    the run before, or across the change of the toolchain against the middle one of five."""
    away, levels = store.quarantines(), defaultdict(list)
    newest = store.runs(limit=1)[0].run_id
    for run in reversed(store.runs(limit=6)):
        for each in store.tasks(run.run_id):
            if each.selection and not is_suspect(each, away):
                task = each.key.kernel, each.key.workload.size("n")
                levels[task].append((run.run_id, _true_level(task, each, run.run_id)))
    found = {}
    for task, known in levels.items():
        *former, (run_id, level) = known
        if former and run_id == newest:
            before = median_low(e for _, e in former) if newest == CHANGED else former[-1][1]
            found[task] = level - before
    return found


def _true_level(task: tuple[str, int], stored: Any, night: int) -> float:
    """ln(time / an eager time) of what a task ships. Runs are numbered as nights."""
    ships = config_key(select_shipped(stored.selection).config)
    return WORLD.true_log(task, ships, night) - WORLD.true_log(task, "eager", night)


def _summarise(found: Findings) -> dict[str, Any]:
    late = {c: found.quarantined.get(c, 99) - since + 1 for c, since in WORLD.since.items()}
    return {
        "regressions_planted": len(WORLD.slower),
        "regressions_found": len(found.named),
        "mornings_until_found": found.named,
        "false_alarms": found.unnamed,
        "bad_cards": len(WORLD.bad),
        "quarantined_by_night": {WORLD.bad[card]: night for card, night in late.items()},
        "healthy_in_quarantine": len(found.quarantined.keys() - WORLD.bad.keys()),
        "faults": dict(WORLD.happened),
        "trials_lost": found.lost,
        "trials_doubled": found.doubled,
        "mornings": WORLD.sizes.nights,
        "mornings_right": found.right_mornings,
        "wrong": found.wrong,
    }


def read_pass_noise() -> list[float]:
    """ln(time / time of another config of the pass) in one session less that in the other, and the
    same with the other sign: confirmations of 20 us and more of the same configs."""
    one, other = map(_read_confirmed, RECORDED)
    found = []
    for task in one.keys() & other.keys():
        first, *configs = sorted(one[task].keys() & other[task].keys()) or [""]
        for config in configs:
            ratios = [math.log(each[task][config] / each[task][first]) for each in (one, other)]
            found += [ratios[0] - ratios[1], ratios[1] - ratios[0]]
    return sorted(found)


def _read_confirmed(name: str) -> dict[tuple[str, str], dict[str, float]]:
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    with tempfile.NamedTemporaryFile(suffix=".db") as file:
        file.write(lzma.decompress((RESULTS / name).read_bytes()))
        file.flush()
        for kernel, workload, config, us in sqlite3.connect(file.name).execute(_CONFIRMED):
            found[kernel, workload][config_key(json.loads(config))] = us
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fortnights", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    noise = {"all": read_noise(), "own": read_pass_noise()}
    seeds = range(given.seed, given.seed + given.fortnights)
    facts = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "fortnights": [follow(seed, Sizes(), noise) for seed in seeds],
    }
    text = json.dumps(facts, indent=1)
    print(text)
    if given.output:
        given.output.write_text(text + "\n")


if __name__ == "__main__":
    from fortnight import main

    main()
