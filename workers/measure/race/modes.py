"""Which rule takes the samples of a job: by its mode."""

from __future__ import annotations

from collections.abc import Sequence

from workers.measure.race.confirmation import confirm
from workers.measure.race.elimination import race
from workers.measure.race.screening import screen
from workers.measure.timers.timer import Candidate, Timer
from workers.records import MeasurementProtocol, Mode


def collect_samples(
    mode: Mode,
    timer: Timer,
    candidates: Sequence[Candidate],
    protocol: MeasurementProtocol,
    *,
    incumbent: bool = False,
) -> list[list[float]]:
    """Samples in us per candidate. incumbent: the last one is the incumbent of a screening."""
    if mode is Mode.CONFIRM:
        entries = confirm(timer, candidates, protocol)
    elif mode is Mode.RACE:
        entries = race(timer, candidates, protocol)
    elif incumbent:
        entries = screen(timer, candidates[:-1], candidates[-1], protocol)
    else:
        entries = screen(timer, candidates, None, protocol)
    return [entry.samples_us for entry in entries]
