"""One job on a device of any kind: check the candidates, time them, compose the result."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from search_spaces.records import config_key
from tuner.base.log_ratio import EQUAL
from tuner.base.tracing import span
from workers import backend_kinds
from workers.job_records import Failure, MeasureJob, Measurement, Mode, Timing
from workers.measure.gate.checks import refusal
from workers.measure.race.modes import collect_samples, compare
from workers.measure.session_backend import PreparedCandidate, SessionBackend
from workers.measure.task_tensors import TaskTensors
from workers.measure.timers.graph import CaptureFailed
from workers.measure.timers.timer import Candidate, Timer
from workers.processes.heartbeat import await_processors, heartbeat

#: A median below this share of the roofline bound is refused.
_ROOFLINE_SHARE = 0.9
#: A pass during which the device was throttled is repeated this often.
_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class TimedPass:
    """The samples of one comparison and the conditions they were taken under."""

    #: Times in us per candidate.
    samples: Sequence[Sequence[float]]
    method: str
    cache: str
    quantum_us: float
    #: The monitor's summary.
    clocks: Mapping[str, float | str]


class HeartbeatTimer:
    """A timer that sends a heartbeat with every call."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self.method, self.cache, self.quantum_us = timer.method, timer.cache, timer.quantum_us

    def warm(self, candidate: Candidate, warm_ms: float, *, steady: bool = False) -> float:
        heartbeat("timing")
        with span("warm-up", "timing"):
            return self._timer.warm(candidate, warm_ms, steady=steady)

    def collect(
        self, candidates: Sequence[Candidate], orders: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        heartbeat("timing")
        return self._timer.collect(candidates, orders)


class MeasurementSession:
    """The state of one job.

    started: when the device began with the job, by `time.monotonic`; making the task counts.
    """

    def __init__(
        self,
        backend: SessionBackend,
        job: MeasureJob,
        task: TaskTensors,
        started: float | None = None,
    ) -> None:
        self._backend = backend
        self._job = job
        self._task = task
        self._started = time.monotonic() if started is None else started
        self._timing_s = 0.0
        self._compiled = 0
        self._names = [config_key(artifact.config) for artifact in job.candidates]
        screening = job.mode is Mode.SCREENING
        #: Position of the incumbent, the reference of a screening.
        self._incumbent = len(job.candidates) - 1 if screening and job.incumbent else None

    def verify(self, tasks: Sequence[TaskTensors]) -> Measurement:
        """Check every candidate on all the tasks, `verified` or not; nothing is timed."""
        prepared: dict[int, PreparedCandidate | Failure] = {}
        for index in self._indices():
            for task in tasks:
                outcome = self._prepare(task, index, check=True)
                before = prepared.get(index)
                if isinstance(outcome, PreparedCandidate) and isinstance(before, PreparedCandidate):
                    outcome = replace(outcome, error=max(outcome.error, before.error))
                if outcome is not None:
                    prepared[index] = outcome
                if not isinstance(outcome, PreparedCandidate):
                    break
        self._verify_check_sizes(prepared)
        return self._measurement([self._make_untimed(prepared, i) for i in self._indices()], {})

    def compete(self) -> Measurement:
        """Check the candidates, then time those that passed."""
        prepared = self._prepare_all()
        self._verify_check_sizes(prepared)
        baselines = self._prepare_baselines()
        timeable = self._timeable(prepared, baselines)
        failed = {name: one for name, one in baselines.items() if isinstance(one, Failure)}
        if not timeable:
            return self._measurement(
                [self._make_untimed(prepared, i) for i in self._indices()], failed
            )
        timed = self._time(timeable)
        timings = self._timings(timeable, timed)
        outcomes = [
            self._accept(index, timeable[index], timings[index], timed.cache)
            if index in timings
            else self._make_untimed(prepared, index)
            for index in self._indices()
        ]
        compared = {name: failed.get(name) or timings[name] for name in baselines}
        return self._measurement(outcomes, compared, timed)

    # -- preparing -----------------------------------------------------------------------------
    def _indices(self) -> range:
        return range(len(self._job.candidates))

    def _prepare_all(self) -> dict[int, PreparedCandidate | Failure]:
        """Prepare all candidates, the incumbent first, so that no candidate can make it fail."""
        prepared: dict[int, PreparedCandidate | Failure] = {}
        order = sorted(self._indices(), key=lambda index: (index != self._incumbent, index))
        for index in order:
            verified = self._job.candidates[index].binary_hash in self._job.verified
            outcome = self._prepare(self._task, index, check=not verified)
            if outcome is not None:
                prepared[index] = outcome
        return prepared

    def _prepare(
        self, task: TaskTensors, index: int, *, check: bool
    ) -> PreparedCandidate | Failure | None:
        """None when the device was lost before this candidate."""
        if self._backend.poisoned:
            return None
        heartbeat(f"candidate {index}")
        with span("gate" if check else "first launch", "verify", config=self._names[index]):
            outcome = self._backend.prepare(task, self._job.candidates[index], check=check)
        if isinstance(outcome, Failure):
            return outcome.of(self._job.candidates[index])
        if task is self._task:
            self._compiled += outcome.compiled
        return outcome

    def _verify_check_sizes(self, prepared: dict[int, PreparedCandidate | Failure]) -> None:
        """The first candidate must be correct at the job's check sizes, too."""
        for check in self._job.checks:
            first = prepared.get(0)
            if self._backend.poisoned or not isinstance(first, PreparedCandidate):
                return
            heartbeat("check")
            with span("gate at a check size", "verify", workload=check.workload.key):
                outcome = self._backend.check(self._job.kernel, check)
            if isinstance(outcome, Failure):
                message = f"{outcome.message} (at {check.workload.key})"
                prepared[0] = replace(outcome, message=message).of(self._job.candidates[0])
            else:
                prepared[0] = replace(first, error=max(first.error, outcome.error))

    def _prepare_baselines(self) -> dict[str, PreparedCandidate | Failure]:
        prepared: dict[str, PreparedCandidate | Failure] = {}
        for name in self._job.baselines if self._job.mode is Mode.CONFIRM else ():
            if not self._backend.poisoned:
                heartbeat(f"baseline {name}")
                with span(f"baseline {name}", "verify"):
                    prepared[name] = self._backend.prepare_baseline(self._task, name)
        return prepared

    def _timeable(
        self,
        prepared: Mapping[int, PreparedCandidate | Failure],
        baselines: Mapping[str, PreparedCandidate | Failure],
    ) -> dict[int | str, PreparedCandidate]:
        """All that can be timed; nothing where only the incumbent is left."""
        if self._backend.poisoned:
            return {}
        timeable: dict[int | str, PreparedCandidate] = {}
        for index in self._indices():
            one = prepared.get(index)
            if isinstance(one, PreparedCandidate):
                timeable[index] = one
        if not any(index != self._incumbent for index in timeable):
            return {}
        timeable.update(
            {name: one for name, one in baselines.items() if isinstance(one, PreparedCandidate)}
        )
        return timeable

    # -- timing --------------------------------------------------------------------------------
    def _time(self, timeable: Mapping[int | str, PreparedCandidate]) -> TimedPass:
        """Samples of all candidates, by the plain timer if one of them cannot be captured."""
        if backend_kinds.spec(self._backend.info()[0].kind).times_processors:
            with span("wait for the processors", "waiting"):
                await_processors()
        with span("timing", "timing"):
            return self._time_prepared(timeable)

    def _time_prepared(self, timeable: Mapping[int | str, PreparedCandidate]) -> TimedPass:
        started = time.monotonic()
        prepared = list(timeable.values())
        timer = self._backend.timer(self._job.protocol, prepared)
        candidates = [replace(p.candidate, after_checked_run=p.check.after) for p in prepared]
        incumbent = self._incumbent in timeable
        try:
            timed = self._time_monitored(HeartbeatTimer(timer), candidates, incumbent=incumbent)
        except CaptureFailed:
            timer = self._backend.plain_timer(self._job.protocol)
            timed = self._time_monitored(HeartbeatTimer(timer), candidates, incumbent=incumbent)
        self._timing_s += time.monotonic() - started
        return timed

    def _time_monitored(
        self, timer: Timer, candidates: Sequence[Candidate], *, incumbent: bool
    ) -> TimedPass:
        """One comparison, repeated once if the device was throttled meanwhile."""
        samples: list[list[float]] = []
        clocks: dict[str, float | str] = {}
        for attempt in range(_ATTEMPTS):
            with self._backend.monitor() as monitor:
                samples = collect_samples(
                    self._job.mode, timer, candidates, self._job.protocol, incumbent=incumbent
                )
            clocks = {**monitor.summary(), **({"repeated": 1.0} if attempt else {})}
            if card := self._backend.info()[0].uuid:
                clocks["card"] = card
                if known := self._job.calibration:
                    clocks["copy_tb_s"] = round(known.copy_bytes_per_us / 1e6, 6)
            if "throttled" not in clocks:
                break
        return TimedPass(samples, timer.method, timer.cache, timer.quantum_us, clocks)

    # -- results -------------------------------------------------------------------------------
    def _timings(
        self, timeable: Mapping[int | str, PreparedCandidate], timed: TimedPass
    ) -> dict[int | str, Timing]:
        """Timings with ratios to the incumbent of a screening, else to the first candidate."""
        keys = list(timeable)
        reference_at = keys.index(self._incumbent) if self._incumbent in keys else 0
        reference = timed.samples[reference_at]
        timings = {}
        for position, (key, one) in enumerate(timeable.items()):
            samples = timed.samples[position]
            ratio = compare(
                self._job.mode, samples, reference, self._job.protocol, timed.quantum_us
            )
            timings[key] = Timing(
                name=key if isinstance(key, str) else self._names[key],
                median_us=statistics.median(samples),
                samples_us=tuple(samples),
                log_ratio=EQUAL if position == reference_at else ratio,
                error=one.error,
                deterministic=one.deterministic,
                row_bits=one.row_bits,
                note=one.note,
            )
        return timings

    def _accept(
        self, index: int, prepared: PreparedCandidate, timing: Timing, cache: str
    ) -> Timing | Failure:
        """The timing, or its refusal if the time is impossible or the timed run was wrong."""
        problem = ""
        roofline_us = self._backend.roofline_us(self._task, cache)
        if timing.median_us < _ROOFLINE_SHARE * roofline_us:
            problem = (
                f"{timing.median_us:.3g} us is faster than the device can move its bytes "
                f"({roofline_us:.3g} us)"
            )
        elif wrong := prepared.check.problem():
            problem = f"wrong in the timed loop: {wrong}"
        return refusal(problem).of(self._job.candidates[index]) if problem else timing

    def _make_untimed(
        self, prepared: Mapping[int, PreparedCandidate | Failure], index: int
    ) -> Timing | Failure:
        one = prepared.get(index)
        if isinstance(one, Failure):
            return one
        if one is None:
            return Timing(self._names[index], 0.0)
        return Timing(
            self._names[index],
            0.0,
            error=one.error,
            deterministic=one.deterministic,
            row_bits=one.row_bits,
            note=one.note,
        )

    def _measurement(
        self,
        outcomes: Sequence[Timing | Failure],
        baselines: Mapping[str, Timing | Failure],
        timed: TimedPass | None = None,
    ) -> Measurement:
        device, toolchain = self._backend.info()
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
