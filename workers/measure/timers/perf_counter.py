"""The processor's performance counter; GPUs have `event_timer`, `graph_timer`, `cupti_timer`."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence

from workers.measure.race.interleaving import Contestant
from workers.measure.timers.events import EventTimer
from workers.measure.timers.slots import (
    Slot,
    Warmth,
    by_contestant,
    no_garbage_collection,
    plan_slots,
)

__all__ = ["EventTimer", "PerfCounterTimer", "Warmth"]

#: Who takes so many times as long as the fastest wins nothing by the length of its batches.
_HOPELESS = 4.0


class PerfCounterTimer:
    """Wall time of calls on the CPU, each sample the mean of a batch of at least `min_batch_us`.

    Caches are warm: a batch repeats the call on the same buffers, unless `cache` is `rotate`, when
    each call takes the next of its contestant's copies. overhead_us: what reading the clock adds
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
        self._once_us: dict[Contestant, float] = {}

    def warm(self, contestant: Contestant, warm_ms: float, *, steady: bool = False) -> float:
        contestant.enter()
        self._warmth.run(contestant.run, warm_ms)
        return 0.0

    def collect(
        self, contestants: Sequence[Contestant], orders: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        slots = plan_slots(contestants, orders)
        times_us = []
        with no_garbage_collection():
            batches = self._batches(contestants)
            for slot in slots:
                contestant = contestants[slot.contestant]
                contestant.enter()
                calls = self._calls(contestant, slot)
                if len(contestants) > 1:
                    next(calls)()
                if slot.settles:
                    contestant.prime()
                elapsed_us, result = self._time_batch(calls, batches[slot.contestant])
                times_us.append(elapsed_us)
                if slot.settles:
                    contestant.settle(result)
                del result
        self._warmth.touch()
        return by_contestant(len(contestants), slots, times_us)

    def _calls(self, contestant: Contestant, slot: Slot) -> Iterator[Callable[[], object]]:
        """What the calls of a batch do, without end."""
        copies = contestant.rotations if self.cache == "rotate" else ()
        if not copies:
            return itertools.repeat(slot.run)
        start = slot.number % len(copies)
        return itertools.cycle(copies[start:] + copies[:start])

    def _batches(self, contestants: Sequence[Contestant]) -> list[int]:
        """Calls per sample: as many for all that could win, however their first calls went.

        The first calls of a batch take longer, so the mean of a short batch is above that of a long
        one: by 3 % for a product of 128^3 in batches of two and of four.
        """
        once_us = [self._once(contestant) for contestant in contestants]
        fastest_us = min(once_us)
        judged_us = [us if us > _HOPELESS * fastest_us else fastest_us for us in once_us]
        return [max(1, math.ceil(self._min_batch_us / us)) for us in judged_us]

    def _once(self, contestant: Contestant) -> float:
        """The fastest of three calls, in us."""
        if contestant not in self._once_us:
            contestant.enter()
            calls = self._calls(contestant, Slot(0, 0, contestant.run))
            next(calls)()
            self._once_us[contestant] = min(self._time_batch(calls, 1)[0] for _ in range(3))
        return self._once_us[contestant]

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
