"""One job, whatever the device kind: check candidates, time them, write down the outcome."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from search_spaces.records import Device, Toolchain, config_key
from search_spaces.statistics import paired
from workers.measure.gate.checks import refusal
from workers.measure.monitor import Monitor
from workers.measure.race.modes import collect_samples
from workers.measure.task_data import Task
from workers.measure.timers.graph import CaptureFailed
from workers.measure.timers.timer import Candidate, Timer
from workers.records import (
    Artifact,
    Check,
    Failure,
    KernelRef,
    MeasureJob,
    Measurement,
    MeasurementProtocol,
    Mode,
    Timing,
)
from workers.supervision.heartbeat import note

#: a time below this share of the physical floor is refused
_ROOFLINE_SLACK = 0.9


class Audit(Protocol):
    """Looks at what one timed run left."""

    def take(self, result: object) -> None:
        """Keep what the run left, without waiting for the device."""
        ...

    def problem(self) -> str:
        """What is wrong with it; empty when it is right or nothing was taken."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """A candidate that may be timed. error: its worst relative error, -1 when not checked.

    deterministic: whether a repetition gave the same bits, None when not looked at. compiled: how
    many compilations its first launch took. note: why it was compiled, or not checked although it
    had not been before.
    """

    candidate: Candidate
    audit: Audit
    error: float
    deterministic: bool | None = None
    compiled: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Timed:
    """Samples in us per candidate, and how they were taken."""

    samples: Sequence[Sequence[float]]
    method: str
    cache: str
    quantum_us: float
    clocks: Mapping[str, float | str]


class Noting:
    """A timer that gives a sign of life with every collect."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self.method, self.cache, self.quantum_us = timer.method, timer.cache, timer.quantum_us

    def warm(self, candidate: Candidate, warm_ms: float, *, steady: bool = False) -> float:
        note("timing")
        return self._timer.warm(candidate, warm_ms, steady=steady)

    def collect(
        self, candidates: Sequence[Candidate], orders: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        note("timing")
        return self._timer.collect(candidates, orders)


class Bench(Protocol):
    """What a device kind contributes to a session.

    Every method turns what goes wrong with one variant into a `Failure`. Once `poisoned`, the
    device is lost and nothing more is asked.
    """

    poisoned: bool

    def info(self) -> tuple[Device, Toolchain]: ...

    def prepare(self, task: Task, artifact: Artifact, *, check: bool) -> Entry | Failure:
        """Install the artifact, launch it and, with `check`, pass it through the gate."""
        ...

    def prepare_baseline(self, task: Task, name: str) -> Entry | Failure:
        """Warm a baseline up and check it."""
        ...

    def timer(self, constants: MeasurementProtocol, entries: Sequence[Entry]) -> Timer:
        """The clock for a pass over these entries; chooses the method where that is `auto`."""
        ...

    def plain_timer(self, constants: MeasurementProtocol) -> Timer:
        """The clock for a pass over entries of which one cannot be timed the way it was chosen."""
        ...

    def check(self, ref: KernelRef, check: Check) -> Failure | None:
        """Pass an artifact through the gate on another workload."""
        ...

    def monitor(self) -> AbstractContextManager[Monitor]: ...

    def roofline_us(self, task: Task, cache: str) -> float:
        """The least time in us the device can take for the task, 0.0 when unknown."""
        ...


class Session:
    """The state of one job on a bench. started: when the device began with it, by
    `time.monotonic`; the task may have had to be made."""

    def __init__(
        self, bench: Bench, job: MeasureJob, task: Task, started: float | None = None
    ) -> None:
        self._bench = bench
        self._job = job
        self._task = task
        self._started = time.monotonic() if started is None else started
        self._timing_s = 0.0
        self._compiled = 0
        self._names = [config_key(artifact.config) for artifact in job.candidates]
        screening = job.mode is Mode.SCREENING
        #: the candidate that the others of a screening are told against
        self._incumbent = len(job.candidates) - 1 if screening and job.incumbent else None

    def verify(self, tasks: Sequence[Task]) -> Measurement:
        """Check every candidate on all the tasks, `verified` or not; nothing is timed."""
        entries: dict[int, Entry | Failure] = {}
        for index in self._indices():
            for task in tasks:
                entry = self._prepare(task, index, check=True)
                before = entries.get(index)
                if isinstance(entry, Entry) and isinstance(before, Entry):
                    entry = replace(entry, error=max(entry.error, before.error))
                if entry is not None:
                    entries[index] = entry
                if not isinstance(entry, Entry):
                    break
        return self._measurement([self._untimed(entries, i) for i in self._indices()], {})

    def compete(self) -> Measurement:
        """Check the candidates, then time those that passed."""
        entries = self._prepare_all()
        self._verify_check_sizes(entries)
        baselines = self._prepare_baselines()
        field = self._field(entries, baselines)
        failed = {name: entry for name, entry in baselines.items() if isinstance(entry, Failure)}
        if not field:
            return self._measurement([self._untimed(entries, i) for i in self._indices()], failed)
        timing = self._time(field)
        timings = self._timings(field, timing)
        outcomes = [
            self._judged(index, field[index], timings[index], timing.cache)
            if index in timings
            else self._untimed(entries, index)
            for index in self._indices()
        ]
        compared = {name: failed.get(name) or timings[name] for name in baselines}
        return self._measurement(outcomes, compared, timing)

    # -- preparing -----------------------------------------------------------------------------
    def _indices(self) -> range:
        return range(len(self._job.candidates))

    def _prepare_all(self) -> dict[int, Entry | Failure]:
        """All candidates, the incumbent first: what candidates may break is then not blamed on
        it."""
        entries: dict[int, Entry | Failure] = {}
        order = sorted(self._indices(), key=lambda index: (index != self._incumbent, index))
        for index in order:
            verified = self._job.candidates[index].binary_hash in self._job.verified
            entry = self._prepare(self._task, index, check=not verified)
            if entry is not None:
                entries[index] = entry
        return entries

    def _prepare(self, task: Task, index: int, *, check: bool) -> Entry | Failure | None:
        """None when the device was lost before it was this candidate's turn."""
        if self._bench.poisoned:
            return None
        note(f"candidate {index}")
        artifact = self._job.candidates[index]
        entry = self._bench.prepare(task, artifact, check=check)
        if isinstance(entry, Failure):
            return self._blamed(index, entry)
        if task is self._task:
            self._compiled += entry.compiled
        return entry

    def _verify_check_sizes(self, entries: dict[int, Entry | Failure]) -> None:
        """The first candidate must be right on the job's other sizes too."""
        for check in self._job.checks:
            if self._bench.poisoned or not isinstance(entries.get(0), Entry):
                return
            note("check")
            wrong = self._bench.check(self._job.kernel, check)
            if wrong is not None:
                said = f"{wrong.message} (at {check.workload.key})"
                entries[0] = self._blamed(0, replace(wrong, message=said))

    def _prepare_baselines(self) -> dict[str, Entry | Failure]:
        entries: dict[str, Entry | Failure] = {}
        for name in self._job.baselines if self._job.mode is Mode.CONFIRM else ():
            if not self._bench.poisoned:
                note(f"baseline {name}")
                entries[name] = self._bench.prepare_baseline(self._task, name)
        return entries

    def _field(
        self,
        entries: Mapping[int, Entry | Failure],
        baselines: Mapping[str, Entry | Failure],
    ) -> dict[int | str, Entry]:
        """Who is timed: all that are fit; in a screening nobody without a candidate."""
        if self._bench.poisoned:
            return {}
        fit: dict[int | str, Entry] = {}
        for index in self._indices():
            entry = entries.get(index)
            if isinstance(entry, Entry):
                fit[index] = entry
        if not any(index != self._incumbent for index in fit):
            return {}
        fit.update({n: entry for n, entry in baselines.items() if isinstance(entry, Entry)})
        return fit

    # -- timing --------------------------------------------------------------------------------
    def _time(self, field: Mapping[int | str, Entry]) -> Timed:
        """The field's samples; all of it plainly once more if one cannot be timed as chosen."""
        started = time.monotonic()
        entries = list(field.values())
        timer = self._bench.timer(self._job.protocol, entries)
        candidates = [replace(e.candidate, after_checked_run=e.audit.take) for e in entries]
        incumbent = self._incumbent in field
        try:
            timed = self._watched(Noting(timer), candidates, incumbent=incumbent)
        except CaptureFailed:
            timer = self._bench.plain_timer(self._job.protocol)
            timed = self._watched(Noting(timer), candidates, incumbent=incumbent)
        self._timing_s += time.monotonic() - started
        return timed

    def _watched(self, timer: Timer, candidates: Sequence[Candidate], *, incumbent: bool) -> Timed:
        """One pass, taken once more if the card was throttled meanwhile."""
        samples: list[list[float]] = []
        clocks: Mapping[str, float | str] = {}
        for attempt in range(2):
            with self._bench.monitor() as monitor:
                samples = collect_samples(
                    self._job.mode, timer, candidates, self._job.protocol, incumbent=incumbent
                )
            clocks = {**monitor.summary(), **({"repeated": 1.0} if attempt else {})}
            if "throttled" not in clocks:
                break
        return Timed(samples, timer.method, timer.cache, timer.quantum_us, clocks)

    # -- writing down --------------------------------------------------------------------------
    def _timings(self, field: Mapping[int | str, Entry], timed: Timed) -> dict[int | str, Timing]:
        """A screening is told against its incumbent, all else against the first that was timed."""
        keys = list(field)
        against = keys.index(self._incumbent) if self._incumbent in keys else 0
        reference = timed.samples[against]
        timings = {}
        for position, (key, entry) in enumerate(field.items()):
            mine = timed.samples[position]
            both = min(len(mine), len(reference))
            ratio = paired(mine[:both], reference[:both], quantum_us=timed.quantum_us)
            told = position != against
            timings[key] = Timing(
                name=key if isinstance(key, str) else self._names[key],
                median_us=statistics.median(mine),
                samples_us=tuple(mine),
                log_ratio=ratio.log_ratio if told else 0.0,
                log_ratio_low=ratio.low if told else 0.0,
                log_ratio_high=ratio.high if told else 0.0,
                error=entry.error,
                deterministic=entry.deterministic,
                note=entry.note,
            )
        return timings

    def _judged(self, index: int, entry: Entry, timing: Timing, cache: str) -> Timing | Failure:
        """The timing, unless it is impossible or the timed run left something wrong behind."""
        problem = ""
        roofline_us = self._bench.roofline_us(self._task, cache)
        if timing.median_us < _ROOFLINE_SLACK * roofline_us:
            problem = (
                f"{timing.median_us:.3g} us is faster than the device can move its bytes "
                f"({roofline_us:.3g} us)"
            )
        elif left := entry.audit.problem():
            problem = f"wrong in the timed loop: {left}"
        return self._blamed(index, refusal(problem)) if problem else timing

    def _blamed(self, index: int, failure: Failure) -> Failure:
        artifact = self._job.candidates[index]
        return replace(failure, facts=artifact.facts, binary_hash=artifact.binary_hash)

    def _untimed(self, entries: Mapping[int, Entry | Failure], index: int) -> Timing | Failure:
        entry = entries.get(index)
        if isinstance(entry, Failure):
            return entry
        if entry is None:
            return Timing(self._names[index], 0.0)
        return Timing(
            self._names[index],
            0.0,
            error=entry.error,
            deterministic=entry.deterministic,
            note=entry.note,
        )

    def _measurement(
        self,
        outcomes: Sequence[Timing | Failure],
        baselines: Mapping[str, Timing | Failure],
        timed: Timed | None = None,
    ) -> Measurement:
        device, toolchain = self._bench.info()
        return Measurement(
            device=device,
            toolchain=toolchain,
            outcomes=tuple(outcomes),
            baselines=dict(baselines),
            method=timed.method if timed else "",
            cache=timed.cache if timed else "",
            compiled=self._compiled,
            device_s=time.monotonic() - self._started,
            timing_s=self._timing_s,
            clocks=dict(timed.clocks if timed else {}),
        )
