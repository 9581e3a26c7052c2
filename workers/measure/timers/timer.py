"""The two roles of timing: a `Candidate`, which is timed, and a `Timer`, which times it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


def _nothing(_: object = None) -> None:
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One function to time. All candidates of a job work on the same buffers."""

    name: str
    #: Does the work once, or enqueues it on the device.
    run: Callable[[], object]
    #: Untimed switch to this candidate, such as its thread count; called before its runs.
    enter: Callable[[], None] = field(default=_nothing)
    #: Untimed; called right before the one run of a pass whose outputs are checked.
    before_checked_run: Callable[[], None] = field(default=_nothing)
    #: Untimed; called right after that run with the value that it returned.
    after_checked_run: Callable[[object], None] = field(default=_nothing)
    #: The same work on other copies of the inputs, for the cache policy `rotate`. All candidates
    #: have the same copies in the same order.
    rotations: tuple[Callable[[], object], ...] = ()
    #: Whether it is a baseline, whose ratio may be known less precisely than that of a variant.
    baseline: bool = False
    #: Time in us of its arithmetic at the device's matrix peak; None when the peak is unknown.
    at_peak_us: float | None = None


class Timer(Protocol):
    """One method of timing on one device."""

    #: Name of the method; stored with every measurement.
    method: str
    #: Cache policy under which runs are timed; stored with every measurement.
    cache: str
    #: Resolution of the clock in us.
    quantum_us: float

    def warm(self, candidate: Candidate, warm_ms: float, *, steady: bool = False) -> float:
        """Run the candidate until clocks are up, unless the device is still warm.

        steady: continue until the time of a run no longer changes or a power limit may be
        active. Returns how many seconds a comparison must last so that it averages over the clock
        changes of power throttling; 0.0 where there are none.
        """
        ...

    def collect(
        self, candidates: Sequence[Candidate], orders: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Times in us: one list per candidate, in the order of its runs.

        orders: one list of candidate positions per pass. A pass may omit a candidate or repeat it.
        """
        ...


# -- warming up: run a candidate until the device is at its working clock --------------------------
#: A device that was idle for longer has lowered its clock.
_IDLE_S = 0.05


class WarmUp:
    """Knows when the device last worked, so that a warm device is not warmed again."""

    def __init__(self) -> None:
        self._busy_at = -math.inf

    def mark_busy(self) -> None:
        """Record that the device has just worked."""
        self._busy_at = time.monotonic()

    def run(self, block: Callable[[], object], warm_ms: float) -> None:
        """Repeat the block until `warm_ms` have passed, unless the device has just worked."""
        if time.monotonic() - self._busy_at < _IDLE_S:
            return
        end = time.monotonic() + warm_ms / 1000
        while time.monotonic() < end:
            block()
        self.mark_busy()
