"""The listing of a kernel's confirmed results, run by run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from results_db.run_comparison import SAME_RECORD
from tuner.base.log_ratio import LogRatio, Verdict
from tuner.views.column import Column, Listing, describe_change, estimate_columns, sort_config
from tuner.views.units import format_us

if TYPE_CHECKING:
    from results_db.regression_records import RegressionRecord
    from results_db.task_history import History, RunResult


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """A confirmed result in the history of its task."""

    history: History
    result: RunResult
    #: The regression that begins here.
    regression: RegressionRecord | None


def _time_us(row: HistoryRow) -> float | None:
    return row.result.ships.median_us if row.result.ships else None


def _step(row: HistoryRow) -> LogRatio | None:
    """The change of the times since this result, where a step begins here."""
    return row.result.step.change if row.result.step else None


def _judge(row: HistoryRow) -> Verdict | None:
    change = row.result.change
    return Verdict.SAME if row.result.same_record else change.verdict() if change else None


def _list_notes(row: HistoryRow) -> Iterator[str]:
    """What a reader must know: the step that begins here, breaks, what is missing."""
    result, step = row.result, _step(row)
    if step is not None:
        word = Verdict.SLOWER if step.value > 0 else Verdict.FASTER
        yield f"step: {word} since this run, {describe_change(step)}"
    if result.breaks:
        yield f"environment changed: {', '.join(result.breaks)}"
        if result.change is not None:
            yield f"compared by {result.anchor}"
    if result.same_record:
        yield SAME_RECORD
    if result.ships is None:
        yield "; ".join(filter(None, ["no confirmed winner", result.task.note]))
    if row.regression is not None:
        yield f"regression {row.regression.id}: {row.regression.state}"


HISTORY: tuple[Column[HistoryRow], ...] = (
    Column("kernel", lambda row: row.history.kernel, heading=None),
    Column("workload", lambda row: row.history.workload),
    Column("device", lambda row: row.history.device),
    Column("run", lambda row: row.result.run.run_id),
    Column("tag", lambda row: row.result.run.tag, rank=1),
    Column("campaign", lambda row: row.result.run.campaign, heading=None),
    Column(
        "started_at",
        lambda row: row.result.run.started_at,
        lambda row: f"{row.result.run.started_at:%Y-%m-%d %H:%M}Z",
        heading="started",
    ),
    Column("revision", lambda row: row.result.run.environment.get("git") or None, rank=1),
    Column("median_us", _time_us, lambda row: format_us(_time_us(row)), "time"),
    Column(
        "normalised_us",
        lambda row: row.result.normalised_us,
        lambda row: format_us(row.result.normalised_us),
        heading="normalised",
    ),
    Column("anchor", lambda row: row.result.anchor or None, heading=None),
    *estimate_columns(
        ("change", "change_low", "change_high"), lambda row: row.result.change, "+.1%"
    ),
    Column("verdict", _judge),
    *estimate_columns(("step", "step_low", "step_high"), _step, "+.1%", heading=None),
    Column(
        "config",
        lambda row: row.result.ships and sort_config(row.result.ships.config),
        lambda row: ", ".join(row.result.config_changes),
        rank=1,
    ),
    Column("config_changes", lambda row: ", ".join(row.result.config_changes), heading=None),
    Column("environment_changes", lambda row: ", ".join(row.result.breaks), heading=None),
    Column("note", lambda row: "; ".join(_list_notes(row)), rank=1),
)


def list_results(
    histories: Sequence[History],
    last: int,
    raised: Mapping[int, RegressionRecord] = MappingProxyType({}),
) -> Listing[HistoryRow]:
    """The newest results of each history, newest first.

    raised: the regressions that begin at a task, by its number.
    """
    rows = [
        HistoryRow(each, result, raised.get(result.task.task_id))
        for each in histories
        for result in reversed(each.results[-last:])
    ]
    return Listing(HISTORY, rows)
