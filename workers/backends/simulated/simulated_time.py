"""Simulated time: samples drawn from recorded medians and a model of the noise.

Notation, with all terms dimensionless logarithms of times:

    ln t = ln T + d(s) + r(s) + e + o

T is the recorded median and s the seconds that the device has worked. d is an Ornstein-Uhlenbeck
process with standard deviation `drift_sd` and time constant `drift_tau_s`. The falling clock is
r(s) = ramp (1 - exp(-s / ramp_tau_s)). e is normal with standard deviation `sigma`; o is
exponential with mean `outlier_mean` and occurs with probability `outlier_share`. All candidates of
a pass share d and r. docs/recorded_spaces.md derives the model.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from search_spaces.recorded.entries import Noise, RecordedConfig

if TYPE_CHECKING:
    from workers.measure.timers.timer import Candidate


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
