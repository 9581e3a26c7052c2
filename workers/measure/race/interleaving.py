"""The order of runs within interleaved passes.

Times are compared only within one pass. Orders rotate and reverse, so that no candidate always
follows the same one.

Notation: n candidates are numbered 0 .. n - 1; a pass is a sequence of these numbers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from workers.measure.timers.timer import Candidate, Timer

#: A screening runs the incumbent once for this many candidates of a pass.
_CANDIDATES_PER_INCUMBENT = 8


def rotated_orders(count: int, passes: int, first: int = 0) -> list[list[int]]:
    """Orders of the passes `first` .. `first + passes` over `count` candidates.

    Each order is rotated, every other one is also reversed. Over 2 * count passes each candidate
    runs equally often in every position, and follows each neighbour as often as it precedes it.
    """
    orders = []
    for position in range(first, first + passes):
        shift = position // 2 % count
        order = [(shift + step) % count for step in range(count)]
        orders.append(order if position % 2 == 0 else order[::-1])
    return orders


def screening_orders(
    count: int, incumbent: int | None, passes: int, first: int = 0
) -> list[list[int]]:
    """Orders of the passes `first` .. `first + passes` of a screening.

    Candidates are shuffled by the pass's number, and every other pass is reversed. `incumbent`, one
    of the `count` positions, runs before each group of eight candidates.
    """
    orders = []
    for number in range(first, first + passes):
        order = [position for position in range(count) if position != incumbent]
        random.Random(number // 2).shuffle(order)
        if incumbent is not None:
            order = _with_incumbent(order, incumbent)
        orders.append(order if number % 2 == 0 else order[::-1])
    return orders


def _with_incumbent(order: Sequence[int], incumbent: int) -> list[int]:
    spread: list[int] = []
    for start in range(0, len(order), _CANDIDATES_PER_INCUMBENT):
        spread += [incumbent, *order[start : start + _CANDIDATES_PER_INCUMBENT]]
    return spread


def collect_passes(
    timer: Timer, candidates: Sequence[Candidate], passes: int, warm_ms: float
) -> list[list[float]]:
    """Samples in us per candidate over a fixed number of interleaved passes (at least 2)."""
    if not candidates:
        return []
    timer.warm(candidates[0], warm_ms, steady=True)
    return timer.collect(candidates, rotated_orders(len(candidates), max(2, passes)))
