"""Pairs of events around launches; and what the clocks of a GPU have in common."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workers.measure.race.interleaving import Candidate
from workers.measure.timers.slots import (
    Slot,
    Warmth,
    by_candidate,
    chunks,
    no_garbage_collection,
    plan_slots,
)

if TYPE_CHECKING:
    import torch

#: the step of an H200's events; a calibration says it for other devices
DEFAULT_QUANTUM_US = 0.032

_SPIN_CYCLES_PER_US = 2000
_LONGEST_SPIN_US = 50_000
#: steady is what changes by less than this from block to block, so often in a row
_CALM, _CALM_BLOCKS = 0.005, 3
_STEADY_BLOCK_US, _STEADY_CAP_S = 20_000, 0.5
#: an H200 that comes from a search runs matmuls at its full clock for 0.04 to 0.11 s before its
#: power limit takes hold; from then on times swing by up to 10 % within 0.2 s, ratios by 1 %
#: (benchmarks/results/h200/power_cap.json)
_HEAT_S, _SWING_S = 0.25, 0.2
#: a limit is to be reckoned with from this share of the peak on; memory traffic alone does not
#: reach it
_HOT_SHARE = 0.1


class GpuClock:
    """What the clocks of a GPU have in common.

    flush: a buffer of twice the last-level cache, zeroed before every run for the cache policy
    `cold`; None flushes nothing. overhead_us: what the clock reads beyond the time of a kernel; it
    is taken off every sample.
    """

    def __init__(
        self,
        flush: torch.Tensor | None,
        warmth: Warmth,
        overhead_us: float = 0.0,
        cache: str | None = None,
        quantum_us: float = DEFAULT_QUANTUM_US,
    ) -> None:
        self.cache = cache or ("warm" if flush is None else "cold")
        self.quantum_us = quantum_us
        self._flush = flush if self.cache == "cold" else None
        self._overhead_us = overhead_us
        self._warmth = warmth
        self._pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def warm(self, candidate: Candidate, warm_ms: float, *, steady: bool = False) -> float:
        import torch

        def block() -> None:
            for _ in range(8):
                candidate.run()
            torch.cuda.synchronize()

        candidate.enter()
        self._warmth.run(block, warm_ms)
        return self._steady(candidate) if steady and warm_ms > 0 else 0.0

    def _steady(self, candidate: Candidate) -> float:
        """Run as it will be timed, in blocks of 20 ms, until three in a row take equally long.

        What may meet a power limit has run long enough for it instead: before, it is calm too.
        """
        import torch

        start, stop = event_pairs([], 1)[0]
        runs, last_us, calm, hot = 8, 0.0, 0, True
        began = time.monotonic()
        while time.monotonic() < began + (_HEAT_S if hot else _STEADY_CAP_S):
            start.record()
            for _ in range(runs):
                self._evict()
                candidate.run()
            stop.record()
            torch.cuda.synchronize()
            each_us = max(start.elapsed_time(stop) * 1000 / runs, 0.1)
            calm = calm + 1 if abs(each_us / last_us - 1 if last_us else 1) < _CALM else 0
            runs, last_us = max(4, min(4096, int(_STEADY_BLOCK_US / each_us))), each_us
            hot = _is_hot(candidate, each_us)
            if calm >= _CALM_BLOCKS and not hot:
                break
        self._warmth.touch()
        return _SWING_S if hot else 0.0

    def _plan(self, candidates: Sequence[Candidate], orders: Sequence[Sequence[int]]) -> list[Slot]:
        return plan_slots(candidates, orders, rotate=self.cache == "rotate")

    def _evict(self) -> None:
        if self._flush is not None:
            self._flush.zero_()

    def _corrected(self, raw_us: float) -> float:
        """A sample without the clock's own share; never nothing, whatever was calibrated."""
        return max(raw_us - self._overhead_us, self.quantum_us)


class EventTimer(GpuClock):
    """Pairs of CUDA (or HIP) events around each launch, queued and synchronised in blocks.

    A spin kernel at the head of a block gives the host a lead, so that no launch time is measured;
    a block in which the device caught up with the host is timed again behind a longer one. With a
    flush every launch finds cold caches. Uncorrected, an event pair reads 2.3 to 2.9 us more than
    the kernel takes on an H200, whatever the kernel.
    """

    method = "events"

    _BLOCK = 128
    _TRIES = 3
    _LEAD_US = 240.0
    _LAUNCH_US = 60.0
    _SLACK = 1.5
    #: host time of a launch, from the last block
    _host_us = 40.0

    def collect(
        self, candidates: Sequence[Candidate], orders: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        slots = self._plan(candidates, orders)
        times_us: list[float] = []
        with no_garbage_collection():
            for block in chunks(slots, self._BLOCK):
                times_us += self._time(candidates, block)
        self._warmth.touch()
        return by_candidate(len(candidates), slots, times_us)

    def _time(self, candidates: Sequence[Candidate], block: Sequence[Slot]) -> list[float]:
        """Times of a block whose launches were all hidden, as far as a lead can hide them."""
        import torch

        pairs = event_pairs(self._pairs, len(block))
        lead_us = min(self._LEAD_US, self._LAUNCH_US * len(block))
        if self._flush is None:
            lead_us += self._SLACK * self._host_us * len(block)
        settled: set[int] = set()
        for attempt in range(self._TRIES):
            spin(lead_us)
            started = time.perf_counter()
            last = attempt == self._TRIES - 1 or lead_us >= _LONGEST_SPIN_US
            exposed = self._enqueue(candidates, block, settled, last=last)
            host_us = (time.perf_counter() - started) * 1e6
            torch.cuda.synchronize()
            self._host_us = host_us / len(block)
            if last or not exposed:
                break
            lead_us = min(_LONGEST_SPIN_US, self._LEAD_US + self._SLACK * host_us)
        return [self._corrected(start.elapsed_time(stop) * 1000) for start, stop in pairs]

    def _enqueue(
        self,
        candidates: Sequence[Candidate],
        block: Sequence[Slot],
        settled: set[int],
        *,
        last: bool,
    ) -> bool:
        """Queue a block; whether the device reached a launch before the host was done with it.

        Who is to settle does so once, after a launch that was not exposed or in the last attempt.
        """
        import torch

        any_exposed = False
        stream = torch.cuda.current_stream()
        for slot, (start, stop) in zip(block, self._pairs, strict=False):
            candidate = candidates[slot.candidate]
            candidate.enter()
            if slot.settles:
                candidate.prime()
            self._evict()
            start.record(stream)
            result = slot.run()
            stop.record(stream)
            exposed = start.query()  # type: ignore[no-untyped-call]
            any_exposed |= exposed
            if slot.settles and slot.number not in settled and (last or not exposed):
                settled.add(slot.number)
                candidate.settle(result)
            del result
        return any_exposed


def spin(us: float) -> None:
    """Keep the device busy for about that long, up to 50 ms."""
    import torch

    cycles = int(min(us, _LONGEST_SPIN_US) * _SPIN_CYCLES_PER_US)
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def event_pairs(
    known: list[tuple[torch.cuda.Event, torch.cuda.Event]], count: int, *, external: bool = False
) -> list[tuple[torch.cuda.Event, torch.cuda.Event]]:
    """The first `count` of the known pairs of timing events, which grow as needed."""
    import torch

    def event() -> torch.cuda.Event:
        made: torch.cuda.Event = torch.cuda.Event(enable_timing=True, external=external)  # type: ignore[no-untyped-call]
        return made

    while len(known) < count:
        known.append((event(), event()))
    return known[:count]


def _is_hot(candidate: Candidate, each_us: float) -> bool:
    """Whether a device that does this again and again may come to its power limit."""
    return candidate.at_peak_us is None or candidate.at_peak_us > _HOT_SHARE * each_us
