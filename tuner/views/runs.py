"""Runs: how they are named and listed."""

from __future__ import annotations

import re
from datetime import date
from typing import TYPE_CHECKING

from results_db.errors import FIRST_RUN
from search_spaces.errors import TunerError
from search_spaces.near_names import did_you_mean
from tuner.campaign import lease
from tuner.views.column import Column, columns_of

if TYPE_CHECKING:
    from results_db import Store
    from results_db.stored_records import RunInfo

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
        parts.append("its driver is dead; rerun `tuner run` to resume it")
    if info.finished_at is not None:
        parts.append(f"took {(info.finished_at - info.started_at).total_seconds():.0f} s")
    return ", ".join(parts)


def pick_run(store: Store, run: str | None, campaign: str | None = None) -> RunInfo:
    """The run that a text names, or the latest. Raises `TunerError` without one.

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
        return latest
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
