"""Who is timed how often: screening of challengers, and the race that settles who is fastest.

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

from workers.measure.race.interleaving import Contestant, Timer, race_orders
from workers.measure.race.statistics import paired, trimmed_mean
from workers.records import Mode
from workers.records import Protocol as Constants

#: the champion runs once for so many challengers of a pass
_PER_CHAMPION = 8
#: a confirmation takes its passes so often at most, for those this close to the first, in ln
_CONFIRM_TURNS, _CLOSE = 8, 0.05
#: screening follows every few builds, and decides by margins no clock on its way up can bridge
_SCREEN_WARM_MS = 20.0
#: how far, in ln, a swing of the clock moves ratios (event_timer.py)
_SWUNG = 0.01
#: up to so many samples a candidate is judged by its fastest, which no outlier can raise
_BY_FASTEST = 3


@dataclass(slots=True)
class Lane:
    """The samples of one contestant, one per pass from the first on, and whether it is still in."""

    contestant: Contestant
    samples_us: list[float] = field(default_factory=list)
    alive: bool = True


def samples_of(
    mode: Mode,
    timer: Timer,
    contestants: Sequence[Contestant],
    constants: Constants,
    *,
    champion: bool = False,
) -> list[list[float]]:
    """Samples in us per contestant, taken as the mode asks.

    champion: the last one is the champion of a duel.
    """
    if mode is Mode.CONFIRM:
        lanes = confirm(timer, contestants, constants)
    elif mode is Mode.RACE:
        lanes = race(timer, contestants, constants)
    elif champion:
        lanes = screen(timer, contestants[:-1], contestants[-1], constants)
    else:
        lanes = screen(timer, contestants, None, constants)
    return [lane.samples_us for lane in lanes]


def screen(
    timer: Timer,
    challengers: Sequence[Contestant],
    champion: Contestant | None,
    constants: Constants,
) -> list[Lane]:
    """Samples of the challengers and, last, of the champion.

    At each of the checkpoints `constants.pairs` (samples per challenger so far) those are dropped
    that cannot be the best of the field: after one sample beyond `cap`, up to three beyond `near`
    by their fastest sample, later beyond `hopeless` with confidence, union-bounded over looks and
    challengers. The champion's sample of a pass is the median of its runs in that pass.
    """
    if not challengers:
        return []
    field_ = [*challengers, *([champion] if champion is not None else [])]
    lanes = [Lane(contestant) for contestant in field_]
    timer.warm(field_[-1], min(_SCREEN_WARM_MS, constants.warm_ms))
    taken = 0
    checkpoints = sorted({max(1, pairs) for pairs in constants.pairs})
    for look, checkpoint in enumerate(checkpoints):
        racing = [lane for lane in lanes if lane.alive]
        _passes(timer, racing, champion, taken, checkpoint - taken)
        taken = checkpoint
        if look + 1 == len(checkpoints):
            break
        _drop_hopeless(racing, champion, len(checkpoints), constants, timer.quantum_us)
        if all(not lane.alive or lane.contestant is champion for lane in lanes):
            break
    return lanes


def race(timer: Timer, contestants: Sequence[Contestant], constants: Constants) -> list[Lane]:
    """Samples of a field that is raced until its best is known; who is slower leaves early.

    A round is `round_pairs` passes over those still in. After it everyone is dropped who is slower
    than the leader with confidence; the race is over when none of the rest can be faster than the
    leader by more than `epsilon` and a swing of the clock was seen, or after `rounds`. All
    decisions together are wrong with a probability of at most `delta`.
    """
    lanes = [Lane(contestant) for contestant in contestants]
    if not lanes:
        return []
    swung_at = timer.warm(contestants[0], constants.warm_ms, steady=True) + time.monotonic()
    for turn in range(constants.rounds):
        racing = [lane for lane in lanes if lane.alive]
        orders = race_orders(len(racing), constants.round_pairs, turn * constants.round_pairs)
        times = timer.collect([lane.contestant for lane in racing], orders)
        for lane, more in zip(racing, times, strict=True):
            lane.samples_us += more
        slack = 0.0 if time.monotonic() >= swung_at else _SWUNG
        if len(racing) == 1 or _settled(racing, constants, timer.quantum_us, slack):
            break
    return lanes


def confirm(timer: Timer, contestants: Sequence[Contestant], constants: Constants) -> list[Lane]:
    """Samples of a field over `final_pairs` passes, or as many times that as precision needs.

    Who is close to the first one goes on until its ratio to it is known to within `precision` and a
    swing of the clock was seen, up to eight times the passes. It is the width of an interval that
    stops, never what it says, so identical contestants are not declared different more often than
    intervals promise.
    """
    lanes = [Lane(contestant) for contestant in contestants]
    if not lanes:
        return []
    swung_at = timer.warm(contestants[0], constants.warm_ms, steady=True) + time.monotonic()
    for turn in range(_CONFIRM_TURNS):
        racing = [lane for lane in lanes if lane.alive]
        orders = race_orders(len(racing), max(2, constants.final_pairs), turn)
        times = timer.collect([lane.contestant for lane in racing], orders)
        for lane, more in zip(racing, times, strict=True):
            lane.samples_us += more
        first, swung = lanes[0].samples_us, time.monotonic() >= swung_at
        for lane in racing[1:]:
            ratio = paired(lane.samples_us, first, quantum_us=timer.quantum_us)
            close = abs(ratio.log_ratio) < _CLOSE
            vague = ratio.high - ratio.log_ratio > constants.precision
            lane.alive = close and (vague or not swung)
        if not any(lane.alive for lane in lanes[1:]):
            break
    return lanes


# -- inside ----------------------------------------------------------------------------------------
def _passes(
    timer: Timer, racing: Sequence[Lane], champion: Contestant | None, first: int, count: int
) -> None:
    """`count` passes over the lanes, every other one reversed, the champion spread over them."""
    challengers = [i for i, lane in enumerate(racing) if lane.contestant is not champion]
    orders: list[list[int]] = []
    runs = 0
    for turn in range(first, first + count):
        shuffled = list(challengers)
        random.Random(turn // 2).shuffle(shuffled)
        order = shuffled
        if champion is not None:
            order, runs = _with_champion(shuffled, len(racing) - 1)
        orders.append(order if turn % 2 == 0 else order[::-1])
    times = timer.collect([lane.contestant for lane in racing], orders)
    for lane, more in zip(racing, times, strict=True):
        if lane.contestant is champion:
            more = [_middle(more[i : i + runs]) for i in range(0, len(more), runs)]
        lane.samples_us += more


def _with_champion(order: Sequence[int], champion: int) -> tuple[list[int], int]:
    """The order with the champion before every group of challengers, and how often it runs."""
    spread: list[int] = []
    for start in range(0, len(order), _PER_CHAMPION):
        spread += [champion, *order[start : start + _PER_CHAMPION]]
    return spread, -(-len(order) // _PER_CHAMPION)


def _middle(values: Sequence[float]) -> float:
    """The lower median: a time that was measured."""
    return sorted(values)[(len(values) - 1) // 2]


def _drop_hopeless(
    racing: Sequence[Lane],
    champion: Contestant | None,
    looks: int,
    constants: Constants,
    quantum_us: float,
) -> None:
    taken = len(racing[0].samples_us)
    challengers = [lane for lane in racing if lane.contestant is not champion]
    if taken <= _BY_FASTEST:
        limit = constants.cap if taken == 1 else constants.near
        fastest = min(min(lane.samples_us) for lane in racing)
        for lane in challengers:
            lane.alive = min(lane.samples_us) <= limit * fastest
        return
    leader = _leader(racing)
    confidence = 1 - constants.delta / (looks * max(1, len(challengers)))
    for lane in challengers:
        if lane is not leader:
            ratio = paired(
                lane.samples_us, leader.samples_us, confidence=confidence, quantum_us=quantum_us
            )
            lane.alive = ratio.low <= math.log(constants.hopeless)


def _settled(racing: Sequence[Lane], constants: Constants, quantum_us: float, slack: float) -> bool:
    """Drop who is slower; whether nobody left can be faster by more than epsilon.

    slack: how far, in ln, ratios may yet move with the clock. While they may, nothing is settled.
    """
    leader = _leader(racing)
    confidence = 1 - constants.delta / (2 * constants.rounds * len(racing))
    over = not slack
    for lane in racing:
        if lane is leader:
            continue
        ratio = paired(
            lane.samples_us, leader.samples_us, confidence=confidence, quantum_us=quantum_us
        )
        lane.alive = ratio.low <= slack
        over = over and ratio.low > -math.log1p(constants.epsilon)
    return over


def _leader(racing: Sequence[Lane]) -> Lane:
    """The fastest over passes that all of them took."""
    logs = [[math.log(value) for value in lane.samples_us] for lane in racing]
    shared = [sum(column) / len(column) for column in zip(*logs, strict=True)]
    return min(
        zip(racing, logs, strict=True),
        key=lambda pair: trimmed_mean([a - b for a, b in zip(pair[1], shared, strict=True)]),
    )[0]
