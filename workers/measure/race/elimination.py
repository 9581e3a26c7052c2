"""The race rule: interleave the finalists and eliminate slow ones until the fastest is known.

Successive elimination on paired log-ratios with a union bound over looks and candidates, as for
(epsilon, delta)-best arms (Even-Dar, Mannor and Mansour, JMLR 7, 2006).

Notation: at each of at most R looks, m candidates are active and r is the log-ratio of one of them
to the leader, with an interval [low, high] of confidence 1 - `delta` / (2 R m). There is a look
after each of `rounds` rounds, and two within the first round, which drop the slowest.

- A candidate is eliminated if low > 0.
- The race ends if low > -ln(1 + `epsilon`) for all that remain: none of them can be faster than the
  leader by more than epsilon.
- All samples together take at most the time budget `_BUDGET_S`, unless that is less than
  `_FEWEST_PASSES` passes. Where the budget ends a race, all that remain tie with the leader.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from tuner.base.statistics import compare_pairs
from workers.job_records import MeasurementProtocol
from workers.measure.race.samples import (
    CandidateSamples,
    affordable_passes,
    collect_active,
    leader,
)
from workers.measure.timers.timer import Candidate, Timer

#: Shares of the first round after which there is a look, and the fewest passes before any look.
_EARLY_LOOKS, _FEWEST_PASSES = (1 / 4, 1 / 2), 4
#: Largest change of a log-ratio between clock states under power throttling (timers/gpu_timer.py).
_THROTTLING_SHIFT = 0.01
#: The longest that all samples of a race together take, in seconds, unless passes are too few.
_BUDGET_S = 6.0


def race_looks(protocol: MeasurementProtocol) -> list[int]:
    """The numbers of passes after which a race decides."""
    each = protocol.round_pairs
    early = [int(share * each) for share in _EARLY_LOOKS if share * each >= _FEWEST_PASSES]
    return [*early, *(each * number for number in range(1, protocol.rounds + 1))]


def race(
    timer: Timer, candidates: Sequence[Candidate], protocol: MeasurementProtocol
) -> list[CandidateSamples]:
    """Samples of all candidates, raced until the fastest is known.

    A round is `round_pairs` passes over the active candidates, and a race has at least one, unless
    its time budget ends it. The probability that any decision of the race is wrong is at most
    `delta`. Until the race has lasted for the window that the timer asks for, it does not end, and
    no candidate within 1 % of the leader is eliminated.
    """
    entries = [CandidateSamples(candidate) for candidate in candidates]
    if not entries:
        return []
    window_s = timer.warm(candidates[0], protocol.warm_ms, steady=True)
    window_ends = time.monotonic() + window_s
    taken, looks = 0, race_looks(protocol)
    for look in looks:
        active = [entry for entry in entries if entry.active]
        most = affordable_passes(entries, taken, _BUDGET_S, _FEWEST_PASSES) if taken else look
        if most <= taken:
            break
        collect_active(timer, active, min(look, most) - taken, taken)
        taken = min(look, most)
        shift = 0.0 if time.monotonic() >= window_ends else _THROTTLING_SHIFT
        confidence = 1 - protocol.delta / (2 * len(looks) * len(active))
        over = _eliminate(active, protocol.epsilon, confidence, timer.quantum_us, shift)
        if (taken >= protocol.round_pairs and over) or taken < look:
            break
    return entries


def _eliminate(
    active: Sequence[CandidateSamples],
    epsilon: float,
    confidence: float,
    quantum_us: float,
    shift: float,
) -> bool:
    """Eliminate slow candidates; whether the race is over.

    shift: by how much log-ratios may still change with the clock. While it is not 0 the race is not
    over.
    """
    best = leader(active)
    over = len(active) == 1 or not shift
    for entry in active:
        if entry is best:
            continue
        ratio = compare_pairs(
            entry.samples_us, best.samples_us, confidence=confidence, quantum_us=quantum_us
        )
        entry.active = ratio.low <= shift
        over = over and ratio.low > -math.log1p(epsilon)
    return over
