"""Listings of tasks: the state of a run's tasks, and the confirmed winners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from results_db.shipped import describe_ratio, fastest_baseline, select_shipped
from results_db.stored_records import Stage
from tuner.base.log_ratio import LogRatio, Verdict
from tuner.views.column import Column, Listing, cell, columns_of, estimate_columns, sort_config
from tuner.views.units import format_us

if TYPE_CHECKING:
    from results_db import Store
    from results_db.shipped import Shipped
    from results_db.stored_records import BaselineRecord, TaskInfo, TaskSummary


@dataclass(frozen=True, slots=True)
class Outcome:
    """A task, and what ships for it where something is confirmed."""

    task: TaskInfo | TaskSummary
    ships: Shipped | None
    baseline: BaselineRecord | None
    #: ln(time of the fastest baseline / time of what ships).
    over_baseline: LogRatio | None

    @classmethod
    def of(cls, task: TaskInfo | TaskSummary, **more: Any) -> Any:
        """The outcome of a task. more: further fields of the class."""
        chosen = task.selection
        ships = select_shipped(chosen) if chosen and chosen.median_us is not None else None
        fastest = fastest_baseline(task.baselines) if ships else None
        over = ships.over(fastest) if ships and fastest else None
        return cls(task, ships, fastest, over, **more)

    @property
    def over_default(self) -> LogRatio | None:
        """ln(time of the default config / time of what ships)."""
        return self.ships.log_ratio if self.ships else None


@dataclass(frozen=True, slots=True)
class TaskState(Outcome):
    """A task of a run in progress or of one that is over."""

    task: TaskSummary
    run_id: int
    #: In the run, from 1.
    number: int


@dataclass(frozen=True, slots=True)
class Winner(Outcome):
    """A task that has a confirmed winner."""

    task: TaskInfo
    ships: Shipped
    #: Median with the ends of its 95 % interval.
    time_us: tuple[float | None, float | None, float | None]
    kernel: str
    #: The workload's key, or the part of a range that the config serves.
    workload: str
    #: `current` or `outdated`, with the reason.
    state: str = ""
    why: str = ""


def _describe_config(each: Outcome) -> str | None:
    if each.ships is None:
        return None
    config = cell(sort_config(each.ships.config))
    return f"{config} (the default)" if each.ships.default_kept else config


def _compare_with_default(each: Outcome) -> str | None:
    ratio, chosen = describe_ratio(each.over_default), each.task.selection
    kept = ratio is None or chosen is None or each.ships is None or each.ships.default_kept
    return ratio if kept or chosen is None else f"{ratio} {chosen.verdict}"


def _describe_task(each: TaskState) -> str:
    reason = each.task.why_none_correct if each.task.stage == Stage.DONE else ""
    return "; ".join(filter(None, [_note(each), reason]))


def _note(each: Outcome) -> str:
    kept_because = each.ships.kept_because if each.ships else ""
    return "; ".join(filter(None, [each.task.note, kept_because]))


def _count_trials(each: TaskState) -> str | int:
    trials, failed = each.task.trials, each.task.trials - each.task.correct
    return f"{trials}, {failed} failed" if failed else trials


def _judge(over: LogRatio | None) -> str:
    return (-over).verdict() if over else ""


def _best_us(each: TaskState) -> float | None:
    """The time of what ships or, unconfirmed, of the best trial."""
    return each.ships.median_us if each.ships else each.task.best_us


def _name_shipped(each: Outcome) -> str | None:
    if each.ships is None:
        return None
    return "default" if each.ships.default_kept else "winner"


#: One of them has the colour: the ratio to the fastest baseline or, without one, to the default.
_RATIOS: tuple[Column[Any], ...] = (
    *estimate_columns(
        ("speedup", "speedup_low", "speedup_high"),
        lambda each: each.over_default,
        show=_compare_with_default,
        heading="vs_default",
        tone=lambda each: "" if each.over_baseline else _judge(each.over_default),
    ),
    Column("baseline", lambda each: each.baseline and each.baseline.name, heading=None),
    *estimate_columns(
        ("over_baseline", "over_baseline_low", "over_baseline_high"),
        lambda each: each.over_baseline,
        show=lambda each: describe_ratio(each.over_baseline, each.baseline and each.baseline.name),
        heading="vs_baseline",
        tone=lambda each: _judge(each.over_baseline),
    ),
    Column("baseline_verdict", lambda each: _judge(each.over_baseline) or None, heading=None),
)
_CONFIG: Column[Any] = Column(
    "config", lambda e: e.ships and sort_config(e.ships.config), _describe_config, rank=1
)
_SHIPS: Column[Any] = Column("ships", _name_shipped, heading=None)


def _selection_column(column: str, name: str) -> Column[Any]:
    """A column for programs with a field of what the confirmation selected."""
    return Column(column, lambda e: e.ships and getattr(e.task.selection, name), heading=None)


TASKS: tuple[Column[TaskState], ...] = (
    Column("task", lambda each: f"{each.run_id}/{each.number}", heading=None),
    Column("kernel", lambda each: each.task.kernel),
    Column("workload", lambda each: each.task.workload),
    Column("device", lambda each: each.task.device),
    Column("stage", lambda e: e.task.stage, heading="state", tone=lambda e: e.task.stage),
    Column("trials", lambda each: each.task.trials, _count_trials, rank=1),
    Column("failed", lambda each: each.task.trials - each.task.correct, heading=None),
    Column("best_us", _best_us, lambda each: format_us(_best_us(each)), "time"),
    _selection_column("default_us", "default_us"),
    _selection_column("verdict", "verdict"),
    _SHIPS,
    Column("note", _describe_task, rank=2),
    _CONFIG,
    *_RATIOS,
)
WINNERS: tuple[Column[Winner], ...] = (
    Column("kernel"),
    Column("workload"),
    Column("device", lambda each: each.task.key.device.name),
    Column("target", lambda each: each.task.key.device.target, heading=None),
    Column("run", lambda each: each.task.run_id, heading=None),
    _CONFIG,
    _SHIPS,
    Column("median_us", lambda e: e.time_us[0], lambda e: format_us(*e.time_us), "time"),
    Column("low_us", lambda each: each.time_us[1], heading=None),
    Column("high_us", lambda each: each.time_us[2], heading=None),
    _selection_column("verdict", "verdict"),
    _selection_column("default_us", "default_us"),
    *_RATIOS,
    _selection_column("confirmed_at", "confirmed_at"),
    Column("note", _note, heading=None),
)
#: An entry of a table as a check has stored it.
CHECKED: tuple[Column[Mapping[str, Any]], ...] = columns_of(
    *("kernel", "workload", "device", "result", "change", "median_us", "table_us", "gain", "note")
)
#: Whether a winner is of the present code; that one is current needs no word.
STATES: tuple[Column[Winner], ...] = (
    Column("state", show=lambda e: None if e.state == "current" else e.state, rank=1),
    Column("why", rank=1),
)


def list_tasks(store: Store, run_id: int, *, referred: bool = False) -> Listing[TaskState]:
    """The tasks of a run. referred: whether people see their references too."""
    reference, *others = TASKS
    columns = [replace(reference, heading="") if referred else reference, *others]
    tasks = [
        TaskState.of(task, run_id=run_id, number=number)
        for number, task in enumerate(store.overview(run_id), 1)
        if not task.left_out
    ]
    return Listing(columns, tasks)


def list_winners(
    tasks: Sequence[TaskInfo],
    *,
    parts: bool,
    more: Callable[[TaskInfo], Mapping[str, str]] = lambda _: {},
) -> list[Winner]:
    """The tasks with a confirmed winner.

    parts: show the tasks of a range as its parts, each by one size and the sizes that its config
    serves. more: further fields of a task's winner, by name.
    """
    from results_db.range_outcomes import RangePart, list_shown

    found: list[Winner] = []
    for shown in list_shown(tasks) if parts else tasks:
        task = shown.task if isinstance(shown, RangePart) else shown
        fields = dict(more(task))
        if isinstance(shown, RangePart) and task.place:
            fields["workload"] = task.place.describe_part(task.key.workload, shown.low, shown.high)
        if winner := find_winner(task, **fields):
            found.append(winner)
    return found


def find_winner(task: TaskInfo, **fields: str) -> Winner | None:
    """The winner of a task; None where nothing is confirmed. fields: in place of the task's own."""
    from tuner.base.statistics import median_interval

    chosen = task.selection
    if chosen is None or chosen.median_us is None:
        return None
    ships = select_shipped(chosen)
    ends = median_interval(ships.samples_us(chosen, task.finals)) or (None, None)
    own = {"kernel": task.key.kernel, "workload": task.key.workload.key}
    found: Winner = Winner.of(task, time_us=(ships.median_us, *ends), **{**own, **fields})
    return found


def describe_gain(winners: Sequence[Winner], untimed: int) -> str:
    """How many winners are faster than all of their baselines, and how many tasks have no time.

    untimed: tasks whose device is not here. Empty where there is neither.
    """
    over = [each.over_baseline for each in winners if each.over_baseline]
    gains = [ratio.ratio for ratio in over if _judge(ratio) == Verdict.FASTER]
    up_to = f", up to {max(gains):.1f}x" if gains else ""
    counted = f"{len(gains)} of {len(over)} faster than every alternative{up_to}" if over else ""
    absent = f"{untimed} need{'s' * (untimed == 1)} a GPU to be timed" if untimed else ""
    return "; ".join(filter(None, [counted, absent]))
