"""Who is timed how often: screening of candidates, and the race that settles who is fastest.

Successive elimination on paired log-ratios with a union bound over looks and candidates, as for
(epsilon, delta)-best arms (Even-Dar, Mannor and Mansour, JMLR 7, 2006). Times are only ever
compared inside one interleaved pass: what a pass shares, drift and clocks, cancels.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from workers.measure.race.interleaving import Candidate, Timer, race_orders
from workers.measure.race.statistics import paired, trimmed_mean
from workers.records import MeasurementProtocol, Mode

#: the incumbent runs once for so many candidates of a pass
_PER_INCUMBENT = 8
#: a confirmation takes its passes so often at most, for those this close to the first, in ln
_CONFIRM_TURNS, _CLOSE = 8, 0.05
#: screening follows every few builds, and decides by margins no clock on its way up can bridge
_SCREEN_WARM_MS = 20.0
#: how far, in ln, a swing of the clock moves ratios (event_timer.py)
_SWUNG = 0.01
#: up to so many samples a candidate is judged by its fastest, which no outlier can raise
_BY_FASTEST = 3


@dataclass(slots=True)
class Series:
    """The samples of one candidate, one per pass from the first on, and whether it is still in."""

    candidate: Candidate
    samples_us: list[float] = field(default_factory=list)
    alive: bool = True


def samples_of(
    mode: Mode,
    timer: Timer,
    candidates: Sequence[Candidate],
    constants: MeasurementProtocol,
    *,
    incumbent: bool = False,
) -> list[list[float]]:
    """Samples in us per candidate, taken as the mode asks.

    incumbent: the last one is the incumbent of a screening.
    """
    if mode is Mode.CONFIRM:
        all_series = confirm(timer, candidates, constants)
    elif mode is Mode.RACE:
        all_series = race(timer, candidates, constants)
    elif incumbent:
        all_series = screen(timer, candidates[:-1], candidates[-1], constants)
    else:
        all_series = screen(timer, candidates, None, constants)
    return [series.samples_us for series in all_series]


def screen(
    timer: Timer,
    candidates: Sequence[Candidate],
    incumbent: Candidate | None,
    constants: MeasurementProtocol,
) -> list[Series]:
    """Samples of the candidates and, last, of the incumbent.

    At each of the checkpoints `constants.pairs` (samples per candidate so far) those are dropped
    that cannot be the best of the field: after one sample beyond `cap`, up to three beyond `near`
    by their fastest sample, later beyond `hopeless` with confidence, union-bounded over looks and
    candidates. The incumbent's sample of a pass is the median of its runs in that pass.
    """
    if not candidates:
        return []
    field_ = [*candidates, *([incumbent] if incumbent is not None else [])]
    all_series = [Series(candidate) for candidate in field_]
    timer.warm(field_[-1], min(_SCREEN_WARM_MS, constants.warm_ms))
    taken = 0
    checkpoints = sorted({max(1, pairs) for pairs in constants.pairs})
    for look, checkpoint in enumerate(checkpoints):
        racing = [series for series in all_series if series.alive]
        _passes(timer, racing, incumbent, taken, checkpoint - taken)
        taken = checkpoint
        if look + 1 == len(checkpoints):
            break
        _drop_hopeless(racing, incumbent, len(checkpoints), constants, timer.quantum_us)
        if all(not series.alive or series.candidate is incumbent for series in all_series):
            break
    return all_series


def race(
    timer: Timer, candidates: Sequence[Candidate], constants: MeasurementProtocol
) -> list[Series]:
    """Samples of a field that is raced until its best is known; who is slower leaves early.

    A round is `round_pairs` passes over those still in. After it everyone is dropped who is slower
    than the leader with confidence; the race is over when none of the rest can be faster than the
    leader by more than `epsilon` and a swing of the clock was seen, or after `rounds`. All
    decisions together are wrong with a probability of at most `delta`.
    """
    all_series = [Series(candidate) for candidate in candidates]
    if not all_series:
        return []
    swung_at = timer.warm(candidates[0], constants.warm_ms, steady=True) + time.monotonic()
    for turn in range(constants.rounds):
        racing = [series for series in all_series if series.alive]
        orders = race_orders(len(racing), constants.round_pairs, turn * constants.round_pairs)
        times = timer.collect([series.candidate for series in racing], orders)
        for series, more in zip(racing, times, strict=True):
            series.samples_us += more
        slack = 0.0 if time.monotonic() >= swung_at else _SWUNG
        if len(racing) == 1 or _settled(racing, constants, timer.quantum_us, slack):
            break
    return all_series


def confirm(
    timer: Timer, candidates: Sequence[Candidate], constants: MeasurementProtocol
) -> list[Series]:
    """Samples of a field over `final_pairs` passes, or as many times that as precision needs.

    Who is close to the first one goes on until its ratio to it is known to within `precision` and a
    swing of the clock was seen, up to eight times the passes. It is the width of an interval that
    stops, never what it says, so identical candidates are not declared different more often than
    intervals promise.
    """
    all_series = [Series(candidate) for candidate in candidates]
    if not all_series:
        return []
    swung_at = timer.warm(candidates[0], constants.warm_ms, steady=True) + time.monotonic()
    for turn in range(_CONFIRM_TURNS):
        racing = [series for series in all_series if series.alive]
        orders = race_orders(len(racing), max(2, constants.final_pairs), turn)
        times = timer.collect([series.candidate for series in racing], orders)
        for series, more in zip(racing, times, strict=True):
            series.samples_us += more
        first, swung = all_series[0].samples_us, time.monotonic() >= swung_at
        for series in racing[1:]:
            ratio = paired(series.samples_us, first, quantum_us=timer.quantum_us)
            close = abs(ratio.log_ratio) < _CLOSE
            vague = ratio.high - ratio.log_ratio > constants.precision
            series.alive = close and (vague or not swung)
        if not any(series.alive for series in all_series[1:]):
            break
    return all_series


# -- inside ----------------------------------------------------------------------------------------
def _passes(
    timer: Timer, racing: Sequence[Series], incumbent: Candidate | None, first: int, count: int
) -> None:
    """`count` passes over the all_series, every other one reversed, the incumbent spread over
    them."""
    candidates = [i for i, series in enumerate(racing) if series.candidate is not incumbent]
    orders: list[list[int]] = []
    runs = 0
    for turn in range(first, first + count):
        shuffled = list(candidates)
        random.Random(turn // 2).shuffle(shuffled)
        order = shuffled
        if incumbent is not None:
            order, runs = _with_incumbent(shuffled, len(racing) - 1)
        orders.append(order if turn % 2 == 0 else order[::-1])
    times = timer.collect([series.candidate for series in racing], orders)
    for series, more in zip(racing, times, strict=True):
        if series.candidate is incumbent:
            more = [_middle(more[i : i + runs]) for i in range(0, len(more), runs)]
        series.samples_us += more


def _with_incumbent(order: Sequence[int], incumbent: int) -> tuple[list[int], int]:
    """The order with the incumbent before every group of candidates, and how often it runs."""
    spread: list[int] = []
    for start in range(0, len(order), _PER_INCUMBENT):
        spread += [incumbent, *order[start : start + _PER_INCUMBENT]]
    return spread, -(-len(order) // _PER_INCUMBENT)


def _middle(values: Sequence[float]) -> float:
    """The lower median: a time that was measured."""
    return sorted(values)[(len(values) - 1) // 2]


def _drop_hopeless(
    racing: Sequence[Series],
    incumbent: Candidate | None,
    looks: int,
    constants: MeasurementProtocol,
    quantum_us: float,
) -> None:
    taken = len(racing[0].samples_us)
    candidates = [series for series in racing if series.candidate is not incumbent]
    if taken <= _BY_FASTEST:
        limit = constants.cap if taken == 1 else constants.near
        fastest = min(min(series.samples_us) for series in racing)
        for series in candidates:
            series.alive = min(series.samples_us) <= limit * fastest
        return
    leader = _leader(racing)
    confidence = 1 - constants.delta / (looks * max(1, len(candidates)))
    for series in candidates:
        if series is not leader:
            ratio = paired(
                series.samples_us, leader.samples_us, confidence=confidence, quantum_us=quantum_us
            )
            series.alive = ratio.low <= math.log(constants.hopeless)


def _settled(
    racing: Sequence[Series], constants: MeasurementProtocol, quantum_us: float, slack: float
) -> bool:
    """Drop who is slower; whether nobody left can be faster by more than epsilon.

    slack: how far, in ln, ratios may yet move with the clock. While they may, nothing is settled.
    """
    leader = _leader(racing)
    confidence = 1 - constants.delta / (2 * constants.rounds * len(racing))
    over = not slack
    for series in racing:
        if series is leader:
            continue
        ratio = paired(
            series.samples_us, leader.samples_us, confidence=confidence, quantum_us=quantum_us
        )
        series.alive = ratio.low <= slack
        over = over and ratio.low > -math.log1p(constants.epsilon)
    return over


def _leader(racing: Sequence[Series]) -> Series:
    """The fastest over passes that all of them took."""
    logs = [[math.log(value) for value in series.samples_us] for series in racing]
    shared = [sum(column) / len(column) for column in zip(*logs, strict=True)]
    return min(
        zip(racing, logs, strict=True),
        key=lambda pair: trimmed_mean([a - b for a, b in zip(pair[1], shared, strict=True)]),
    )[0]
