"""The config that ships: the winner, or the default config where the winner may be slower."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from results_db.stored_records import BaselineRecord, FinalRecord, SelectionRecord
from search_spaces.records import Config, Status, config_key
from tuner.base.log_ratio import EQUAL, THRESHOLD, LogRatio, Verdict, pick_ratio
from workers.job_records import Mode

#: An undecided winner ships only if the lower end of its speed-up's interval is at least this.
NOT_WORSE = 0.99


@dataclass(frozen=True, slots=True)
class Shipped:
    """The config that tables contain for a task, with its confirmed time."""

    config: Config
    #: All configs that cannot be distinguished from it; only itself if the default is kept.
    ties: tuple[Config, ...]
    #: Confirmed median time; None where nothing is confirmed.
    median_us: float | None
    #: ln(default time / time); 0 if the default is kept, like its interval.
    log_ratio: LogRatio | None
    #: Why the default config ships instead of the winner; empty where the winner ships.
    kept_because: str = ""
    #: ln(default time / winner time), where the default is kept; None where unknown.
    from_winner: LogRatio | None = EQUAL

    @property
    def default_kept(self) -> bool:
        """Whether the default config ships although another config won the search."""
        return bool(self.kept_because)

    def over(self, baseline: BaselineRecord) -> LogRatio | None:
        """ln(baseline time / shipped time); None where unknown.

        Baselines are paired with the winner. For a kept default, both intervals are added.
        """
        paired, shift = baseline.log_ratio, self.from_winner
        measured = paired - shift if paired and shift else None
        return pick_ratio(measured, baseline.median_us, self.median_us)

    def samples_us(
        self, selection: SelectionRecord, finals: tuple[FinalRecord, ...]
    ) -> tuple[float, ...]:
        """The confirmation's samples in microseconds; empty where none are stored."""
        if not self.default_kept:
            return selection.samples_us
        key = config_key(self.config)
        confirmed = (f for f in finals if f.stage == Mode.CONFIRM and config_key(f.config) == key)
        return next((final.samples_us for final in confirmed), ())


def select_shipped(selection: SelectionRecord) -> Shipped:
    """The config that ships: never one that may be slower than the default."""
    why = _may_be_worse(selection)
    if selection.default is None or not why:
        ratio = pick_ratio(selection.log_ratio, selection.default_us, selection.median_us)
        return Shipped(selection.winner, selection.tie_set, selection.median_us, ratio)
    kept, from_winner = selection.default, selection.log_ratio
    return Shipped(kept, (kept,), selection.default_us, EQUAL, why, from_winner)


def fastest_baseline(baselines: Iterable[BaselineRecord]) -> BaselineRecord | None:
    """The fastest correct baseline; None where no baseline has a time."""
    timed = [
        (baseline.median_us, index, baseline)
        for index, baseline in enumerate(baselines)
        if baseline.status is Status.CORRECT
        and baseline.median_us is not None
        and 0 < baseline.median_us < math.inf
    ]
    return min(timed)[2] if timed else None


def describe_ratio(over: LogRatio | None, name: object = None) -> str | None:
    """`1.08x`, followed by the name of what it is compared with; None without a ratio.

    over: ln(the other's time / time). What is slower by more than `THRESHOLD` is said in words:
    `slower than eager (0.95x)`. An undecided ratio has a mark and its interval:
    `1.08x? eager [0.86, 1.35]`.
    """
    if over is None:
        return None
    figure = f"{over.ratio:.2f}x{over.doubt}"
    if over.doubt:
        ends = over.interval
        known = f"[{ends[0]:.2f}, {ends[1]:.2f}]" if ends else "(no interval)"
        return " ".join(f"{part}" for part in (figure, name, known) if part)
    if name and over.ratio * (1 + THRESHOLD) <= 1.0:
        return f"slower than {name} ({figure})"
    return f"{figure} {name}" if name else figure


def _may_be_worse(selection: SelectionRecord) -> str:
    if selection.verdict == Verdict.SLOWER:
        return "the confirmation found the winner of the search slower than the default"
    interval = selection.log_ratio.interval if selection.log_ratio else None
    if selection.verdict == Verdict.UNDECIDED and interval and interval[0] < NOT_WORSE:
        return (
            "the winner of the search cannot be distinguished from the default and may be "
            f"{1 - interval[0]:.1%} slower"
        )
    return ""
