"""The base class of the GPU timers: warming up, the L2 flush, overhead correction."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workers.measure.timers.slots import Slot, plan_slots
from workers.measure.timers.timer import Candidate, WarmUp

if TYPE_CHECKING:
    import torch

#: Resolution of an H200's events; a calibration measures it on other devices.
DEFAULT_QUANTUM_US = 0.032

_SPIN_CYCLES_PER_US = 2000
LONGEST_SPIN_US = 50_000
#: A device is steady when this many blocks in a row change by less than this share.
_STEADY_CHANGE, _STEADY_BLOCKS = 0.005, 3
_STEADY_BLOCK_US, _STEADY_LIMIT_S = 10_000, 0.5
#: After short jobs an H200 runs matmuls at its full clock for 0.04 to 0.11 s; then its power limit
#: lowers the clock, and times vary by up to 10 % and ratios by 1 % within 0.2 s
#: (benchmarks/results/h200/power_cap.json).
_LOAD_S, _THROTTLING_WINDOW_S = 0.15, 0.2
#: Power throttling is expected where the arithmetic takes more than this share of the time at the
#: matrix peak. Memory traffic alone stays below the power limit.
_THROTTLING_SHARE = 0.1


class GpuTimer:
    """What the timers of a GPU have in common.

    flush: a buffer of twice the last-level cache, zeroed before every run under the cache policy
    `cold`; None flushes nothing. overhead_us: the calibrated difference between a reading and the
    kernel's own time; it is subtracted from every sample.
    """

    def __init__(
        self,
        flush: torch.Tensor | None,
        warm_up: WarmUp,
        overhead_us: float = 0.0,
        cache: str | None = None,
        quantum_us: float = DEFAULT_QUANTUM_US,
    ) -> None:
        self.cache = cache or ("warm" if flush is None else "cold")
        self.quantum_us = quantum_us
        self._flush = flush if self.cache == "cold" else None
        self._overhead_us = overhead_us
        self._warm_up = warm_up
        self._pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def warm(self, candidate: Candidate, warm_ms: float, *, steady: bool = False) -> float:
        import torch

        runs = 1

        def block() -> None:
            nonlocal runs
            for _ in range(runs):
                candidate.run()
            torch.cuda.synchronize()
            runs = min(8, 2 * runs)

        candidate.enter()
        self._warm_up.run(block, warm_ms)
        return self._run_until_steady(candidate) if steady and warm_ms > 0 else 0.0

    def _run_until_steady(self, candidate: Candidate) -> float:
        """Run in blocks of 10 ms, as the candidate will be timed, until three take equally long.

        A run that takes longer than 10 ms is a block.

        A candidate that may be throttled runs for a fixed time instead: its times are steady before
        the power limit takes effect, too.
        """
        import torch

        start, stop = event_pairs([], 1)[0]
        runs, last_us, steady_blocks, throttles = 1, 0.0, 0, True
        began = time.monotonic()
        while time.monotonic() < began + (_LOAD_S if throttles else _STEADY_LIMIT_S):
            start.record()
            for _ in range(runs):
                self._flush_cache()
                candidate.run()
            stop.record()
            torch.cuda.synchronize()
            each_us = max(start.elapsed_time(stop) * 1000 / runs, 0.1)
            change = abs(each_us / last_us - 1 if last_us else 1)
            steady_blocks = steady_blocks + 1 if change < _STEADY_CHANGE else 0
            runs, last_us = max(1, min(4096, int(_STEADY_BLOCK_US / each_us))), each_us
            throttles = _may_throttle(candidate, each_us)
            if steady_blocks >= _STEADY_BLOCKS and not throttles:
                break
        self._warm_up.mark_busy()
        return _THROTTLING_WINDOW_S if throttles else 0.0

    def _plan(self, candidates: Sequence[Candidate], orders: Sequence[Sequence[int]]) -> list[Slot]:
        return plan_slots(candidates, orders, rotate=self.cache == "rotate")

    def _flush_cache(self) -> None:
        if self._flush is not None:
            self._flush.zero_()

    def _correct(self, raw_us: float) -> float:
        """A reading without the overhead; at least one quantum, whatever was calibrated."""
        return max(raw_us - self._overhead_us, self.quantum_us)


def spin(us: float) -> None:
    """Keep the device busy for about `us`, up to 50 ms."""
    import torch

    cycles = int(min(us, LONGEST_SPIN_US) * _SPIN_CYCLES_PER_US)
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def event_pairs(
    known: list[tuple[torch.cuda.Event, torch.cuda.Event]], count: int, *, external: bool = False
) -> list[tuple[torch.cuda.Event, torch.cuda.Event]]:
    """The first `count` of the known pairs of timing events; makes those that are missing."""
    import torch

    def event() -> torch.cuda.Event:
        made: torch.cuda.Event = torch.cuda.Event(enable_timing=True, external=external)  # type: ignore[no-untyped-call]
        return made

    while len(known) < count:
        known.append((event(), event()))
    return known[:count]


def _may_throttle(candidate: Candidate, each_us: float) -> bool:
    """Whether repeated runs of `each_us` may bring the device to its power limit."""
    return candidate.at_peak_us is None or candidate.at_peak_us > _THROTTLING_SHARE * each_us
