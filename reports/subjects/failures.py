"""Failures: by status, with the most frequent messages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import pandas as pd
import plotly.graph_objects as go

from reports.quantity import count
from reports.source import RunData
from reports.task_data import TaskData
from reports.theme import BLUE, GREEN, GREY, ORANGE, PURPLE, stack_bars
from reports.view import Section, SectionSpec, Table, figure_view, foremost
from results_db.stored_records import TrialRecord
from search_spaces.records import Status

#: Each status with its meaning, in the order of the section.
MEANINGS = {
    Status.CORRECTNESS: "ran, but with wrong outputs",
    Status.RUNTIME: "failed while running on the device",
    Status.TIMEOUT: "took longer than its time limit",
    Status.COMPILE: "did not compile, or cannot run on the target",
    Status.CONSTRAINTS: "exceeded a limit of the device, or has to spill",
}
_LOOKS = {
    "constraints": (GREY, ""),
    "compile": (BLUE, "/"),
    "runtime": (ORANGE, "x"),
    "timeout": (PURPLE, "."),
    "correctness": (GREEN, "-"),
}
#: A trial that failed, with its task.
Failed: TypeAlias = tuple[TaskData, TrialRecord]
_NUMBER = r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"


def build(data: RunData) -> Section:
    """All failed trials of the run."""
    tasks = [task for task in data.tasks if task.failed]
    groups = _group((task, trial) for task in tasks for trial in task.failed)
    views = []
    if tasks:
        shown, note = foremost(tasks, lambda task: len(task.failed))
        table = Table.of(("task", "status", "trials"), failures_frame(tasks).values.tolist())
        caption = _caption(data, groups) + note
        views = [figure_view("failures", failures(failures_frame(shown)), caption, table)]
    context = {"groups": groups, "meanings": MEANINGS}
    return Section("failures", "Failures", "failures.html.j2", context, views, bool(views))


def failures_frame(tasks: Sequence[TaskData]) -> pd.DataFrame:
    """One row per task and status of its failures: task, status, count."""
    found = [
        (task.label, status, number)
        for task in tasks
        for status, number in sorted(Counter(t.status.value for t in task.failed).items())
    ]
    return pd.DataFrame(found, columns=["task", "status", "count"])


def failures(frame: pd.DataFrame) -> go.Figure:
    """Stacked bars: one per task, one pattern and colour per status.

    frame: one row per task and status: task (in the order to show), status, count.
    """
    bars = frame.rename(columns={"status": "kind", "count": "size"})
    kinds = {name: (name, *look, f"%{{x}} {name}") for name, look in _LOOKS.items()}
    return stack_bars(bars, kinds, {"title": {"text": "failed trials"}, "rangemode": "tozero"})


def _group(failed: Iterable[Failed]) -> dict[str, list[list[Failed]]]:
    """By status: the trials whose messages differ only in their numbers, most frequent first."""
    groups: dict[str, dict[str, list[Failed]]] = {status.value: {} for status in MEANINGS}
    for task, trial in failed:
        kind = re.sub(_NUMBER, "#", trial.message)
        groups[trial.status.value].setdefault(kind, []).append((task, trial))
    ranked = {name: sorted(kinds.values(), key=len, reverse=True) for name, kinds in groups.items()}
    return {name: kinds for name, kinds in ranked.items() if kinds}


def _caption(data: RunData, groups: Mapping[str, list[list[Failed]]]) -> str:
    counts = {name: sum(map(len, kinds)) for name, kinds in groups.items()}
    most = max(counts, key=lambda name: counts[name])
    return (
        f"{sum(counts.values()):,} of {count(len(data.trials), 'trial')} failed; the most frequent "
        f"status is “{most}” ({counts[most]:,} trials): the variant {MEANINGS[Status(most)]}."
    )


SECTION = SectionSpec(build, after="tasks")
