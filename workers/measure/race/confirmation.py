"""The confirmation rule: sample until the ratios that are reported are precise enough.

Notation: r is a candidate's log-ratio to the first candidate, and h the half width of its interval.
m is the number of candidates but the first, and L the number of looks before `final_pairs` passes.

- At a look, after 3, 8, 16 and 32 passes, a candidate with |r| >= 0.05 is finished if h <=
  `precision`, if it is a baseline and h <= |r| / 10, or if its samples took more than half a second
  together and h <= |r| / 2. The interval has the confidence 1 - 0.05 / (L m): a union bound over
  looks and candidates.
- After `final_pairs` passes, a candidate is finished if |r| >= 0.05 and h <= |r| / 2: on a noisy
  device a larger ratio may still be of either sign. Others are sampled further until that is so or
  h <= `precision`, where the interval has the confidence 95 %. The first candidate is always
  sampled as often as the candidate that is sampled longest, and at least `final_pairs` times.
- All samples together take at most the time budget `_BUDGET_S`, unless that is less than
  `_FEWEST_PASSES` passes. Finished candidates count for at most half of it.
- A ratio is reported with its 95 % interval if h <= `precision` or h <= |r| / 10; otherwise, as
  where the budget ended the confirmation, with the interval of `_IMPRECISE`. A verdict needs |r| of
  1 %, to which a precise ratio of equal candidates comes almost never; an imprecise one comes to it
  often, and its interval alone decides.

Sampling stops on interval width relative to |r|, or on the sum of all times, never on the sign of
r, so early stopping does not inflate false positives. The ratio of the default config stays
precise, as far as the budget permits, because runs are compared by it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from tuner.base.log_ratio import LogRatio
from tuner.base.statistics import compare_pairs
from workers.job_records import MeasurementProtocol
from workers.measure.race.samples import CandidateSamples, affordable_passes, collect_active
from workers.measure.timers.timer import Candidate, Timer

#: A confirmation takes `final_pairs` passes at most this many times.
_MAX_ROUNDS = 8
#: Log-ratio to the first candidate within which a candidate is sampled until it is precise.
_CLOSE = 0.05
#: Passes after which candidates that are not close may be finished.
_LOOKS = (3, 8, 16, 32)
#: The probability that any interval of these looks is wrong.
_DELTA = 0.05
#: The largest half width, as a share of the log-ratio, of a baseline that is finished early, and of
#: any candidate whose samples took longer than the time, or that had all passes.
_BASELINE_SHARE, _CLEAR_SHARE, _SLOW_S = 1 / 10, 1 / 2, 0.5

#: The longest that all samples of a confirmation together take, in seconds, and the fewest passes
#: whatever they take. Candidates of 2 ms take their most passes within it; the limit is for kernels
#: of 10 ms and more, whose ratios vary by percents from pass to pass under a power limit.
_BUDGET_S, _FEWEST_PASSES = 6.0, 8
#: The confidence of the reported interval of an imprecise ratio: equal candidates get a verdict in
#: at most one of 200, in simulation (tests/measure/test_race.py).
_IMPRECISE = 0.998


def confirm(
    timer: Timer, candidates: Sequence[Candidate], protocol: MeasurementProtocol
) -> list[CandidateSamples]:
    """Samples of all candidates: few of clearly different baselines, up to eight times
    `final_pairs` of close candidates, as far as the time budget permits.

    Close candidates are also sampled until the confirmation has lasted for the window that the
    timer asks for.
    """
    entries = [CandidateSamples(candidate) for candidate in candidates]
    if not entries:
        return []
    window_s = timer.warm(candidates[0], protocol.warm_ms, steady=True)
    window_ends = time.monotonic() + window_s
    passes = max(2, protocol.final_pairs)
    looks = [look for look in _LOOKS if look < passes]
    taken = 0
    for look in [*looks, *range(passes, _MAX_ROUNDS * passes + 1, passes)]:
        active = [entry for entry in entries if entry.active]
        most = affordable_passes(entries, taken, _BUDGET_S, _FEWEST_PASSES) if taken else look
        if most > taken:
            collect_active(timer, active, min(look, most) - taken, taken)
        if most < look:
            break
        taken = look
        if taken < passes:
            confidence = 1 - _DELTA / (len(looks) * max(1, len(entries) - 1))
            _finish_clear(active, confidence, protocol.precision, timer.quantum_us)
        else:
            window_covered = time.monotonic() >= window_ends
            _finish_precise(active, protocol, timer.quantum_us, window_covered=window_covered)
        if taken >= passes and not any(entry.active for entry in entries[1:]):
            break
    return entries


def reported_ratio(
    samples_us: Sequence[float], reference_us: Sequence[float], precision: float, quantum_us: float
) -> LogRatio:
    """A candidate's log-ratio to the reference over the passes that both took, with the interval
    that a confirmation reports."""
    common = min(len(samples_us), len(reference_us))
    pairs = samples_us[:common], reference_us[:common]
    ratio = compare_pairs(*pairs, quantum_us=quantum_us)
    if ratio.half_width <= max(precision, _BASELINE_SHARE * abs(ratio.value)):
        return ratio
    return compare_pairs(*pairs, confidence=_IMPRECISE, quantum_us=quantum_us)


def _finish_clear(
    active: Sequence[CandidateSamples], confidence: float, precision: float, quantum_us: float
) -> None:
    """Finish candidates whose ratio is far from 1 and known well enough."""
    reference, *others = active
    for entry in others:
        ratio = compare_pairs(
            entry.samples_us, reference.samples_us, confidence=confidence, quantum_us=quantum_us
        )
        size, share = abs(ratio.value), 0.0
        if sum(entry.samples_us) > 1e6 * _SLOW_S:
            share = _CLEAR_SHARE
        elif entry.candidate.baseline:
            share = _BASELINE_SHARE
        enough = ratio.half_width <= max(precision, share * size)
        entry.active = not (size >= _CLOSE and enough)


def _finish_precise(
    active: Sequence[CandidateSamples],
    protocol: MeasurementProtocol,
    quantum_us: float,
    *,
    window_covered: bool,
) -> None:
    """Finish candidates that are clearly not close, and close ones whose ratio is precise."""
    reference, *others = active
    for entry in others:
        ratio = compare_pairs(entry.samples_us, reference.samples_us, quantum_us=quantum_us)
        size = abs(ratio.value)
        close = size < _CLOSE or ratio.half_width > _CLEAR_SHARE * size
        imprecise = ratio.half_width > protocol.precision
        entry.active = close and (imprecise or not window_covered)
