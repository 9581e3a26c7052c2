"""The outcome of one task in numbers: what the summary, leaderboard and details all show."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reports.peaks import roofline_us
from reports.ratio import Ratio, finite, ratio_of
from reports.run_data import TaskData
from results_db.records import BaselineRecord
from results_db.shipped import Shipped, shipped
from search_spaces.records import Config
from search_spaces.statistics import median_interval

#: verdict -> (icon, what it means), so that nothing is said by colour alone.
VERDICTS = {
    "faster": ("▲", "faster than the default config"),
    "slower": ("▼", "slower than the default config"),
    "same": ("=", "within 1 % of the default config"),
    "default kept": ("↺", "the default config ships: the winner of the search may be slower"),
    "undecided": ("?", "cannot be told from the default config"),
    "unconfirmed": ("◔", "timed by the search, not confirmed yet"),
    "not timed": ("○", "compiled for a device that is not here, never timed"),
    "failed": ("✕", "no config gave correct results"),
    "no trials": ("·", "nothing was tried"),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What ships of a task; times in microseconds, ratios above 1 say that it is faster.

    confirmed: the times come from the confirmation pass.
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
    #: What the table holds; None where nothing is confirmed.
    ships: Shipped | None = None

    @property
    def kept_because(self) -> str:
        """Why the default ships instead of the winner; empty where the winner ships."""
        return self.ships.kept_because if self.ships else ""

    def over(self, baseline: BaselineRecord) -> Ratio | None:
        """How many times faster than a baseline it is; None where nothing is confirmed."""
        if self.ships is None:
            return None
        return ratio_of(*self.ships.over(baseline), (baseline.median_us, self.median_us))

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
    ships = shipped(selection) if selection else None
    config = ships.config if ships else fastest.config if fastest else None
    median_us = finite(ships.median_us if ships else fastest.median_us if fastest else None)
    gb_s, tflop_s, roofline = _rates(task, config, median_us)
    found = Outcome(
        verdict=_verdict(task, ships),
        config=config,
        confirmed=confirmed,
        median_us=median_us,
        interval_us=median_interval(ships.samples_us(selection, task.info.finals))
        if ships and selection
        else None,
        default_us=finite(selection.default_us) if selection else None,
        over_default=ratio_of(
            ships.log_ratio,
            ships.log_ratio_low,
            ships.log_ratio_high,
            (selection.default_us, ships.median_us),
        )
        if ships and selection
        else None,
        baseline=task.fastest_baseline if confirmed else None,
        over_baseline=None,
        roofline=roofline,
        gb_s=gb_s,
        tflop_s=tflop_s,
        ties=len(ships.ties) if ships else 0,
        compiled=sum(trial.compiled for trial in task.trials)
        + (task.info.selection.compiled if task.info.selection else 0),
        ships=ships,
    )
    return replace(found, over_baseline=found.over(found.baseline) if found.baseline else None)


def _verdict(task: TaskData, ships: Shipped | None) -> str:
    if ships is not None and ships.default_kept:
        return "default kept"
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
    floor = roofline_us(info.key.device, info.key.workload, config, flops, moved)
    return (
        moved / median_us / 1e3 if moved else None,
        flops / median_us / 1e6 if flops else None,
        floor / median_us if floor else None,
    )
