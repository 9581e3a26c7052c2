"""The pages of `tuner serve` as texts: each reads the database and gives one whole page."""

from __future__ import annotations

import io
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias, TypeVar
from urllib.parse import quote

from reports.history import view_history
from reports.page import Head, describe_run, render_page, render_sections
from reports.source import RunData, load
from reports.subjects import build_sections
from reports.task_data import TaskData
from reports.view import ListingCell, ListingRow, Section, list_section
from results_db import Store
from results_db.errors import UnknownError
from results_db.run_comparison import TaskComparison, compare_runs, count_verdicts
from results_db.stored_records import RunInfo, RunStatus, TaskInfo
from results_db.task_history import list_histories
from search_spaces.kernel import Kernel
from search_spaces.records import digest
from tuner import tables
from tuner.base.log_ratio import Verdict
from tuner.campaign import lease
from tuner.tables import exporters
from tuner.views.column import Column, Listing, cell, columns_of
from tuner.views.news import EVENTS, Event, begin_note, list_events
from tuner.views.outcomes import list_tasks
from tuner.views.progress_display import duration
from tuner.views.regression_list import REGRESSIONS, list_regressions
from tuner.views.runs import COMPARISON, RUNS, list_results, pick_run
from tuner.views.runs import describe_run as describe_state

R = TypeVar("R")
#: The kernels of tasks by name, as far as the configuration has them.
FindKernels: TypeAlias = Callable[[Sequence[TaskInfo]], Mapping[str, Kernel]]
#: Runs on one page.
_RUNS = 50
#: Seconds for which a state that may change counts as known, for all who ask.
FRESH_S = 1.0
_HOME = ("/", "all runs")
_COMPARE = ("/compare", "compare")
_HISTORY = ("/history", "history")
_NOTE = ("/note", "what happened lately")
_ABOVE = (_HOME, _COMPARE, _HISTORY)
#: The sections of a run's page, which need no trial, and those of a task's.
_OF_RUN = ("summary", "ranges", "environment")
_OF_TASK = ("tasks", "failures")


class Pages:
    """Renders pages from an open store, which it only reads. Threads may share it."""

    def __init__(self, store: Store, find_kernels: FindKernels) -> None:
        self._store = store
        self._find_kernels = find_kernels
        self._marks: dict[tuple[int, int | None], tuple[float, str]] = {}
        self._outcomes: dict[int, tuple[str, str | None]] = {}
        self._lock = threading.Lock()

    # -- what has changed --------------------------------------------------------------------------
    def mark_runs(self) -> str:
        """A text that changes when the list of runs does."""
        return digest([self._mark(run) for run in self._store.runs(limit=_RUNS)])

    def mark_run(self, run_id: int, task_id: int | None = None) -> str:
        """A text that changes when the results of a run do, or of one task in it."""
        return self._mark(self._store.run(run_id), task_id)

    def _mark(self, run: RunInfo, task_id: int | None = None) -> str:
        run_id = run.run_id
        facts = [run_id, run.status, run.tag, f"{run.finished_at}", run.lease]
        if run.status != RunStatus.RUNNING:
            return digest(facts)
        with self._lock:
            made_s, mark = self._marks.get((run_id, task_id), (-FRESH_S, ""))
            if time.monotonic() - made_s >= FRESH_S:
                tasks = self._store.overview(run_id, task_id)
                seen = [[task.task_id, task.stage, task.trials, task.correct] for task in tasks]
                mark = digest([*facts, lease.abandoned(run), seen])
                self._marks[run_id, task_id] = time.monotonic(), mark
        return mark

    def is_running(self, run_id: int) -> bool:
        """Whether a driver works on the run."""
        return _has_driver(self._store.run(run_id))

    # -- pages -------------------------------------------------------------------------------------
    def render_runs(self, mark: str, before: int | None = None) -> str:
        """The runs before a number (None: the newest), newest first."""
        runs = self._store.runs(limit=_RUNS, before=before)
        links = [_NOTE]
        links += [(f"/?before={runs[-1].run_id}", "older runs")] if len(runs) == _RUNS else []
        words = [] if runs else ["There are no runs here yet."]
        to_run = dict.fromkeys(("run", "campaign"), lambda run: f"/runs/{run.run_id}")
        outcome = Column("against_fastest_baseline", self._judge_run)
        rows = _lay_out(Listing((*RUNS[:3], outcome, *_LISTED), runs), to_run)
        section = list_section("runs", "Runs", *rows, paragraphs=words, links=links)
        name = self._store.url.rpartition("/")[2]
        head = Head("Runs", name, above=_ABOVE, live="/live", mark=mark)
        return render_sections(head, [section], figures=False)

    def render_run(self, run_id: int, mark: str) -> str:
        """What a run has found so far, without its trials; its tasks lead to theirs."""
        data = load(self._store, run_id, trials_of=())
        summary, *others = build_sections(data, _OF_RUN)
        tasks = self._list_tasks(data)
        head = _describe(data.run, live=f"/runs/{run_id}/live", mark=mark)
        drawn = any(section.name == "ranges" for section in others)
        return render_sections(head, [summary, tasks, *others], figures=drawn)

    def render_report(self, run_id: int) -> str:
        """The whole report, as `tuner report` writes it."""
        return render_page(load(self._store, run_id))

    def render_task(self, run_id: int, task_id: int) -> str:
        """One task with all its trials."""
        data = load(self._store, run_id, trials_of=(task_id,))
        chosen = tuple(task for task in data.tasks if task.info.task_id == task_id)
        if not chosen:
            raise UnknownError(
                f"run {run_id} has no task {task_id}", f"/runs/{run_id} lists its tasks"
            )
        (task,) = chosen
        sections = build_sections(RunData(data.run, chosen, data.calibrations), _OF_TASK)
        above = (_HOME, (f"/runs/{run_id}#{task.slug}", f"run {run_id}"))
        aside = f"task {run_id}/{task.number}"
        return render_sections(Head(task.label, aside, above=above), sections)

    def render_comparison(self, a: str, b: str) -> str:
        """What B ships against what A ships; a form that asks for both where one is missing."""
        runs = self._store.runs(limit=_RUNS)
        known = {f"{run.run_id}": f"{run.run_id} {run.campaign} {run.tag or ''}" for run in runs}
        known |= {text: text for text in (a, b) if text and text not in known}
        latest = [*known, "", ""]
        menus = [("b", "Run", b or latest[0]), ("a", "against", a or latest[1])]
        found: list[TaskComparison] = []
        words: list[str] = []
        headings: dict[str, str] = {}
        if a and b:
            new = pick_run(self._store, b)
            old = pick_run(self._store, a, new.campaign)
            found = compare_runs(self._store.tasks(old.run_id), self._store.tasks(new.run_id))
            words = [f"Run {new.run_id} against run {old.run_id}: {count_verdicts(found)}."]
            headings = {"a_us": f"run {old.run_id}", "b_us": f"run {new.run_id}"}
        section = list_section(
            "comparison",
            "Comparison",
            *_lay_out(
                Listing(_arrange(COMPARISON, ("kernel", "verdict"), headings), found),
                {"kernel": _find_newer},
            ),
            paragraphs=words,
            menus=menus,
            options=known,
        )
        return render_sections(Head("Compare", above=_ABOVE), [section], figures=False)

    def render_kernels(self) -> str:
        """The kernels that have a history, and the regressions of all of them."""
        names = self._store.list_kernels()
        rows = [ListingRow([ListingCell(name, f"/history/{quote(name)}")]) for name in names]
        sections = [list_section("kernels", "Kernels", ("Kernel",), rows)]
        if found := list_regressions(self._store):
            links = {
                "kernel": lambda each: f"/history/{quote(each.task.key.kernel)}",
                "since": lambda each: f"/runs/{each.task.run_id}/tasks/{each.task.task_id}",
            }
            columns = _arrange(REGRESSIONS, ("kernel", "change", "since", "revision"))
            listed = _lay_out(Listing(columns, found), links)
            sections.insert(0, list_section("regressions", "Regressions", *listed))
        return render_sections(Head("History", above=_ABOVE), sections, figures=False)

    def render_note(self) -> str:
        """What happened since the last note that was sent, as `tuner note` says it."""
        begin = begin_note(self._store)
        links = {"run": _find_page("run", "/runs/"), "kernel": _find_page("kernel", "/history/")}
        rows = _lay_out(Listing(columns_of(*EVENTS), list(list_events(self._store, begin))), links)
        section = list_section("note", f"Since {begin:%Y-%m-%d %H:%M} UTC", *rows)
        return render_sections(Head("Note", above=_ABOVE), [section], figures=False)

    def render_history(self, kernel: str) -> str:
        """The confirmed results of a kernel run by run, as a figure and a listing."""
        found = list_histories(
            self._store.list_kernel_tasks(kernel, limit=_RUNS), self._store.quarantines()
        )
        if not found:
            raise UnknownError(
                f"no run has a kernel {kernel!r}", "/history lists those that are known"
            )
        view = view_history(kernel, found)
        results = list_results(found, _RUNS)
        rows = _lay_out(results, {"run": lambda row: f"/runs/{row.result.run.run_id}"})
        sections = [list_section("results", "Results", *rows)]
        if view:
            sections.insert(0, Section.of("history", "Times", figures=[view]))
        head = Head(kernel, "history", above=_ABOVE)
        return render_sections(head, sections, figures=view is not None)

    def make_files(self, run_id: int, kind: str) -> tuple[str, bytes]:
        """A run's results in a format of `tuner export`: one file, or a zip archive of several."""
        run = self._store.run(run_id)
        kernels = self._find_kernels(self._store.tasks(run_id))
        results = tables.Results(self._store, run.run_id, kernels)
        files = list(exporters.load(kind).files(results))
        if not files:
            raise UnknownError(f"run {run_id} has nothing to export as {kind}", "")
        if len(files) == 1:
            return quote(files[0].name.rpartition("/")[2]), files[0].content
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                archive.writestr(file.name, file.content)
        return f"run-{run_id}-{quote(kind)}.zip", packed.getvalue()

    def _judge_run(self, run: RunInfo) -> str | None:
        """How many tasks of a run are faster and slower than what one would run instead."""
        mark = self._mark(run)
        known, outcome = self._outcomes.get(run.run_id, ("", None))
        if known != mark:
            tasks = self._store.tasks(run.run_id)
            found = Counter(TaskData(task, (), "", "").standing for task in tasks)
            words = (f"{found[verdict]} {verdict}" for verdict in Verdict if found[verdict])
            outcome = ", ".join(words) or None
            self._outcomes[run.run_id] = mark, outcome
        return outcome

    def _list_tasks(self, data: RunData) -> Section:
        run_id = data.run.run_id
        slugs = {task.info.task_id: task.slug for task in data.tasks}
        to_task = {
            "kernel": lambda each: (
                f"/runs/{run_id}/tasks/{each.task.task_id}#{slugs.get(each.task.task_id, '')}"
            )
        }
        rows = _lay_out(
            list_tasks(self._store, run_id), to_task, lambda e: slugs.get(e.task.task_id, "")
        )
        formats = [(f"/runs/{run_id}/files/{kind}", kind) for kind in ("tuner", "csv")]
        links = [(f"/runs/{run_id}/report", "report with all figures"), *formats]
        return list_section("listing", "Tasks", *rows, links=links)


def _arrange(
    columns: Sequence[Column[R]],
    first: Sequence[str],
    headings: Mapping[str, str] = MappingProxyType({}),
) -> list[Column[R]]:
    """Columns with these before the others, in sight on a narrow screen, and other headings."""
    ranks = {name: rank for rank, name in enumerate(first)}
    return [
        replace(
            column,
            heading=headings.get(column.name, column.heading),
            rank=ranks.get(column.name, len(first) + column.rank),
        )
        for column in columns
    ]


def _find_newer(each: TaskComparison) -> str:
    """The page of a task, in the newer run that has it."""
    return f"/runs/{each.task.run_id}/tasks/{each.task.task_id}"


def _describe(run: RunInfo, live: str, mark: str) -> Head:
    """The head of a run's page, which is followed while a driver works on it."""
    head = replace(describe_run(run), above=_ABOVE, state=describe_state(run))
    return replace(head, live=live, mark=mark) if _has_driver(run) else head


def _has_driver(run: RunInfo) -> bool:
    return run.status == RunStatus.RUNNING and not lease.abandoned(run)


def _describe_status(run: RunInfo) -> str:
    return "driver is dead" if lease.abandoned(run) else run.status


def _took(run: RunInfo) -> str | None:
    if run.finished_at is None:
        return None
    return duration((run.finished_at - run.started_at).total_seconds()).strip()


#: The columns behind a run's name and outcome.
_LISTED: tuple[Column[RunInfo], ...] = (
    Column("status", _describe_status),
    *columns_of("started_at", "seed"),
    Column("took", _took),
)


def _find_page(name: str, above: str) -> Callable[[Event], str]:
    """The page of what an event names, if it names one."""
    return lambda event: f"{above}{quote(f'{event[name]}')}" if event.get(name) else ""


def _lay_out(
    listing: Listing[R],
    links: Mapping[str, Callable[[R], str]] = MappingProxyType({}),
    anchor: Callable[[R], str] = lambda record: "",
) -> tuple[list[str], list[ListingRow]]:
    """The headings and rows of a listing, with a workload below its kernel and devices last.

    links: the pages to which cells lead, by column.
    """
    seen = listing.for_people(filled=True)
    seen.sort(key=lambda column: column.name == "device")
    kernels = any(column.name == "kernel" for column in seen)
    below = [column for column in seen if kernels and column.name == "workload"]
    seen = [column for column in seen if column not in below]

    def make_cell(column: Column[R], record: R) -> ListingCell:
        href = links[column.name](record) if column.name in links else ""
        lines = [f"{each.present(record)}" for each in below if column.name == "kernel"]
        text = cell(column.present(record))
        return ListingCell(text, href, column.find_tone(record), tuple(lines))

    rows = [
        ListingRow([make_cell(column, each) for column in seen], anchor(each))
        for each in listing.records
    ]
    return [column.title.capitalize() for column in seen], rows
