"""The samples of each candidate in a comparison, and the estimate of the fastest.

Notation: sample i of every candidate is from pass i, and t[k][i] is the time of candidate k in
pass i. A candidate that was dropped has fewer samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tuner.base.statistics import trimmed_mean
from workers.measure.race.interleaving import rotated_orders
from workers.measure.timers.timer import Candidate, Timer


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
