"""The processor's performance counter; GPUs have `event_timer`, `graph_timer`, `cupti_timer`."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence

from workers.measure.duel import Contestant
from workers.measure.event_timer import EventTimer
from workers.measure.slots import (
    Slot,
    Warmth,
    by_contestant,
    no_garbage_collection,
    plan_slots,
)

__all__ = ["EventTimer", "PerfCounterTimer", "Warmth"]


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
        self._batches: dict[Contestant, int] = {}

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
            batches = [self._batch(contestant) for contestant in contestants]
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

    def _batch(self, contestant: Contestant) -> int:
        """Calls per sample, from the fastest of three calls.

        A power of two, so that contestants of about one speed are timed in equal batches.
        """
        if contestant not in self._batches:
            contestant.enter()
            calls = self._calls(contestant, Slot(0, 0, contestant.run))
            next(calls)()
            once_us = min(self._time_batch(calls, 1)[0] for _ in range(3))
            least = max(1, math.ceil(self._min_batch_us / once_us))
            self._batches[contestant] = 1 << (least - 1).bit_length()
        return self._batches[contestant]

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
