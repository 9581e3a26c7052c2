"""The input of one search: what a task is about, how it is measured and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from results_db.stored_records import TaskInfo, TrialRecord
from search_spaces.records import Config, Device, Status, Value
from search_spaces.size_range import RangePlace
from search_spaces.space import BoundSpace
from tuner.strategies.strategy import Strategy
from workers.job_records import Artifact, RowRange
from workers.measure.race.screening import was_dropped
from workers.measured_task import MeasuredTask


class Aim(StrEnum):
    """What a task is for. The tasks of campaigns search; the others evaluate given configs."""

    #: Find the fastest config and confirm it.
    SEARCH = "search"
    #: Time the given configs side by side, in one confirmation.
    COMPARE = "compare"
    #: Check the results of the given configs, also at the check size. Nothing is timed.
    VERIFY = "verify"


@dataclass(frozen=True, slots=True)
class TaskBudget:
    """The limits of one search. The first limit that is reached ends it."""

    #: Trials in all, polish trials included.
    trials: int | None = None
    #: Seconds of device time.
    device_s: float | None = None
    #: Seconds since the search began.
    search_s: float | None = None
    #: The engine's clock at the end of the whole run. A search ends earlier by the time that the
    #: finals will take; a search that has not begun by then is skipped.
    ends_at: float | None = None
    #: Expected seconds of the task's finals, until the run has seen finals.
    finals_s: float = 0.0
    #: How many of the last trials are neighbours of the incumbent.
    polish: int = 0
    #: Budget `auto`: the search ends, after a polish, when untried configs are expected to improve
    #: the incumbent by less than this share. None: no such limit.
    gain: float | None = None

    def halve(self) -> TaskBudget:
        """The budget of the first half of a search."""
        trials, device_s, search_s = (
            each and each / 2 for each in (self.trials, self.device_s, self.search_s)
        )
        half = None if trials is None else max(1, int(trials))
        return replace(self, trials=half, device_s=device_s, search_s=search_s)

    def spent(
        self, *, now: float, searched_s: float, device_s: float, finals_s: float = 0.0
    ) -> bool:
        """Whether a limit in seconds is reached.

        searched_s: since the search began. finals_s: to keep free before the end of the run.
        """
        return (
            (self.device_s is not None and device_s >= self.device_s)
            or (self.search_s is not None and searched_s >= self.search_s)
            or self.is_over(now, finals_s)
        )

    def is_over(self, now: float, finals_s: float) -> bool:
        """Whether the whole run has no time left but for finals."""
        return self.ends_at is not None and now + finals_s >= self.ends_at


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec(MeasuredTask):
    """Everything the engine needs to know of one task."""

    task_id: int
    #: The task's name in messages.
    label: str
    space: BoundSpace
    strategy: Strategy
    default: Config
    budget: TaskBudget
    aim: Aim = Aim.SEARCH
    #: The configs that a task evaluates which does not search; the ratios are to the first one's.
    given: Sequence[Config] = ()
    #: Of these, the keys of configs that are invalid at the check size.
    unchecked: Collection[str] = ()
    #: Whether a comparison need not measure on a device what was built; None: it measures.
    is_settled: Callable[[Device, Sequence[Artifact]], bool] | None = None
    #: No such device is available: variants are built for the target and, with `verify`, run in
    #: Triton's interpreter. Nothing is timed.
    compile_only: bool = False
    #: Whether variants of a compile-only task are run in the interpreter.
    verify: bool = True
    #: The largest number of candidates in the race, the default config apart.
    finalists: int = 8
    #: Configs among which users choose by measuring. The fastest one replaces a default that fails.
    listed: Sequence[Config] = ()
    #: Trials that this run finished before it was interrupted.
    finished: Sequence[TrialRecord] = ()
    #: Results of other runs that are valid for this task.
    known: Sequence[TrialRecord] = ()
    #: Times that other revisions of the kernel have of binaries, by binary digest. A time holds for
    #: an equal binary, but its outputs are verified again.
    timed: Mapping[str, TrialRecord] = field(default_factory=dict)
    #: An earlier task with the same key and a confirmed outcome.
    settled: TaskInfo | None = None
    #: Winners of neighbouring workloads in earlier runs, nearest first.
    neighbours: Sequence[Config] = ()
    #: The values to which the campaign narrows parameters of the kernel's space.
    narrowed: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    #: The seed and the options that `strategy` was created with.
    seed: int = 0
    strategy_options: Mapping[str, object] = field(default_factory=dict)
    #: Where the workload is one of the sizes of a range.
    place: RangePlace | None = None
    #: What it is expected to save: tasks with larger ones are opened first.
    gain: float = 0.0
    #: The dims whose workloads have one config in common (`Kernel.joint_dims`).
    joint_dims: Sequence[str] = ()
    #: Under `batch_invariant`: the bits that rows have in the whole range, once they are chosen.
    row_bits: str = ""

    @property
    def rows(self) -> RowRange | None:
        """The rows whose bits variants must keep; None where they need not."""
        if self.place is None or self.protocol.numerics != "batch_invariant":
            return None
        sizes = self.place.sizes
        return RowRange(self.place.dim, sizes.low, sizes.high, self.row_bits)

    @property
    def awaits_bits(self) -> bool:
        """Whether it is not chosen yet which bits rows have."""
        return self.rows is not None and not self.row_bits and not self.compile_only

    def was_asked_for(self, source: str) -> bool:
        """Whether somebody wants to know the time, or the facts, of a config from this source.

        source: as of a trial. An exhaustive search is for the times of all configs.
        """
        name = self.strategy.name
        searched = self.aim is Aim.SEARCH and not self.compile_only and name != "exhaustive"
        return not searched or source not in (name, "polish", "known")

    def may_reuse(self, known: TrialRecord) -> bool:
        """Whether the verdict of an earlier run holds here.

        Refusals may come from bits that were chosen there, and digests from other rows.
        """
        if self.rows is None:
            return True
        if known.row_bits is None:
            return known.status is not Status.CORRECTNESS
        return known.row_bits.startswith(f"{self.rows.low}-")

    def dropped_early(self, record: TrialRecord | None) -> bool:
        """Whether a screening dropped this trial after a few samples: its time is uncertain."""
        return record is not None and was_dropped(
            self.protocol, record.samples_us, record.incumbent_samples_us
        )

    def same_kernel_and_device(self, other: TaskSpec) -> bool:
        """Whether another task differs in its workload only, so that its winner may help here."""
        return (
            self.task_id != other.task_id
            and self.kernel == other.kernel
            and self.device.fingerprint == other.device.fingerprint
        )
