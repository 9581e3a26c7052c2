"""The confirmation rule: sample until the ratios that are reported are precise enough.

Notation: r is a candidate's log-ratio to the first candidate, with its 95 % interval [low, high]. A
candidate is sampled further if |r| < 0.05 and high - r > `precision`. Sampling stops on interval
width, never on its sign, so early stopping does not inflate false positives.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from search_spaces.statistics import paired
from workers.measure.race.samples import CandidateSamples, collect_active
from workers.measure.timers.timer import Candidate, Timer
from workers.records import MeasurementProtocol

#: A confirmation takes `final_pairs` passes at most this many times.
_MAX_ROUNDS = 8
#: Log-ratio to the first candidate within which a candidate is sampled until it is precise.
_CLOSE = 0.05


def confirm(
    timer: Timer, candidates: Sequence[Candidate], protocol: MeasurementProtocol
) -> list[CandidateSamples]:
    """Samples of all candidates over `final_pairs` passes, of close ones over up to eight times
    that.

    Close candidates are also sampled until the confirmation has lasted for the window that the
    timer asks for.
    """
    entries = [CandidateSamples(candidate) for candidate in candidates]
    if not entries:
        return []
    window_s = timer.warm(candidates[0], protocol.warm_ms, steady=True)
    window_ends = time.monotonic() + window_s
    for number in range(_MAX_ROUNDS):
        active = [entry for entry in entries if entry.active]
        collect_active(timer, active, max(2, protocol.final_pairs), number)
        window_covered = time.monotonic() >= window_ends
        reference = entries[0].samples_us
        for entry in active[1:]:
            ratio = paired(entry.samples_us, reference, quantum_us=timer.quantum_us)
            close = abs(ratio.log_ratio) < _CLOSE
            imprecise = ratio.high - ratio.log_ratio > protocol.precision
            entry.active = close and (imprecise or not window_covered)
        if not any(entry.active for entry in entries[1:]):
            break
    return entries
