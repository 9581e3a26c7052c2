"""What is timed and by what, and passes of fixed length: the same for every kind of device.

Times are only ever compared inside one interleaved pass, whose order is rotated and reversed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


def _nothing(_: object = None) -> None:
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One thing to time: `run` does its work once (or enqueues it) on the shared buffers.

    enter: untimed switch to this candidate (threads on a CPU), before a block of its runs.
    prime, settle: right before and right after one run of a pass, chosen at random, and untimed;
    settle is given what the run returned.
    rotations: the same work on other copies of the inputs, the same copies in the same order for
    everybody, for the cache policy `rotate`.
    at_peak_us: what its arithmetic takes at the device's best rate; None when that is not known.
    """

    name: str
    run: Callable[[], object]
    enter: Callable[[], None] = field(default=_nothing)
    prime: Callable[[], None] = field(default=_nothing)
    settle: Callable[[object], None] = field(default=_nothing)
    rotations: tuple[Callable[[], object], ...] = ()
    at_peak_us: float | None = None


class Timer(Protocol):
    """A device kind's clock. `quantum_us` is its step; `method` and `cache` go into the record."""

    method: str
    cache: str
    quantum_us: float

    def warm(self, candidate: Candidate, warm_ms: float, *, steady: bool = False) -> float:
        """Bring clocks up by running the candidate, unless the device is still warm.

        steady: and go on until the device is in the state it will be in: its time no longer
        changes, or a power limit may have set in. Returns for how many seconds a comparison has to
        go on to see the whole swing of a clock under such a limit; 0.0 where there is none.
        """
        ...

    def collect(
        self, candidates: Sequence[Candidate], orders: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Times in us per candidate, in the candidates' order, each in order of its runs.

        orders: for each pass, positions of candidates in the order they are to run; a pass may
        leave some out and name others repeatedly.
        """
        ...


def race_orders(count: int, rounds: int, first: int = 0) -> list[list[int]]:
    """Orders of the rounds `first` .. `first + rounds` of a field: rotated, then reversed.

    Over 2 x count rounds everyone runs in every position equally often, and follows every
    neighbour from both sides.
    """
    orders = []
    for position in range(first, first + rounds):
        shift = position // 2 % count
        order = [(shift + step) % count for step in range(count)]
        orders.append(order if position % 2 == 0 else order[::-1])
    return orders


def run_race(
    timer: Timer, candidates: Sequence[Candidate], rounds: int, warm_ms: float
) -> list[list[float]]:
    """Samples in us per candidate over `rounds` interleaved rounds (at least 2)."""
    if not candidates:
        return []
    timer.warm(candidates[0], warm_ms, steady=True)
    return timer.collect(candidates, race_orders(len(candidates), max(2, rounds)))
