"""Failures: by status, with the most frequent messages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from reports.quantity import clean, count, pairs
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
    Status.CONSTRAINTS: "violated a constraint of the search space",
}
_LOOKS = {
    "constraints": (GREY, ""),
    "compile": (BLUE, "/"),
    "runtime": (ORANGE, "x"),
    "timeout": (PURPLE, "."),
    "correctness": (GREEN, "-"),
}
_MESSAGES, _DETAIL, _LINE = 5, 4000, 300
_NUMBER = r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"


@dataclass(frozen=True, slots=True)
class Kind:
    """Trials of one status whose messages differ only in their numbers."""

    #: The message of the first trial.
    message: str
    #: Number of trials.
    count: int
    #: The config of the first trial.
    example: str
    #: The task of the first trial.
    task: TaskData
    #: The raw text of the first failure.
    detail: str


@dataclass(frozen=True, slots=True)
class Group:
    """The failures of one status."""

    status: str
    meaning: str
    #: Number of trials.
    count: int
    #: The most frequent kinds.
    kinds: list[Kind]
    #: Number of trials of other kinds.
    others: int


def build(data: RunData) -> Section:
    """All failed trials of the run."""
    tasks = [task for task in data.tasks if task.failed]
    failed = [(task, trial) for task in tasks for trial in task.failed]
    groups = [group for status in MEANINGS if (group := _group(status, failed)) is not None]
    views = []
    if failed:
        shown, note = foremost(tasks, lambda task: len(task.failed))
        table = Table.of(("task", "status", "trials"), failures_frame(tasks).values.tolist())
        caption = _caption(data, groups) + note
        views = [figure_view("failures", failures(failures_frame(shown)), caption, table)]
    return Section("failures", "Failures", "failures.html.j2", {"groups": groups}, views)


SECTION = SectionSpec(build, after="tasks")


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


def _caption(data: RunData, groups: list[Group]) -> str:
    total = sum(group.count for group in groups)
    most = max(groups, key=lambda group: group.count)
    return (
        f"{total:,} of {count(len(data.trials), 'trial')} failed; the most frequent status is "
        f"“{most.status}” ({most.count:,} trials): the variant {most.meaning}."
    )


def _group(status: Status, failed: Iterable[tuple[TaskData, TrialRecord]]) -> Group | None:
    kinds: dict[str, list[tuple[TaskData, TrialRecord]]] = {}
    for task, trial in failed:
        if trial.status is status:
            kinds.setdefault(re.sub(_NUMBER, "#", trial.message), []).append((task, trial))
    if not kinds:
        return None
    ranked = sorted(kinds.values(), key=len, reverse=True)
    return Group(
        status=status.value,
        meaning=MEANINGS[status],
        count=sum(map(len, ranked)),
        kinds=[_kind(members) for members in ranked[:_MESSAGES]],
        others=sum(map(len, ranked[_MESSAGES:])),
    )


def _kind(members: list[tuple[TaskData, TrialRecord]]) -> Kind:
    task, trial = members[0]
    return Kind(
        message=clean(trial.message).strip()[:_LINE] or "no message",
        count=len(members),
        example=pairs(trial.config),
        task=task,
        detail=_tail(clean(trial.detail).strip()),
    )


def _tail(text: str) -> str:
    """The end of a long text, where compilers report the error."""
    return text if len(text) <= _DETAIL else f"…\n{text[-_DETAIL:]}"
