"""The method `perf_counter`: wall time of calls on a CPU."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence

from workers.measure.timers.slots import (
    Slot,
    by_candidate,
    no_garbage_collection,
    plan_slots,
)
from workers.measure.timers.thread_team import ThreadTeam
from workers.measure.timers.timer import Candidate, WarmUp

#: A candidate that takes this many times as long as the fastest may have shorter batches: their
#: bias does not change the ranking.
_SLOW = 4.0
#: The share of its time for which the threads of a batch may wait, and how often a batch that
#: waited longer is timed again. There are no more repetitions than batches that are kept.
_WAITED, _REPETITIONS = 0.02, 8


class PerfCounterTimer:
    """Wall time of calls; each sample is the mean of a batch of at least `min_batch_us`.

    Caches are warm, because a batch repeats the call on the same buffers. Under the cache policy
    `rotate` each call uses the next of its candidate's copies. overhead_us: time to read the clock,
    which is subtracted from every batch. team: the threads that run them; a batch during which
    they waited for a processor is timed again.
    """

    method = "perf_counter"

    def __init__(
        self,
        min_batch_us: float,
        warm_up: WarmUp,
        overhead_us: float = 0.0,
        cache: str = "warm",
        quantum_us: float = 0.0,
        team: ThreadTeam | None = None,
    ) -> None:
        self.cache = cache
        self.quantum_us = quantum_us
        self._min_batch_us = min_batch_us
        self._overhead_us = overhead_us
        self._warm_up = warm_up
        self._once_us: dict[Candidate, float] = {}
        self._team = team or ThreadTeam()
        self._kept = self._repeated = 0

    def warm(self, candidate: Candidate, warm_ms: float, *, steady: bool = False) -> float:
        with self._team.left_afterwards():
            candidate.enter()
            self._team.enter()
            self._warm_up.run(candidate.run, warm_ms)
        return 0.0

    def collect(
        self, candidates: Sequence[Candidate], orders: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        slots = plan_slots(candidates, orders)
        times_us = []
        with no_garbage_collection(), self._team.left_afterwards():
            batches = self._batches(candidates)
            for slot in slots:
                candidate = candidates[slot.candidate]
                candidate.enter()
                self._team.enter()
                calls = self._calls(candidate, slot)
                if len(candidates) > 1:
                    next(calls)()
                if slot.checked:
                    candidate.before_checked_run()
                elapsed_us, result = self._time_batch(calls, batches[slot.candidate])
                times_us.append(elapsed_us)
                if slot.checked:
                    candidate.after_checked_run(result)
                del result
        self._warm_up.mark_busy()
        return by_candidate(len(candidates), slots, times_us)

    def _calls(self, candidate: Candidate, slot: Slot) -> Iterator[Callable[[], object]]:
        """The calls of a batch: an endless iterator."""
        copies = candidate.rotations if self.cache == "rotate" else ()
        if not copies:
            return itertools.repeat(slot.run)
        start = slot.number % len(copies)
        return itertools.cycle(copies[start:] + copies[:start])

    def _batches(self, candidates: Sequence[Candidate]) -> list[int]:
        """Calls per sample: equal for all candidates that could win.

        The first calls of a batch take longer, so a short batch has a larger mean than a long one:
        by 3 % for a product of 128^3 in batches of two and of four.
        """
        once_us = [self._once(candidate) for candidate in candidates]
        fastest_us = min(once_us)
        relevant_us = [us if us > _SLOW * fastest_us else fastest_us for us in once_us]
        return [max(1, math.ceil(self._min_batch_us / us)) for us in relevant_us]

    def _once(self, candidate: Candidate) -> float:
        """The fastest of three calls, in us."""
        if candidate not in self._once_us:
            candidate.enter()
            self._team.enter()
            calls = self._calls(candidate, Slot(0, 0, candidate.run))
            next(calls)()
            self._once_us[candidate] = min(self._time_batch(calls, 1)[0] for _ in range(3))
        return self._once_us[candidate]

    def _time_batch(
        self, calls: Iterator[Callable[[], object]], count: int
    ) -> tuple[float, object]:
        """Mean time of a call in us, and what the last one returned."""
        batch = list(itertools.islice(calls, count))
        for _ in range(_REPETITIONS + 1):
            before_us = self._team.waited_us()
            elapsed_us, result = _time_calls(batch)
            waited_us = self._team.waited_us() - before_us
            if waited_us <= _WAITED * elapsed_us or self._repeated > self._kept:
                break
            self._repeated += 1
        self._kept += 1
        return max(0.001, elapsed_us - self._overhead_us) / count, result


def _time_calls(calls: Sequence[Callable[[], object]]) -> tuple[float, object]:
    """How long all calls take, in us, and what the last one returned."""
    *others, last = calls
    start = time.perf_counter_ns()
    for run in others:
        run()
    result = last()
    return (time.perf_counter_ns() - start) / 1000, result
