"""Contradictions between a race and the confirmation that follows it, and what they change.

Notation: of one candidate, r is the log-ratio of its time to the winner's in the race, and c the
same in the confirmation. h is the root of the sum of the squares of the half widths of the
intervals of both. t = ln(1.01).

The confirmation contradicts the race where |c - r| > t, |c - r| > h, and min(r, c) < t: the
candidate is not clearly slower in both. Such a candidate cannot be distinguished from the
winner. The contradiction is *decisive* where it may change what is reported: where the candidate is
the default config, against which the verdict is, and where (r + c) / 2 < -t, so that another winner
may be faster by more than the threshold. Only a decisive contradiction is worth another race.

Where times of one config differ by a tenth, h says little of either. There a candidate contradicts
the race, decisively, where the confirmation alone has it faster: c < -t, with its whole interval
below 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.base.log_ratio import LogRatio
from workers.job_records import Failure, Timing

#: A confirmation that moves a ratio by more than this contradicts the race, in ln(time).
_MOVED = math.log(1.01)


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A candidate whose ratio to the winner moved between race and confirmation."""

    #: The number of its trial.
    number: int
    is_default: bool
    #: Its log-ratio to the winner in the race and in the confirmation.
    raced: float
    confirmed: float
    #: The confirmation has it faster beyond doubt, where races are noisy.
    wins: bool = False

    @property
    def decisive(self) -> bool:
        """Whether another race may change the winner by more than the threshold, or the verdict."""
        mean = (self.raced + self.confirmed) / 2
        return self.is_default or mean < -_MOVED or self.wins

    @property
    def name(self) -> str:
        """The candidate in words."""
        return "the default config" if self.is_default else "the runner-up"

    @property
    def change(self) -> str:
        """What its time did, in words."""
        moved = math.expm1(self.confirmed - self.raced)
        return f"moved by {moved:+.1%} against the winner's"

    def __str__(self) -> str:
        return f"{self.name}'s time {self.change}"


def contradictions(
    winner: int,
    default: int | None,
    raced: Mapping[int, LogRatio],
    confirmed: Mapping[int, Timing | Failure],
    *,
    noisy: bool = False,
) -> list[Contradiction]:
    """All contradictions of a confirmation, in the order of its candidates.

    winner, default: their trial numbers. raced: ratios of the race by trial number, all to one
    config, with intervals of the same confidence as those of `confirmed`. noisy: times of one
    config differ by a tenth here.
    """
    found = []
    for number, timing in confirmed.items():
        if number == winner or number not in raced or winner not in raced:
            continue
        if not isinstance(timing, Timing) or not timing.samples_us:
            continue
        both = raced[number], raced[winner]
        before, now = both[0].value - both[1].value, timing.log_ratio.value
        uncertain = math.hypot(*(each.half_width for each in (timing.log_ratio, *both)))
        moved = abs(now - before) > max(_MOVED, uncertain) and min(before, now) < _MOVED
        wins = noisy and now < -_MOVED and timing.log_ratio.high < 0
        if moved or wins:
            found.append(Contradiction(number, number == default, before, now, wins))
    return found
