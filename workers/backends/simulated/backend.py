"""The backend of simulated devices: it replays a recorded space and injects faults.

Only the times are drawn at random. Screening, race and statistics are those of every other backend.
The noise of a config depends on the seed and the config alone, so all workers and all attempts draw
the same; drift is drawn per job.
"""

from __future__ import annotations

import hashlib
import math
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from search_spaces.recorded.entries import Noise, RecordedConfig
from search_spaces.recorded.recorded_space import RecordedSpace
from search_spaces.records import Config, Device, Status, Toolchain, config_key, digest
from workers import backend_kinds
from workers.backends.simulated.build import (
    make_unrecorded_failure,
    recorded_failure,
    recorded_space,
)
from workers.job_records import Artifact, Failure, MeasureJob, Measurement, Mode, Timing
from workers.processes.heartbeat import heartbeat
from workers.processes.worker_lost import WorkerLost
from workers.roles import Backend

if TYPE_CHECKING:
    from workers.measure.timers.timer import Candidate


# -- simulated time: samples drawn from recorded medians and a model of the noise ------------------
# Notation, with all terms dimensionless logarithms of times:
#
#     ln t = ln T + d(s) + r(s) + e + o
#
# T is the recorded median and s the seconds that the device has worked. d is an Ornstein-Uhlenbeck
# process with standard deviation `drift_sd` and time constant `drift_tau_s`. The falling clock is
# r(s) = ramp (1 - exp(-s / ramp_tau_s)). e is normal with standard deviation `sigma`; o is
# exponential with mean `outlier_mean` and occurs with probability `outlier_share`. All candidates
# of a pass share d and r. docs/recorded_spaces.md derives the model.
class SimulatedTimer:
    """A clock that advances by the drawn times; implements `workers.measure.timers.timer.Timer`.

    seed: of the noise of single candidates. pass_: the name of the pass, whose candidates share
    the drift. is_warm: whether the device has just worked, so that it needs no warm-up.
    """

    method = "simulated"
    quantum_us = 0.0

    def __init__(
        self, noise: Noise, seed: str, pass_: str, cache: str = "cold", *, is_warm: bool = False
    ) -> None:
        self.noise, self.seed, self.cache, self._is_warm = noise, seed, cache, is_warm
        #: Seconds that the device has worked so far.
        self.device_s = 0.0
        self._drift_rng = random.Random(f"{seed}/{pass_}/drift")
        self._drift = self._drift_rng.gauss(0.0, noise.drift_sd)

    def warm(self, candidate: Candidate, warm_ms: float, *, steady: bool = False) -> float:
        if not self._is_warm:
            self._advance(warm_ms / 1e3)
        return 0.0

    def collect(
        self, candidates: Sequence[Candidate], orders: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        times: list[list[float]] = [[] for _ in candidates]
        for order in orders:
            for position in order:
                taken = candidates[position].run()
                assert isinstance(taken, float)
                times[position].append(taken)
                self._advance((taken + self.noise.overhead_us) / 1e6)
        return times

    @property
    def common(self) -> float:
        """d(s) + r(s): drift and falling clock at this moment."""
        noise = self.noise
        return self._drift + noise.ramp * (1 - math.exp(-self.device_s / noise.ramp_tau_s))

    def _advance(self, seconds: float) -> None:
        self.device_s += seconds
        kept = math.exp(-seconds / self.noise.drift_tau_s)
        shock = self._drift_rng.gauss(0.0, self.noise.drift_sd)
        self._drift = kept * self._drift + math.sqrt(1 - kept * kept) * shock


class SampleSource:
    """Samples of one candidate: its recorded median and the noise, or its recorded samples."""

    def __init__(
        self, median_us: float, recorded: Sequence[float], timer: SimulatedTimer, name: str
    ) -> None:
        self._median_us, self._recorded, self._timer = median_us, recorded, timer
        self._name = name

    @classmethod
    def of_config(cls, entry: RecordedConfig, timer: SimulatedTimer, name: str) -> SampleSource:
        return cls(entry.median_us or 0.0, entry.samples_us, timer, name)

    @cached_property
    def _rng(self) -> random.Random:
        return random.Random(f"{self._timer.seed}/{self._name}")

    def sample(self) -> float:
        if self._recorded:
            return self._rng.choice(self._recorded)
        noise = self._timer.noise
        log = self._timer.common + self._rng.gauss(0.0, noise.sigma)
        if self._rng.random() < noise.outlier_share:
            log += self._rng.expovariate(1 / noise.outlier_mean) if noise.outlier_mean else 0.0
        return self._median_us * math.exp(log)


# -- the backend of simulated devices --------------------------------------------------------------
#: Prefix of a baseline's name inside a pass, so that it cannot equal the key of a config.
_BASELINE = "baseline "


class SimulatedBackend(Backend):
    """Measures recorded kernels.

    crash, hang, wrong, lost: shares of configs with an injected fault, chosen by seed and config.
    The process dies of SIGSEGV, never answers, reports a wrong result, or kills its supervisor.
    lost_dir: a folder that marks configs which have lost a worker; each loses one worker only.
    supervisor_pid: the process to kill for `lost`; with 0 the driver is the supervisor, and the
    backend raises WorkerLost instead. time_scale: seconds of waiting per simulated second.
    """

    kind = "simulated"
    poisoned = False

    def __init__(
        self,
        *,
        index: int = 0,
        cache_dir: str = "",
        crash: float = 0.0,
        hang: float = 0.0,
        wrong: float = 0.0,
        lost: float = 0.0,
        seed: int = 0,
        time_scale: float = 0.0,
        lost_dir: str = "",
        supervisor_pid: int = 0,
    ) -> None:
        self._index, self._seed, self._time_scale = index, seed, time_scale
        self._shares = {"crash": crash, "hang": hang, "wrong": wrong, "lost": lost}
        self._lost_dir, self._supervisor_pid = lost_dir, supervisor_pid
        self._is_warm = False

    def info(self) -> tuple[Device, Toolchain]:
        """A stand-in: the device of a measurement is that of the recorded space."""
        spec = backend_kinds.spec(self.kind)
        return spec.detect(self._index), spec.toolchain()

    def close(self) -> None:
        """Do nothing: the backend holds no resources."""

    def measure(self, job: MeasureJob) -> Measurement | Failure:
        space = recorded_space(job.kernel)
        outcomes: list[Timing | Failure] = []
        for index, candidate in enumerate(job.candidates):
            heartbeat(f"candidate {index}")
            outcomes.append(self._verify(space, candidate, job))
        heartbeat("timing")
        first = config_key(job.candidates[0].config) if job.candidates else ""
        seed, name = f"{self._seed}/{job.mode}", f"{first}/{len(job.candidates)}"
        timer = SimulatedTimer(space.noise, seed, name, job.protocol.cache, is_warm=self._is_warm)
        self._is_warm = True
        baselines: dict[str, Timing | Failure] = {}
        if job.mode is not Mode.VERIFY:
            names = [name for name in job.baselines if name in space.baselines]
            missing = Failure(Status.RUNTIME, "no such baseline was recorded")
            timings = _time(space, job, timer, outcomes, names)
            for name in job.baselines:
                baselines[name] = timings.get(f"{_BASELINE}{name}", missing)
            outcomes = [
                timings.get(outcome.name, outcome) if isinstance(outcome, Timing) else outcome
                for outcome in outcomes
            ]
        time.sleep(timer.device_s * self._time_scale)
        return Measurement(
            device=replace(space.device, kind="simulated"),
            toolchain=space.toolchain,
            outcomes=tuple(outcomes),
            baselines=baselines,
            method=timer.method,
            cache=timer.cache,
            device_s=timer.device_s,
            timing_s=timer.device_s,
            clocks={"card": self.info()[0].uuid},
        )

    def _verify(
        self, space: RecordedSpace, artifact: Artifact, job: MeasureJob
    ) -> Timing | Failure:
        if artifact.config not in space:
            return make_unrecorded_failure(artifact.config)
        entry = space[artifact.config]
        # Equal machine code has equal faults, whichever config it is measured for.
        original = space.original(artifact.config)
        self._inject(original)
        if self.fault(original) == "wrong":
            message = "output differs from the reference (injected)"
            return Failure(Status.CORRECTNESS, message, binary_hash=artifact.binary_hash)
        if entry.status is not Status.CORRECT:
            return recorded_failure(entry, binary_hash=artifact.binary_hash)
        known = artifact.binary_hash in job.verified
        error = -1.0 if known else space.tolerance / 10
        return Timing(config_key(artifact.config), 0.0, error=error)

    def fault(self, config: Config) -> str:
        """The injected fault of a config: `crash`, `hang`, `wrong`, `lost`, or empty."""
        raw = hashlib.sha256(f"{self._seed}/fault/{config_key(config)}".encode()).digest()
        left = int.from_bytes(raw[:8], "big") / 2**64
        for name, share in self._shares.items():
            if left < share:
                return name
            left -= share
        return ""

    def _inject(self, config: Config) -> None:
        """Let the fault of a config happen, if it has one."""
        fault = self.fault(config)
        if fault == "crash":
            print("simulated crash: illegal memory access", file=sys.stderr)
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == "hang":
            while True:
                time.sleep(3600)
        if fault == "lost" and self._first_loss(config):
            if self._supervisor_pid:
                os.kill(self._supervisor_pid, signal.SIGKILL)
                time.sleep(3600)
            raise WorkerLost("the worker was lost (injected)")

    def _first_loss(self, config: Config) -> bool:
        """Whether the config has not lost a worker yet; marks it in the shared folder."""
        if not self._lost_dir:
            return False
        folder = Path(self._lost_dir)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            (folder / digest(dict(config))).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def _time(
    space: RecordedSpace,
    job: MeasureJob,
    timer: SimulatedTimer,
    outcomes: Sequence[Timing | Failure],
    baselines: Sequence[str],
) -> dict[str, Timing]:
    """Timings by name of the verified candidates and the baselines, sampled in one pass."""
    from workers.measure.race.modes import collect_samples, compare
    from workers.measure.timers.timer import Candidate

    candidates: list[Candidate] = []
    errors = {}
    for artifact, outcome in zip(job.candidates, outcomes, strict=True):
        if isinstance(outcome, Timing):
            errors[outcome.name] = outcome.error
            source = SampleSource.of_config(space[artifact.config], timer, outcome.name)
            candidates.append(Candidate(outcome.name, source.sample))
    incumbent = job.mode is Mode.SCREENING and job.incumbent and isinstance(outcomes[-1], Timing)
    if len(candidates) == int(incumbent):
        return {}
    for name in baselines:
        source = SampleSource(space.baselines[name], (), timer, name)
        candidates.append(Candidate(f"{_BASELINE}{name}", source.sample, baseline=True))
    taken = collect_samples(job.mode, timer, candidates, job.protocol, incumbent=incumbent)
    reference = taken[-1 if incumbent else 0]
    timings = {}
    for candidate, times in zip(candidates, taken, strict=True):
        ratio = compare(job.mode, times, reference, job.protocol, timer.quantum_us)
        timings[candidate.name] = Timing(
            name=candidate.name.removeprefix(_BASELINE),
            median_us=statistics.median(times),
            samples_us=tuple(times),
            log_ratio=ratio,
            error=errors.get(candidate.name, -1.0),
        )
    return timings
