"""What became of the winner of an entry, from one interleaved pass with its rivals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from search_spaces.records import Config, Status, Toolchain, Workload
from tuner.base.log_ratio import Verdict
from tuner.base.statistics import median_interval
from tuner.compare import BenchRow, Pass
from tuner.runtime import Entry

_NOT_BUILT = (Status.CONSTRAINTS, Status.COMPILE)


class Result(StrEnum):
    """What became of a winner."""

    SAME = "same"
    FASTER = "faster"
    SLOWER = "slower"
    FLIPPED = "flipped"
    NO_LONGER_BUILDS = "no longer builds"
    WRONG = "wrong"
    FAILS = "fails"
    #: The kernel no longer takes the workload, or the pass failed as a whole.
    NOT_CHECKED = "not checked"
    #: On request, nothing was measured: a binary has changed, or the stored ones are unknown.
    CHANGED = "changed"
    BUILDS = "builds"


#: Results after which another config must be found.
LOST = (Result.FLIPPED, Result.NO_LONGER_BUILDS, Result.WRONG, Result.FAILS)
#: Results that a check exits with 1 for.
FINDINGS = (*LOST, Result.SLOWER, Result.NOT_CHECKED)


@dataclass(frozen=True, slots=True)
class EntryOutcome:
    """The check of one entry. Times and ratios are None where they are unknown."""

    path: Path
    kernel: str
    workload: Workload
    #: Name of the device.
    device: str
    #: The entry as it is in the table.
    entry: Entry
    result: Result
    note: str = ""
    #: The winner's median time in this check, with its 95 % interval.
    median_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    #: The config that is faster than the winner, or the fastest of those that still work.
    better: Config | None = None
    #: The winner's time over that config's.
    gain: float | None = None
    #: Numbers of configs that were built and measured.
    built: int = 0
    measured: int = 0
    #: Seconds for which the device was occupied.
    device_s: float = 0.0
    #: Trials that the entry's search measured, and the seconds for which they held the device.
    search_trials: int | None = None
    search_device_s: float | None = None
    #: The toolchain of this check; None where nothing was built.
    toolchain: Toolchain | None = None
    #: The pass; None where nothing was built.
    measurement: Pass | None = field(default=None, repr=False)

    @property
    def lost(self) -> bool:
        """Whether another config must be found."""
        return self.result in LOST

    @property
    def finding(self) -> bool:
        """Whether a check of this entry exits with 1."""
        return self.result in FINDINGS

    @property
    def change(self) -> float | None:
        """The winner's time now over its time in the table."""
        stored = self.entry.median_us
        return None if not stored or self.median_us is None else self.median_us / stored


@dataclass(frozen=True, slots=True)
class Judgement:
    """The part of an outcome that a pass decides."""

    result: Result
    note: str = ""
    better: BenchRow | None = None


def judge(rows: Sequence[BenchRow], stored_us: float | None, margin: float) -> Judgement:
    """What became of the winner, the first row.

    The winner has flipped if another config is faster by the verdict of `tuner.base.statistics`:
    by more than a tie, with an interval that excludes equal times. `faster` and `slower` compare
    the 95 % interval of the winner's median with the stored time, with a `margin` on either side,
    because the two were measured at different times.
    """
    winner, rivals = rows[0], rows[1:]
    right = [row for row in rivals if row.status is Status.CORRECT and row.median_us]
    others = "; ".join(
        f"{row.variant}: {row.status}" for row in rivals if row.status is not Status.CORRECT
    )
    if winner.status is not Status.CORRECT or winner.median_us is None:
        fastest = min(right, key=lambda row: row.median_us or 0.0, default=None)
        note = "; ".join(filter(None, [winner.message, others]))
        return Judgement(_fault(winner), note, fastest)
    ahead = [
        (row.log_ratio.value, at, row)
        for at, row in enumerate(right)
        if row.verdict == Verdict.FASTER and row.log_ratio
    ]
    if ahead:
        return Judgement(Result.FLIPPED, others, min(ahead)[-1])
    return Judgement(_against_stored(winner, stored_us, margin), others)


def _fault(winner: BenchRow) -> Result:
    if winner.status in _NOT_BUILT:
        return Result.NO_LONGER_BUILDS
    return Result.WRONG if winner.status is Status.CORRECTNESS else Result.FAILS


def _against_stored(winner: BenchRow, stored_us: float | None, margin: float) -> Result:
    interval = median_interval(winner.samples_us)
    if not stored_us or interval is None:
        return Result.SAME
    low_us, high_us = interval
    if low_us > stored_us * (1 + margin):
        return Result.SLOWER
    return Result.FASTER if high_us < stored_us * (1 - margin) else Result.SAME
