"""One job, whatever the device kind: check entrants, time them, write down the outcome."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from search_spaces.records import Device, Toolchain, config_key
from workers.measure.duel import Contestant, Timer, run_duel, run_race
from workers.measure.gate import compare_all, refusal
from workers.measure.monitor import Monitor
from workers.measure.statistics import paired
from workers.measure.task import Task
from workers.records import Artifact, Failure, MeasureJob, Measurement, Mode, Timing
from workers.records import Protocol as Constants

#: a time below this share of the physical floor is refused
_FLOOR_SLACK = 0.9


@dataclass(frozen=True, slots=True)
class Entry:
    """A contestant that may be timed. error: its worst relative error, -1 when not checked.

    keep: puts the outputs of a run, given what it returned, where an audit finds them.
    compiled: how many compilations its first launch took.
    """

    contestant: Contestant
    keep: Callable[[Any], None]
    error: float
    compiled: int = 0


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

    def timer(self, constants: Constants) -> Timer: ...

    def monitor(self) -> AbstractContextManager[Monitor]: ...

    def floor_us(self, task: Task, cache: str) -> float:
        """The least time in us the device can take for the task, 0.0 when unknown."""
        ...


class Session:
    """The state of one job on a bench."""

    def __init__(self, bench: Bench, job: MeasureJob, task: Task) -> None:
        self._bench = bench
        self._job = job
        self._task = task
        self._started = time.monotonic()
        self._compiled = 0
        self._names = [config_key(artifact.config) for artifact in job.entrants]

    def verify(self, tasks: Sequence[Task]) -> Measurement:
        """Check every entrant on all the tasks, `verified` or not; nothing is timed."""
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
        """Check the entrants, then time those that passed."""
        entries = self._prepare_all()
        baselines = self._prepare_baselines()
        field = self._field(entries, baselines)
        failed = {name: entry for name, entry in baselines.items() if isinstance(entry, Failure)}
        if not field:
            return self._measurement([self._untimed(entries, i) for i in self._indices()], failed)
        timer = self._bench.timer(self._job.protocol)
        samples, clocks = self._time(timer, field)
        timings = self._timings(field, samples, timer.quantum_us)
        outcomes = [
            self._judged(index, timings[index], timer.cache)
            if index in timings
            else self._untimed(entries, index)
            for index in self._indices()
        ]
        compared = {name: failed.get(name) or timings[name] for name in baselines}
        return self._measurement(outcomes, compared, timer.method, timer.cache, clocks)

    # -- preparing -----------------------------------------------------------------------------
    def _indices(self) -> range:
        return range(len(self._job.entrants))

    def _prepare_all(self) -> dict[int, Entry | Failure]:
        """All entrants, the challenger last: what it may break is then not blamed on others."""
        entries: dict[int, Entry | Failure] = {}
        for index in reversed(self._indices()):
            verified = self._job.entrants[index].binary_hash in self._job.verified
            entry = self._prepare(self._task, index, check=not verified)
            if entry is not None:
                entries[index] = entry
        return entries

    def _prepare(self, task: Task, index: int, *, check: bool) -> Entry | Failure | None:
        """None when the device was lost before it was this entrant's turn."""
        if self._bench.poisoned:
            return None
        artifact = self._job.entrants[index]
        entry = self._bench.prepare(task, artifact, check=check)
        if isinstance(entry, Failure):
            return replace(entry, facts=artifact.facts, binary_hash=artifact.binary_hash)
        if task is self._task:
            self._compiled += entry.compiled
        return entry

    def _prepare_baselines(self) -> dict[str, Entry | Failure]:
        entries: dict[str, Entry | Failure] = {}
        for name in self._job.baselines if self._job.mode is Mode.CONFIRM else ():
            if not self._bench.poisoned:
                entries[name] = self._bench.prepare_baseline(self._task, name)
        return entries

    def _field(
        self,
        entries: Mapping[int, Entry | Failure],
        baselines: Mapping[str, Entry | Failure],
    ) -> dict[int | str, Entry]:
        """Who is timed: all that are fit; in a duel nobody without the challenger."""
        duel = self._job.mode is Mode.DUEL
        if self._bench.poisoned or (duel and not isinstance(entries.get(0), Entry)):
            return {}
        field: dict[int | str, Entry] = {}
        for index in self._indices()[: 2 if duel else None]:
            entry = entries[index]
            if isinstance(entry, Entry):
                field[index] = entry
        field.update({n: entry for n, entry in baselines.items() if isinstance(entry, Entry)})
        return field

    # -- timing --------------------------------------------------------------------------------
    def _time(
        self, timer: Timer, field: Mapping[int | str, Entry]
    ) -> tuple[list[list[float]], Mapping[str, float | str]]:
        """One pass over the field, taken once more if the card was throttled meanwhile."""
        contestants = [
            replace(entry.contestant, settle=entry.keep) if key == 0 else entry.contestant
            for key, entry in field.items()
        ]
        samples: list[list[float]] = []
        clocks: Mapping[str, float | str] = {}
        for attempt in range(2):
            with self._bench.monitor() as monitor:
                samples = self._pass(timer, contestants)
            clocks = {**monitor.summary(), **({"repeated": 1.0} if attempt else {})}
            if "throttled" not in clocks:
                break
        return samples, clocks

    def _pass(self, timer: Timer, contestants: Sequence[Contestant]) -> list[list[float]]:
        constants = self._job.protocol
        if self._job.mode is not Mode.DUEL:
            return run_race(timer, contestants, constants.final_pairs, constants.warm_ms)
        if len(contestants) == 1:
            return run_race(timer, contestants, max(constants.pairs), constants.warm_ms)
        return list(run_duel(timer, contestants[0], contestants[1], constants))

    # -- writing down --------------------------------------------------------------------------
    def _timings(
        self,
        field: Mapping[int | str, Entry],
        samples: Sequence[Sequence[float]],
        quantum_us: float,
    ) -> dict[int | str, Timing]:
        """A duel is told against the champion, a race against the first that was timed."""
        against = len(field) - 1 if self._job.mode is Mode.DUEL else 0
        timings = {}
        for position, (key, entry) in enumerate(field.items()):
            ratio = paired(samples[position], samples[against], quantum_us=quantum_us)
            told = position != against
            timings[key] = Timing(
                name=key if isinstance(key, str) else self._names[key],
                median_us=statistics.median(samples[position]),
                samples_us=tuple(samples[position]),
                log_ratio=ratio.log_ratio if told else 0.0,
                log_ratio_low=ratio.low if told else 0.0,
                log_ratio_high=ratio.high if told else 0.0,
                error=entry.error,
            )
        return timings

    def _judged(self, index: int, timing: Timing, cache: str) -> Timing | Failure:
        """The timing, unless it is impossible or the timed run left something wrong behind."""
        problem = ""
        floor_us = self._bench.floor_us(self._task, cache)
        if timing.median_us < _FLOOR_SLACK * floor_us:
            problem = (
                f"{timing.median_us:.3g} us is faster than the device can move its bytes "
                f"({floor_us:.3g} us)"
            )
        elif index == 0:
            left = compare_all(self._task, 0, self._task.kept)
            problem = f"wrong in the timed loop: {left}" if isinstance(left, str) else ""
        if not problem:
            return timing
        artifact = self._job.entrants[index]
        return replace(refusal(problem), facts=artifact.facts, binary_hash=artifact.binary_hash)

    def _untimed(self, entries: Mapping[int, Entry | Failure], index: int) -> Timing | Failure:
        entry = entries.get(index)
        if isinstance(entry, Failure):
            return entry
        return Timing(self._names[index], 0.0, error=-1.0 if entry is None else entry.error)

    def _measurement(
        self,
        outcomes: Sequence[Timing | Failure],
        baselines: Mapping[str, Timing | Failure],
        method: str = "",
        cache: str = "",
        clocks: Mapping[str, float | str] | None = None,
    ) -> Measurement:
        device, toolchain = self._bench.info()
        return Measurement(
            device=device,
            toolchain=toolchain,
            outcomes=tuple(outcomes),
            baselines=dict(baselines),
            method=method,
            cache=cache,
            compiled=self._compiled,
            device_s=time.monotonic() - self._started,
            clocks=dict(clocks or {}),
        )
