"""The outcome of one task in numbers: what the summary, leaderboard and details all show."""

from __future__ import annotations

from dataclasses import dataclass

from reports.peaks import floor_us
from reports.source import TaskData
from reports.stats import Ratio, finite, median_interval, ratio_of
from results_db.records import BaselineRecord
from search_spaces.records import Config

#: verdict -> (icon, what it means), so that nothing is said by colour alone.
VERDICTS = {
    "faster": ("▲", "faster than the default config"),
    "slower": ("▼", "slower than the default config"),
    "same": ("=", "within 1 % of the default config"),
    "undecided": ("?", "cannot be told from the default config"),
    "unconfirmed": ("◔", "timed by the search, not confirmed yet"),
    "not timed": ("○", "compiled for a device that is not here, never timed"),
    "failed": ("✕", "no config gave correct results"),
    "no trials": ("·", "nothing was tried"),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times in microseconds; ratios above 1 say that the winner is faster.

    confirmed: the times come from the confirmation pass. bound: what limits the roofline share.
    """

    verdict: str
    config: Config | None
    confirmed: bool
    median_us: float | None
    interval_us: tuple[float, float] | None
    default_us: float | None
    over_default: Ratio | None
    baseline: BaselineRecord | None
    over_baseline: Ratio | None
    roofline: float | None
    gb_s: float | None
    tflop_s: float | None
    ties: int
    compiled: int

    @property
    def icon(self) -> str:
        return VERDICTS[self.verdict][0]

    @property
    def meaning(self) -> str:
        return VERDICTS[self.verdict][1]


def outcome(task: TaskData) -> Outcome:
    """Read the outcome of a task off its selection, or off its search where there is none."""
    confirmed = task.state == "confirmed"
    selection = task.info.selection if confirmed else None
    fastest = task.fastest_trial if task.state == "unconfirmed" else None
    config = selection.winner if selection else fastest.config if fastest else None
    median_us = finite(selection.median_us if selection else fastest.median_us if fastest else None)
    baseline = task.fastest_baseline if confirmed else None
    gb_s, tflop_s, roofline = _rates(task, config, median_us)
    return Outcome(
        verdict=_verdict(task),
        config=config,
        confirmed=confirmed,
        median_us=median_us,
        interval_us=median_interval(selection.samples_us) if selection else None,
        default_us=finite(selection.default_us) if selection else None,
        over_default=ratio_of(
            selection.log_ratio,
            selection.log_ratio_low,
            selection.log_ratio_high,
            (selection.default_us, selection.median_us),
        )
        if selection
        else None,
        baseline=baseline,
        over_baseline=baseline_ratio(baseline, median_us) if baseline else None,
        roofline=roofline,
        gb_s=gb_s,
        tflop_s=tflop_s,
        ties=len(selection.tie_set) if selection else 0,
        compiled=sum(trial.compiled for trial in task.trials)
        + (task.info.selection.compiled if task.info.selection else 0),
    )


def baseline_ratio(baseline: BaselineRecord, median_us: float | None) -> Ratio | None:
    """How many times faster the winner is than a baseline."""
    return ratio_of(
        baseline.log_ratio,
        baseline.log_ratio_low,
        baseline.log_ratio_high,
        (baseline.median_us, median_us),
    )


def _verdict(task: TaskData) -> str:
    selection = task.info.selection
    if task.state == "confirmed" and selection is not None:
        return selection.verdict if selection.verdict in VERDICTS else "undecided"
    return {
        "unconfirmed": "unconfirmed",
        "built": "not timed",
        "failed": "failed",
        "empty": "no trials",
    }[task.state]


def _rates(
    task: TaskData, config: Config | None, median_us: float | None
) -> tuple[float | None, float | None, float | None]:
    info = task.info
    if not median_us or config is None:
        return None, None, None
    flops, moved = finite(info.flops) or 0.0, finite(info.bytes) or 0.0
    floor = floor_us(info.key.device, info.key.workload, config, flops, moved)
    return (
        moved / median_us / 1e3 if moved else None,
        flops / median_us / 1e6 if flops else None,
        floor / median_us if floor else None,
    )
