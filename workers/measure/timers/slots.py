"""The timed runs of a `Timer.collect` call, in their order, and their times per candidate."""

from __future__ import annotations

import gc
import itertools
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from workers.measure.timers.timer import Candidate


@dataclass(frozen=True, slots=True)
class Slot:
    """One timed run."""

    #: How many slots of the same `collect` precede it.
    number: int
    #: Position of its candidate.
    candidate: int
    #: The candidate's work, on the copy of the buffers that is due.
    run: Callable[[], object]
    #: Whether the outputs of this run are checked; true for one run per candidate.
    checked: bool = False


def plan_slots(
    candidates: Sequence[Candidate], orders: Sequence[Sequence[int]], *, rotate: bool = False
) -> list[Slot]:
    """The runs of the orders, one after the other.

    With `rotate`, slot n uses copy n modulo the number of copies, whichever candidate runs:
    adjacent runs share no buffers, and all candidates use the copies in one order. The checked run
    of each candidate is drawn from the system's random numbers, which a variant cannot predict.
    """
    flat = [position for order in orders for position in order]
    runs_until_checked = {at: secrets.randbelow(runs) for at, runs in Counter(flat).items()}
    slots = []
    for number, position in enumerate(flat):
        copies = candidates[position].rotations if rotate else ()
        run = copies[number % len(copies)] if copies else candidates[position].run
        slots.append(Slot(number, position, run, checked=runs_until_checked[position] == 0))
        runs_until_checked[position] -= 1
    return slots


def chunks(slots: Sequence[Slot], most: int) -> Iterator[Sequence[Slot]]:
    """The slots in their order, at most `most` at a time, in parts of about equal size."""
    parts = math.ceil(len(slots) / most)
    bounds = [len(slots) * part // max(1, parts) for part in range(parts + 1)]
    for low, high in itertools.pairwise(bounds):
        yield slots[low:high]


def by_candidate(count: int, slots: Sequence[Slot], times_us: Sequence[float]) -> list[list[float]]:
    """The times of the slots, per candidate in the order of its runs."""
    samples: list[list[float]] = [[] for _ in range(count)]
    for slot, time_us in zip(slots, times_us, strict=True):
        samples[slot.candidate].append(time_us)
    return samples


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection during timed loops and graph captures."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
