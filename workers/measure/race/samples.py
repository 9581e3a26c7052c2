"""The samples of each candidate in a comparison, and the estimate of the fastest.

Notation: sample i of every candidate is from pass i, and t[k][i] is the time of candidate k in
pass i. A candidate that was dropped has fewer samples.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from tuner.base.statistics import trimmed_mean
from workers.measure.timers.timer import Candidate, Timer

# -- the order of runs within interleaved passes ---------------------------------------------------
# Times are compared only within one pass. Orders rotate and reverse, so that no candidate always
# follows the same one.
#
# Notation: n candidates are numbered 0 .. n - 1; a pass is a sequence of these numbers.
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


# -- the samples of each candidate in a comparison, and the estimate of the fastest ----------------
@dataclass(slots=True)
class CandidateSamples:
    """The samples of one candidate, one per pass from the first pass on."""

    candidate: Candidate
    #: Times in us.
    samples_us: list[float] = field(default_factory=list)
    #: Whether the candidate takes part in the next pass.
    active: bool = True


def collect_active(
    timer: Timer, active: Sequence[CandidateSamples], passes: int, first: int
) -> None:
    """Add the samples of `passes` rotated passes, numbered from `first`."""
    orders = rotated_orders(len(active), passes, first)
    times = timer.collect([entry.candidate for entry in active], orders)
    for entry, more in zip(active, times, strict=True):
        entry.samples_us += more


def affordable_passes(
    entries: Sequence[CandidateSamples], taken: int, budget_s: float, fewest: int
) -> int:
    """How many passes there can be in all, so that samples together take at most `budget_s`.

    At least `fewest`, whatever they take, and an even number, so that every order is also run in
    reverse. Candidates that are not active any more count for at most half of the budget: a slow
    one leaves the others time. A pass is expected to take as long as the active candidates took on
    average. taken: the passes so far, at least one.
    """
    budget_us = 1e6 * budget_s
    active = [entry.samples_us for entry in entries if entry.active]
    dropped_us = sum(sum(entry.samples_us) for entry in entries if not entry.active)
    spent_us = min(dropped_us, budget_us / 2) + sum(map(sum, active))
    pass_us = sum(sum(samples) / len(samples) for samples in active)
    more = max(0, int((budget_us - spent_us) / pass_us))
    return max(fewest, (taken + more) // 2 * 2)


def leader(active: Sequence[CandidateSamples]) -> CandidateSamples:
    """The fastest candidate by the passes that all of the given candidates took.

    Minimises the trimmed mean over i of ln t[k][i] - mean over j of ln t[j][i].
    """
    logs = [[math.log(value) for value in entry.samples_us] for entry in active]
    pass_means = [sum(column) / len(column) for column in zip(*logs, strict=True)]
    return min(
        zip(active, logs, strict=True),
        key=lambda pair: trimmed_mean([a - b for a, b in zip(pair[1], pass_means, strict=True)]),
    )[0]
