"""The expected time until a run ends, as users see it: it falls steadily while the rate holds.

Notation, in seconds: t now, t0 when the first trials were finished, d trials finished since then,
the last of them at t1, w trials that are left, f expected for the finals. The estimate of the
moment is

    e(t) = w max((t1 - t0) / d, (t - t0) / (d + 1)) + f.

Starting workers has no part in the rate, and the second term is for a trial that takes long. e
jumps at each trial, and where the plan changes: a search ends early, or the first finals tell how
long finals take. What is shown counts down with the clock and approaches e within the time tau, a
fourth of what is left:

    s(t + h) = e + (s(t) - h - e) exp(-h / tau).

So s falls by h in h while the rate holds, and rises only where e exceeds it by more than tau.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Trials after the first ones from which a rate follows.
_LEAST_TRIALS = 3
_LEAST_TAU_S = 5.0
_TAU_SHARE = 0.25


@dataclass(slots=True)
class TimeLeft:
    """The time left of one run, from what it has finished at each moment."""

    #: When the first trials were finished, and how many these were.
    _first: tuple[float, int] | None = None
    #: When the latest trials were finished, and how many are.
    _latest: tuple[float, int] = (0.0, 0)
    #: The last moment, and what was shown then.
    _shown: tuple[float, float] | None = None

    def update(self, now: float, finished: int, left: int | None, finals_s: float) -> float | None:
        """Expected seconds until the end, never negative; None while unknown.

        finished: trials that this process has finished. left: planned trials that are not finished;
        None while unknown. finals_s: expected seconds of all finals that are not over.
        """
        if self._first is None and finished:
            self._first = now, finished
        if finished != self._latest[1]:
            self._latest = now, finished
        estimate = self._estimate(now, finished, left, finals_s)
        if estimate is None:
            self._shown = None
            return None
        shown_s = estimate
        if self._shown is not None and estimate > 0.0:
            passed_s = max(0.0, now - self._shown[0])
            tau_s = max(_LEAST_TAU_S, _TAU_SHARE * estimate)
            ahead_s = self._shown[1] - passed_s - estimate
            shown_s = max(0.0, estimate + ahead_s * math.exp(-passed_s / tau_s))
        self._shown = now, shown_s
        return shown_s

    def _estimate(
        self, now: float, finished: int, left: int | None, finals_s: float
    ) -> float | None:
        if left is None:
            return None
        if left <= 0:
            return max(0.0, finals_s)
        began, before = self._first or (now, finished)
        timed = finished - before
        if timed < _LEAST_TRIALS:
            return None
        each_s = max((self._latest[0] - began) / timed, (now - began) / (timed + 1))
        return max(0.0, left * each_s + finals_s)
