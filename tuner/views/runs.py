"""Listings of runs: how runs are named, what two of them ship, and a kernel's results over all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType
from typing import TYPE_CHECKING

from results_db.errors import FIRST_RUN
from results_db.run_comparison import SAME_RECORD, TaskComparison
from search_spaces.errors import TunerError
from search_spaces.near_names import did_you_mean
from tuner.base.log_ratio import LogRatio, Verdict
from tuner.campaign import lease
from tuner.views.column import (
    Column,
    Listing,
    columns_of,
    describe_change,
    estimate_columns,
    format_estimate,
    sort_config,
    verdict_column,
)
from tuner.views.units import format_us

if TYPE_CHECKING:
    from results_db import Store
    from results_db.promotion_records import RegressionRecord
    from results_db.stored_records import RunInfo
    from results_db.task_history import History, RunResult

#: The largest integer that every database takes.
LARGEST = 2**63 - 1
RUNS: tuple[Column[RunInfo], ...] = (
    Column("run", lambda run: run.run_id),
    *columns_of("tag", "campaign", "status", "started_at", "finished_at", "seed"),
)
_REVISION = re.compile(r"[0-9a-f]{6,40}")
_HINT = "write a run's number, tag, date or git revision; `tuner runs` lists them"


def describe_run(info: RunInfo) -> str:
    """One line about a run."""
    name = f"{info.run_id} ({info.tag})" if info.tag else f"{info.run_id}"
    parts = [f"run {name} of {info.campaign}: {info.status}"]
    parts.append(f"started {info.started_at:%Y-%m-%d %H:%M}Z")
    if lease.abandoned(info):
        kernel = f" {info.campaign}" if ":" in info.campaign else ""
        resumed = "" if "wheels" in info.environment else " to resume it"  # a check starts again
        parts.append(f"its driver is dead; rerun `tuner run{kernel}`{resumed}")
    if info.finished_at is not None:
        parts.append(f"took {(info.finished_at - info.started_at).total_seconds():.0f} s")
    return ", ".join(parts)


def pick_run(
    store: Store, run: str | None, campaign: str | None = None, *, tunes: bool = False
) -> RunInfo:
    """The run that a text names, or the latest; with `tunes`, the latest that has tasks. Raises
    `TunerError` without one.

    A text is a number, a tag, a date such as 2026-11-20 (the newest run that had begun by the end
    of that day, UTC) or at least six hex digits of a git revision (the newest run of it). campaign:
    where a date or a revision looks; by default in all.
    """
    if run is not None and run.isascii() and run.isdigit():
        if len(run) > len(f"{LARGEST}") or int(run) > LARGEST:
            raise TunerError(f"there is no run {run:.40}", _HINT)
        return store.run(int(run))
    latest = store.last_run()
    if latest is None:
        raise TunerError("no runs here", FIRST_RUN)
    if run is None:
        with_tasks = (one for one in store.runs(None, None) if store.tasks(one.run_id))
        return next(with_tasks, latest) if tunes else latest
    tags = store.tags()
    if run in tags:
        return store.run(tags[run])
    of = f" of campaign {campaign!r:.120}" if campaign else ""
    if (day := _parse_date(run)) is not None:
        begun = (one for one in store.runs(campaign, None) if one.started_at.date() <= day)
        if found := next(begun, None):
            return found
        raise TunerError(f"no run{of} had begun by {run}", _HINT)
    if _REVISION.fullmatch(run):
        runs = store.runs(campaign, None)
        if found := next((one for one in runs if _is_revision(one, run)), None):
            return found
        raise TunerError(f"no run{of} is of revision {run}", _HINT)
    raise TunerError(f"no run has the tag {run!r:.120}{did_you_mean(run, tags)}", _HINT)


def _parse_date(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if "-" in text else None
    except ValueError:
        return None


def _is_revision(run: RunInfo, start: str) -> bool:
    known = f"{run.environment.get('git') or ''}"
    return bool(known) and (known.startswith(start) or start.startswith(known))


def find_change(each: TaskComparison) -> float | None:
    """The relative change of the times: 0.03 is 3 % slower."""
    a_us, b_us = each.times_us
    return b_us / a_us - 1 if a_us and b_us is not None else None


COMPARISON: tuple[Column[TaskComparison], ...] = (
    Column("kernel", lambda each: each.task.key.kernel),
    Column("workload", lambda each: each.task.key.workload.key),
    Column("device", lambda each: each.task.key.device.name),
    Column("a_us", lambda each: each.times_us[0], lambda each: format_us(each.times_us[0]), "a"),
    Column("b_us", lambda each: each.times_us[1], lambda each: format_us(each.times_us[1]), "b"),
    Column("change", find_change, lambda each: format_estimate("+.1%", find_change(each))),
    *estimate_columns(("ratio", "low", "high"), lambda each: each.log_ratio, ".3f"),
    verdict_column(lambda each: each.verdict, lambda each: each.log_ratio),
    Column("why"),
)


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
    if result.suspect:
        yield result.task.note or "confirmed on a card in quarantine"
    elif result.ships is None:
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
    verdict_column(_judge, lambda row: row.result.change),
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
