"""Which calls of a step are worth tuning, and how much of the time each of them gets.

    time now   = time of the fastest baseline / gain of what runs already
    time then  = time of the fastest baseline / expected gain

The expected gain is the geometric mean of what the tables of the kernel found over the fastest
baseline that a call may run. A call is worth it where time now - time then is at least 0.1 % of
the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tuner import runtime
from tuner.base.statistics import geometric_mean
from tuner.ops.choosing import pick
from tuner.optimizing.call_times import CallTime, StepRecord

#: Of the time of a step: what must be saved at least.
LEAST_SHARE = 0.001
#: The expected gain of kernels that no table is for.
_UNKNOWN = 1.1
#: Seconds in which a search finds something.
_LEAST_SEARCH_S = 5.0


def expected_gain(tables: Iterable[runtime.Table]) -> float:
    """What tuning brings over the fastest baseline, by the entries of these tables; 1 at least."""
    gains = [
        pick(entry.implementation, entry.baselines)[1]
        for table in tables
        for entry in table.entries
    ]
    known = geometric_mean(max(1.0, gain) for gain in gains if gain is not None)
    return _UNKNOWN if known is None else known


def expected_saving(call: CallTime, gain: float) -> float:
    """Seconds of a step that tuning these calls is expected to save."""
    return 0.0 if call.known else max(0.0, call.seconds / call.gain - call.seconds / gain)


def rank_calls(record: StepRecord) -> list[tuple[CallTime, float]]:
    """The calls that are worth tuning and the seconds that each may save, the most first."""
    found = [
        (call, expected_saving(call, expected_gain(runtime.find_tables(call.kernel))))
        for call in record.calls
    ]
    worth = [each for each in found if each[1] >= LEAST_SHARE * record.seconds and each[1]]
    return sorted(worth, key=lambda each: -each[1])


def share_time(left_s: float, savings: Sequence[float]) -> float:
    """The part of the time that is left which the first of these savings gets; 0 for too little."""
    part = left_s * savings[0] / sum(savings)
    return 0.0 if left_s < _LEAST_SEARCH_S else max(part, _LEAST_SEARCH_S)
