"""The section of variants that were only compiled: static facts of their binaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

from reports import figures
from reports.frames import static_frame
from reports.parts.view import Section, Table, figure_view
from reports.quantity import NOTHING, count, join_words, size
from reports.run_data import RunData, TaskData, compiled


@dataclass(frozen=True, slots=True)
class StaticFactsRow:
    """One build-only task. A fact is the pair of its median and its range, as text."""

    task: TaskData
    compiled: int
    verified: int
    failed: int
    registers: tuple[str, str]
    shared: tuple[str, str]
    spilling: int


def build(data: RunData) -> Section | None:
    """A table and a figure of build-only tasks; None for a run without any."""
    tasks = [task for task in data.tasks if task.state == "built"]
    if not tasks:
        return None
    rows = [_row(task) for task in tasks]
    frame = static_frame(tasks)
    view = None
    if len(frame):
        table = Table.of(
            ("task", "median registers", "range", "median shared", "range", "spilling"),
            ((r.task.label, *r.registers, *r.shared, r.spilling) for r in rows),
        )
        view = figure_view("static-facts", figures.static_facts(frame), _caption(rows), table)
    return Section(
        name="compiled",
        title="Compiled, not timed",
        template="static_facts.html.j2",
        context={"rows": rows, "figure": view},
    )


def _row(task: TaskData) -> StaticFactsRow:
    known = [trial for trial in task.trials if trial.registers is not None]
    return StaticFactsRow(
        task=task,
        compiled=sum(map(compiled, task.trials)),
        verified=sum(bool(trial.verified_by) for trial in task.correct),
        failed=len(task.failed),
        registers=_spread((trial.registers for trial in known), "{:g}".format),
        shared=_spread((trial.shared_bytes for trial in known), size),
        spilling=sum((trial.spill_bytes or 0) > 0 for trial in known),
    )


def _spread(values: Iterable[int | None], shown: Callable[[float], str]) -> tuple[str, str]:
    known = [value for value in values if value is not None]
    if not known:
        return NOTHING, ""
    return shown(median(known)), f"{shown(min(known))} to {shown(max(known))}"


def _caption(rows: list[StaticFactsRow]) -> str:
    spilling = sum(row.spilling for row in rows)
    total = sum(row.compiled for row in rows)
    targets = sorted({row.task.info.key.device.target for row in rows})
    text = f"{count(total, 'variant')} compiled for {join_words(targets)}; "
    return text + (
        f"{spilling} of them spill registers to memory, which usually costs time."
        if spilling
        else "none of them spills registers to memory."
    )
