"""The clocks: a processor's performance counter and a GPU's events."""

from __future__ import annotations

import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from workers.measure.duel import Contestant

if TYPE_CHECKING:
    import torch

#: a device left alone for longer has lowered its clock
_IDLE_S = 0.05


class Warmth:
    """When the device last worked, and how it is brought back to its clock."""

    def __init__(self) -> None:
        self._worked_at = -math.inf

    def touch(self) -> None:
        """Note that the device has just worked."""
        self._worked_at = time.monotonic()

    def run(self, block: Callable[[], object], warm_ms: float) -> None:
        """Run the block until `warm_ms` have passed, unless the device worked a moment ago."""
        if time.monotonic() - self._worked_at < _IDLE_S:
            return
        end = time.monotonic() + warm_ms / 1000
        while time.monotonic() < end:
            block()
        self.touch()


class PerfCounterTimer:
    """Wall time of calls on the CPU, each sample the mean of a batch of at least `min_batch_us`.

    Caches are warm: a batch repeats the call on the same buffers.
    """

    method = "perf_counter"
    cache = "warm"
    quantum_us = 0.0

    def __init__(self, min_batch_us: float, warmth: Warmth) -> None:
        self._min_batch_us = min_batch_us
        self._warmth = warmth
        self._batches: dict[Contestant, int] = {}

    def warm(self, contestant: Contestant, warm_ms: float) -> None:
        contestant.enter()
        self._warmth.run(contestant.run, warm_ms)

    def collect(
        self, contestants: Sequence[Contestant], orders: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        samples: list[list[float]] = [[] for _ in contestants]
        with _no_garbage_collection():
            batches = [self._batch(contestant) for contestant in contestants]
            for order in orders:
                for index in order:
                    contestant = contestants[index]
                    contestant.enter()
                    if len(contestants) > 1:
                        contestant.run()
                    elapsed_us, result = _time_batch(contestant.run, batches[index])
                    samples[index].append(elapsed_us)
                    if len(samples[index]) == len(orders):
                        contestant.settle(result)
                    del result
        self._warmth.touch()
        return samples

    def _batch(self, contestant: Contestant) -> int:
        """Calls per sample, from the fastest of three calls.

        A power of two, so that contestants of about one speed are timed in equal batches.
        """
        if contestant not in self._batches:
            contestant.enter()
            contestant.run()
            once_us = min(_time_batch(contestant.run, 1)[0] for _ in range(3))
            calls = max(1, math.ceil(self._min_batch_us / once_us))
            self._batches[contestant] = 1 << (calls - 1).bit_length()
        return self._batches[contestant]


class EventTimer:
    """Pairs of CUDA (or HIP) events around each launch, queued whole and synchronised once.

    With `flush` (a buffer of twice the last-level cache) every launch finds cold caches, and the
    memset hides the host's launch time; without it a spin kernel at the head of the queue does. An
    event pair reads 2.3 to 2.9 us more than the kernel takes on an H200, whatever the kernel.
    """

    method = "events"
    quantum_us = 0.032

    _HOST_US_PER_LAUNCH = 60
    _SPIN_CYCLES_PER_US = 2000
    _LONGEST_SPIN_US = 50_000

    def __init__(self, flush: torch.Tensor | None, warmth: Warmth) -> None:
        self.cache = "warm" if flush is None else "cold"
        self._flush = flush
        self._events: list[torch.cuda.Event] = []
        self._warmth = warmth

    def warm(self, contestant: Contestant, warm_ms: float) -> None:
        import torch

        def block() -> None:
            for _ in range(8):
                contestant.run()
            torch.cuda.synchronize()

        contestant.enter()
        self._warmth.run(block, warm_ms)

    def collect(
        self, contestants: Sequence[Contestant], orders: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        import torch

        launches = len(orders) * len(contestants)
        starts, stops = self._event_pairs(launches)
        samples: list[list[float]] = [[] for _ in contestants]
        with _no_garbage_collection():
            self._get_ahead(launches)
            left = [len(orders)] * len(contestants)
            for slot, index in enumerate(itertools.chain.from_iterable(orders)):
                contestant = contestants[index]
                contestant.enter()
                if self._flush is not None:
                    self._flush.zero_()
                starts[slot].record()
                result = contestant.run()
                stops[slot].record()
                left[index] -= 1
                if not left[index]:
                    contestant.settle(result)
                del result
            torch.cuda.synchronize()
        for slot, index in enumerate(itertools.chain.from_iterable(orders)):
            samples[index].append(starts[slot].elapsed_time(stops[slot]) * 1000)
        self._warmth.touch()
        return samples

    def _get_ahead(self, launches: int) -> None:
        """Keep the device busy until the host has a lead, so that no launch time is measured."""
        import torch

        if self._flush is None:
            lead_us = min(launches * self._HOST_US_PER_LAUNCH, self._LONGEST_SPIN_US)
        else:
            lead_us = 4 * self._HOST_US_PER_LAUNCH
        torch.cuda._sleep(lead_us * self._SPIN_CYCLES_PER_US)  # type: ignore[no-untyped-call]

    def _event_pairs(self, count: int) -> tuple[list[torch.cuda.Event], list[torch.cuda.Event]]:
        import torch

        while len(self._events) < 2 * count:
            self._events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        return self._events[:count], self._events[count : 2 * count]


def _time_batch(run: Callable[[], object], calls: int) -> tuple[float, object]:
    """Mean time of a call in us, and what the last one returned."""
    start = time.perf_counter_ns()
    for _ in itertools.repeat(None, calls - 1):
        run()
    result = run()
    return max(1, time.perf_counter_ns() - start) / 1000 / calls, result


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
