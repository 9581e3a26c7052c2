"""Which rule takes the samples of a job, and which interval a ratio has: by the job's mode."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.base.log_ratio import LogRatio
from tuner.base.statistics import compare_pairs
from workers.job_records import MeasurementProtocol, Mode
from workers.measure.race.confirmation import confirm, reported_ratio
from workers.measure.race.elimination import race
from workers.measure.race.screening import screen
from workers.measure.timers.timer import Candidate, Timer


def collect_samples(
    mode: Mode,
    timer: Timer,
    candidates: Sequence[Candidate],
    protocol: MeasurementProtocol,
    *,
    incumbent: bool = False,
) -> list[list[float]]:
    """Samples in us per candidate. incumbent: the last one is the incumbent of a screening."""
    if mode is Mode.CONFIRM:
        entries = confirm(timer, candidates, protocol)
    elif mode is Mode.RACE:
        entries = race(timer, candidates, protocol)
    elif incumbent:
        entries = screen(timer, candidates[:-1], candidates[-1], protocol)
    else:
        entries = screen(timer, candidates, None, protocol)
    return [entry.samples_us for entry in entries]


def compare(
    mode: Mode,
    samples_us: Sequence[float],
    reference_us: Sequence[float],
    protocol: MeasurementProtocol,
    quantum_us: float,
) -> LogRatio:
    """The log-ratio of a candidate to the reference over the passes that both took."""
    if mode is Mode.CONFIRM:
        return reported_ratio(samples_us, reference_us, protocol.precision, quantum_us)
    common = min(len(samples_us), len(reference_us))
    return compare_pairs(samples_us[:common], reference_us[:common], quantum_us=quantum_us)
