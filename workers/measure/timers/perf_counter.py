"""The processor's performance counter; GPUs have `event_timer`, `graph_timer`, `cupti_timer`."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence

from workers.measure.race.interleaving import Candidate
from workers.measure.timers.events import EventTimer
from workers.measure.timers.slots import (
    Slot,
    Warmth,
    by_candidate,
    no_garbage_collection,
    plan_slots,
)

__all__ = ["EventTimer", "PerfCounterTimer", "Warmth"]

#: Who takes so many times as long as the fastest wins nothing by the length of its batches.
_HOPELESS = 4.0


class PerfCounterTimer:
    """Wall time of calls on the CPU, each sample the mean of a batch of at least `min_batch_us`.

    Caches are warm: a batch repeats the call on the same buffers, unless `cache` is `rotate`, when
    each call takes the next of its candidate's copies. overhead_us: what reading the clock adds
    to a batch.
    """

    method = "perf_counter"

    def __init__(
        self,
        min_batch_us: float,
        warmth: Warmth,
        overhead_us: float = 0.0,
        cache: str = "warm",
        quantum_us: float = 0.0,
    ) -> None:
        self.cache = cache
        self.quantum_us = quantum_us
        self._min_batch_us = min_batch_us
        self._overhead_us = overhead_us
        self._warmth = warmth
        self._once_us: dict[Candidate, float] = {}

    def warm(self, candidate: Candidate, warm_ms: float, *, steady: bool = False) -> float:
        candidate.enter()
        self._warmth.run(candidate.run, warm_ms)
        return 0.0

    def collect(
        self, candidates: Sequence[Candidate], orders: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        slots = plan_slots(candidates, orders)
        times_us = []
        with no_garbage_collection():
            batches = self._batches(candidates)
            for slot in slots:
                candidate = candidates[slot.candidate]
                candidate.enter()
                calls = self._calls(candidate, slot)
                if len(candidates) > 1:
                    next(calls)()
                if slot.settles:
                    candidate.prime()
                elapsed_us, result = self._time_batch(calls, batches[slot.candidate])
                times_us.append(elapsed_us)
                if slot.settles:
                    candidate.settle(result)
                del result
        self._warmth.touch()
        return by_candidate(len(candidates), slots, times_us)

    def _calls(self, candidate: Candidate, slot: Slot) -> Iterator[Callable[[], object]]:
        """What the calls of a batch do, without end."""
        copies = candidate.rotations if self.cache == "rotate" else ()
        if not copies:
            return itertools.repeat(slot.run)
        start = slot.number % len(copies)
        return itertools.cycle(copies[start:] + copies[:start])

    def _batches(self, candidates: Sequence[Candidate]) -> list[int]:
        """Calls per sample: as many for all that could win, however their first calls went.

        The first calls of a batch take longer, so the mean of a short batch is above that of a long
        one: by 3 % for a product of 128^3 in batches of two and of four.
        """
        once_us = [self._once(candidate) for candidate in candidates]
        fastest_us = min(once_us)
        judged_us = [us if us > _HOPELESS * fastest_us else fastest_us for us in once_us]
        return [max(1, math.ceil(self._min_batch_us / us)) for us in judged_us]

    def _once(self, candidate: Candidate) -> float:
        """The fastest of three calls, in us."""
        if candidate not in self._once_us:
            candidate.enter()
            calls = self._calls(candidate, Slot(0, 0, candidate.run))
            next(calls)()
            self._once_us[candidate] = min(self._time_batch(calls, 1)[0] for _ in range(3))
        return self._once_us[candidate]

    def _time_batch(
        self, calls: Iterator[Callable[[], object]], count: int
    ) -> tuple[float, object]:
        """Mean time of a call in us, and what the last one returned."""
        batch = list(itertools.islice(calls, count))
        last = batch.pop()
        start = time.perf_counter_ns()
        for run in batch:
            run()
        result = last()
        elapsed_us = (time.perf_counter_ns() - start) / 1000
        return max(0.001, elapsed_us - self._overhead_us) / count, result
