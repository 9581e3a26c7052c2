"""The race rule: interleave the finalists and eliminate slow ones until the fastest is known.

Successive elimination on paired log-ratios with a union bound over looks and candidates, as for
(epsilon, delta)-best arms (Even-Dar, Mannor and Mansour, JMLR 7, 2006).

Notation: after each of at most R = `rounds` rounds, m candidates are active and r is the log-ratio
of one of them to the leader, with an interval [low, high] of confidence 1 - `delta` / (2 R m).

- A candidate is eliminated if low > 0.
- The race ends if low > -ln(1 + `epsilon`) for all that remain: none of them can be faster than the
  leader by more than epsilon.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from search_spaces.statistics import paired
from workers.measure.race.samples import CandidateSamples, collect_active, leader
from workers.measure.timers.timer import Candidate, Timer
from workers.records import MeasurementProtocol

#: Largest change of a log-ratio between clock states under power throttling (timers/gpu_timer.py).
_THROTTLING_SHIFT = 0.01


def race(
    timer: Timer, candidates: Sequence[Candidate], protocol: MeasurementProtocol
) -> list[CandidateSamples]:
    """Samples of all candidates, raced until the fastest is known.

    A round is `round_pairs` passes over the active candidates. The probability that any decision of
    the race is wrong is at most `delta`. Until the race has lasted for the window that the timer
    asks for, it does not end, and no candidate within 1 % of the leader is eliminated.
    """
    entries = [CandidateSamples(candidate) for candidate in candidates]
    if not entries:
        return []
    window_s = timer.warm(candidates[0], protocol.warm_ms, steady=True)
    window_ends = time.monotonic() + window_s
    for number in range(protocol.rounds):
        active = [entry for entry in entries if entry.active]
        collect_active(timer, active, protocol.round_pairs, number * protocol.round_pairs)
        shift = 0.0 if time.monotonic() >= window_ends else _THROTTLING_SHIFT
        if len(active) == 1 or _eliminate(active, protocol, timer.quantum_us, shift):
            break
    return entries


def _eliminate(
    active: Sequence[CandidateSamples],
    protocol: MeasurementProtocol,
    quantum_us: float,
    shift: float,
) -> bool:
    """Eliminate slow candidates; whether the race is over.

    shift: by how much log-ratios may still change with the clock. While it is not 0 the race is not
    over.
    """
    best = leader(active)
    confidence = 1 - protocol.delta / (2 * protocol.rounds * len(active))
    over = not shift
    for entry in active:
        if entry is best:
            continue
        ratio = paired(
            entry.samples_us, best.samples_us, confidence=confidence, quantum_us=quantum_us
        )
        entry.active = ratio.low <= shift
        over = over and ratio.low > -math.log1p(protocol.epsilon)
    return over
