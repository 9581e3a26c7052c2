"""What every clock needs: which run is timed when, whose is looked at, and a warm device."""

from __future__ import annotations

import gc
import itertools
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from workers.measure.race.interleaving import Candidate

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


@dataclass(frozen=True, slots=True)
class Slot:
    """One timed run: `candidate` is a position, `run` its work, on the copy whose turn it is.

    number: how many slots of the same `collect` came before. settles: this run, of all those of
    its candidate, is the one to look at.
    """

    number: int
    candidate: int
    run: Callable[[], object]
    settles: bool = False


def plan_slots(
    candidates: Sequence[Candidate], orders: Sequence[Sequence[int]], *, rotate: bool = False
) -> list[Slot]:
    """The runs of the orders, one after the other.

    With `rotate`, slot n takes copy n modulo the number of copies, whoever runs: no two neighbours
    share buffers, and all candidates go through the copies in one order. Which of its runs a
    candidate must answer for is drawn from the system's secret random numbers.
    """
    flat = [position for order in orders for position in order]
    looked_at = {who: secrets.randbelow(runs) for who, runs in Counter(flat).items()}
    slots = []
    for number, who in enumerate(flat):
        copies = candidates[who].rotations if rotate else ()
        run = copies[number % len(copies)] if copies else candidates[who].run
        slots.append(Slot(number, who, run, settles=looked_at[who] == 0))
        looked_at[who] -= 1
    return slots


def chunks(slots: Sequence[Slot], most: int) -> Iterator[Sequence[Slot]]:
    """The slots in their order, at most `most` at a time, in parts of about equal size."""
    parts = math.ceil(len(slots) / most)
    bounds = [len(slots) * part // max(1, parts) for part in range(parts + 1)]
    for low, high in itertools.pairwise(bounds):
        yield slots[low:high]


def by_candidate(count: int, slots: Sequence[Slot], times_us: Sequence[float]) -> list[list[float]]:
    """The times of the slots, per candidate in order of its runs."""
    samples: list[list[float]] = [[] for _ in range(count)]
    for slot, time_us in zip(slots, times_us, strict=True):
        samples[slot.candidate].append(time_us)
    return samples


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep the garbage collector out of the timed loop and of captures."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
