"""What a table ships of a selection: the winner, or the default where the winner may be worse."""

from __future__ import annotations

import math
from dataclasses import dataclass

from results_db.records import BaselineRecord, FinalRecord, SelectionRecord
from search_spaces.records import Config, config_key

#: An undecided winner only ships when it is at most this much slower, with confidence.
NOT_WORSE = 0.99


@dataclass(frozen=True, slots=True)
class Shipped:
    """The config that a table holds for a task, with its confirmed time."""

    config: Config
    #: All configs that cannot be told from it; of a default that is kept, itself alone.
    ties: tuple[Config, ...]
    #: Microseconds; None where nothing is confirmed.
    median_us: float | None
    #: ln(default time / time), and its 95 % interval; all 0 for a default that is kept.
    log_ratio: float | None
    log_ratio_low: float | None
    log_ratio_high: float | None
    #: Why the default ships instead of the winner; empty where the winner ships.
    kept_because: str = ""
    #: ln(default time / winner time), and its interval, where the default is kept.
    from_winner: tuple[float | None, float | None, float | None] = (0.0, 0.0, 0.0)

    @property
    def default_kept(self) -> bool:
        """Whether the default ships although another config won the search."""
        return bool(self.kept_because)

    def over(self, baseline: BaselineRecord) -> tuple[float | None, float | None, float | None]:
        """ln(baseline time / shipped time) with an interval; None where not known.

        Baselines are timed beside the winner. For a kept default, both intervals add up.
        """
        shift, shift_low, shift_high = self.from_winner
        low, high = baseline.log_ratio_low, baseline.log_ratio_high
        return (
            _less(baseline.log_ratio, shift),
            _less(low, shift_high),
            _less(high, shift_low),
        )

    def samples_us(
        self, selection: SelectionRecord, finals: tuple[FinalRecord, ...]
    ) -> tuple[float, ...]:
        """The samples of the confirmation, in microseconds, as far as they are on record."""
        if not self.default_kept:
            return selection.samples_us
        wanted = config_key(self.config)
        confirmed = (f for f in finals if f.stage == "confirm" and config_key(f.config) == wanted)
        return next((final.samples_us for final in confirmed), ())


def shipped(selection: SelectionRecord) -> Shipped:
    """What ships of a selection: never a config that may be slower than the default."""
    ratio = (selection.log_ratio, selection.log_ratio_low, selection.log_ratio_high)
    why = _may_be_worse(selection)
    if selection.default is None or not why:
        return Shipped(selection.winner, selection.tie_set, selection.median_us, *ratio)
    kept = (selection.default,)
    return Shipped(
        selection.default, kept, selection.default_us, 0.0, 0.0, 0.0, why, from_winner=ratio
    )


def _may_be_worse(selection: SelectionRecord) -> str:
    if selection.verdict == "slower":
        return "the confirmation found the winner of the search slower than the default"
    low = selection.log_ratio_low
    if selection.verdict == "undecided" and low is not None and math.exp(low) < NOT_WORSE:
        return (
            "the winner of the search cannot be told from the default and may be "
            f"{1 - math.exp(low):.1%} slower"
        )
    return ""


def _less(value: float | None, shift: float | None) -> float | None:
    return None if value is None or shift is None else value - shift
