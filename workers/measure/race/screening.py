"""The screening rule: which candidates of a search are dropped after a few samples.

A candidate is dropped after its n-th sample if, with t the times of the candidate and f the
smallest time of all candidates and the incumbent,

- n = 1: t > `cap` * f;
- n <= 3: min t > `near` * f. The minimum is used because outliers only increase times;
- n > 3: the confidence interval of ln(t / leader's t) lies above ln(`hopeless`), with confidence
  1 - `delta` / (checkpoints * candidates): a union bound over both.

Where f >= 1 ms, times vary less, and a sample takes long. There the limit is `near` for n = 1 and
the geometric mean of `near` and `hopeless` for n <= 3, and the screening ends after 12 samples, or
6 where f >= 10 ms, as f is at the first checkpoint. The race decides between those that are left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.base.statistics import compare_pairs
from workers.job_records import MeasurementProtocol
from workers.measure.race.samples import CandidateSamples, leader, screening_orders
from workers.measure.timers.timer import Candidate, Timer

#: Screenings follow each other every few builds, and `cap` and `near` are larger than the error of
#: a clock that still ramps up.
_MAX_WARM_MS = 20.0
#: Up to this many samples a candidate is represented by its fastest one.
_MINIMUM_UP_TO = 3
#: From this time on a kernel is long.
_LONG_US = 1000.0
#: The most samples of a screening of kernels from these times on, longest first.
_LONG_SAMPLES = ((10_000.0, 6), (_LONG_US, 12))


def was_dropped(
    protocol: MeasurementProtocol, samples_us: Sequence[float], incumbent_us: Sequence[float] = ()
) -> bool:
    """Whether a screening dropped the candidate with these samples before its end.

    incumbent_us: the incumbent's samples of the same passes; empty where there was none. How many
    samples a screening takes follows from the fastest one at its first checkpoint, which is one of
    these, or one of a faster candidate.
    """
    if not samples_us:
        return False
    first = max(1, min(protocol.pairs))
    fastest = min([*samples_us[:first], *incumbent_us[:first]])
    return len(samples_us) < min(max(protocol.pairs), max(first, _most_samples(fastest)))


def _most_samples(time_us: float) -> float:
    """The most samples of a screening whose fastest kernel takes this long."""
    return next((samples for us, samples in _LONG_SAMPLES if time_us >= us), math.inf)


def screen(
    timer: Timer,
    candidates: Sequence[Candidate],
    incumbent: Candidate | None,
    protocol: MeasurementProtocol,
) -> list[CandidateSamples]:
    """Samples of the candidates and, last, of the incumbent.

    Candidates are dropped at the checkpoints `protocol.pairs`, which count samples per candidate.
    The incumbent runs several times in a pass; its sample is the lower median of these runs.
    """
    if not candidates:
        return []
    everything = [*candidates, *([incumbent] if incumbent is not None else [])]
    entries = [CandidateSamples(candidate) for candidate in everything]
    timer.warm(everything[-1], min(_MAX_WARM_MS, protocol.warm_ms))
    taken = 0
    checkpoints = sorted({max(1, pairs) for pairs in protocol.pairs})
    while taken < checkpoints[-1]:
        active = [entry for entry in entries if entry.active]
        checkpoint = next(number for number in checkpoints if number > taken)
        _collect(timer, active, incumbent, checkpoint - taken, taken)
        taken = checkpoint
        most = _most_samples(min(min(entry.samples_us) for entry in active))
        checkpoints = sorted({int(min(number, max(taken, most))) for number in checkpoints})
        if taken == checkpoints[-1]:
            break
        _drop_slow(active, incumbent, len(checkpoints), protocol, timer.quantum_us)
        if all(not entry.active or entry.candidate is incumbent for entry in entries):
            break
    return entries


def _collect(
    timer: Timer,
    active: Sequence[CandidateSamples],
    incumbent: Candidate | None,
    passes: int,
    first: int,
) -> None:
    place = next((i for i, entry in enumerate(active) if entry.candidate is incumbent), None)
    orders = screening_orders(len(active), place, passes, first)
    times = timer.collect([entry.candidate for entry in active], orders)
    for position, (entry, more) in enumerate(zip(active, times, strict=True)):
        if position == place:
            runs = orders[0].count(position)
            more = [_lower_median(more[i : i + runs]) for i in range(0, len(more), runs)]
        entry.samples_us += more


def _lower_median(values: Sequence[float]) -> float:
    """The lower of the middle values, so that the result is a time that was measured."""
    return sorted(values)[(len(values) - 1) // 2]


def _drop_slow(
    active: Sequence[CandidateSamples],
    incumbent: Candidate | None,
    checkpoints: int,
    protocol: MeasurementProtocol,
    quantum_us: float,
) -> None:
    taken = len(active[0].samples_us)
    candidates = [entry for entry in active if entry.candidate is not incumbent]
    if taken <= _MINIMUM_UP_TO:
        fastest = min(min(entry.samples_us) for entry in active)
        limit = protocol.cap if taken == 1 else protocol.near
        if fastest >= _LONG_US:
            few = math.sqrt(protocol.near * protocol.hopeless)
            limit = protocol.near if taken == 1 else few
        for entry in candidates:
            entry.active = min(entry.samples_us) <= limit * fastest
        return
    best = leader(active)
    confidence = 1 - protocol.delta / (checkpoints * max(1, len(candidates)))
    for entry in candidates:
        if entry is not best:
            ratio = compare_pairs(
                entry.samples_us, best.samples_us, confidence=confidence, quantum_us=quantum_us
            )
            entry.active = ratio.low <= math.log(protocol.hopeless)
