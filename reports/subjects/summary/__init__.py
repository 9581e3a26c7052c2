"""The summary: a sentence per device, what changed since the last run, key figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import TypeAlias

from reports.quantity import NOTHING, count, duration, factor, percent, seconds
from reports.source import RunData
from reports.subjects.environment import list_environment_changes
from reports.subjects.summary.changes import list_task_changes
from reports.task_data import DEFAULT_KEPT, TaskData, compiled
from reports.view import Section, SectionSpec
from results_db.promotion_records import PromotionOutcome, PromotionRecord
from results_db.stored_records import NOT_CHECKED, RunStatus, Source, TrialRecord, describe_wrong
from search_spaces.records import Status
from tuner.base.log_ratio import LogRatio, Verdict
from tuner.base.statistics import finite_times, geometric_mean
from workers import backend_kinds

#: A text, and the verdict whose colour it has; empty for none.
Words: TypeAlias = tuple[str, str]

_STATUS_NOTES = {
    RunStatus.RUNNING: "The run is in progress; this report shows its present state.",
    RunStatus.INTERRUPTED: "The run was interrupted and can be resumed; this report shows its "
    "results.",
    RunStatus.FAILED: "The run ended with an error; this report shows the finished results.",
}


def build(data: RunData) -> Section:
    """Sentences, tiles and notes."""
    context = {
        "sentences": _sentences(data.tasks) or [("", [[(_explain_none(data), "")]])],
        "previous": data.previous,
        "changes": list_task_changes(data) if data.previous else None,
        "facts": _list_facts(data),
        "notes": _notes(data),
        "tiles": _tiles(data) if data.trials else [],
    }
    return Section("summary", "Summary", "summary.html.j2", context)


def _list_facts(data: RunData) -> list[tuple[str, str, str]]:
    """(name, before, now) of facts that both runs have, those of single kernels last."""
    changes = [each for each in list_environment_changes(data) if NOTHING not in each[1:]]
    return sorted(changes, key=lambda each: each[0].startswith("code of "))


def _explain_none(data: RunData) -> str:
    """What a run without tasks did."""
    summary = data.run.summary
    checked = "entries" in summary
    return f"{summary['summary']}" if checked else "This run has no tasks: nothing was tuned."


def _sentences(tasks: Sequence[TaskData]) -> list[tuple[str, list[list[Words]]]]:
    """(device, its lines as coloured parts) of each device that was measured."""
    sentences = []
    if tasks and all(task.verdict == "not timed" for task in tasks):
        sentences.append(("", [[("Nothing was timed: variants were only compiled.", "")]]))
    for device, _ in Counter(task.device for task in tasks).most_common():
        own = [task for task in tasks if task.device == device]
        here = [task for task in own if task.verdict != "not timed"]
        lines = [*(_describe_device(here) if here else []), *_list_wrong(own)]
        if lines:
            sentences.append((device, lines))
    return sentences


def _list_wrong(tasks: Iterable[TaskData]) -> list[list[Words]]:
    """A line on the trials with wrong results, if there are any."""
    failed = (trial for task in tasks for trial in task.failed)
    wrong = [trial for trial in failed if trial.status is Status.CORRECTNESS]
    if not wrong:
        return []
    return [[(f"{describe_wrong(len(wrong), wrong[0].config, wrong[0].message)}.", "failed")]]


def _describe_device(tasks: list[TaskData]) -> list[list[Words]]:
    tuned = [task for task in tasks if task.confirmed]
    left = len(tasks) - len(tuned)
    if not tuned:
        failed = sum(task.verdict == "failed" for task in tasks)
        words = count(left, "workload") + ", none confirmed yet"
        return [[(f"{words}; {failed} without a correct config." if failed else f"{words}.", "")]]
    rest = f" {count(left, 'workload')} without a confirmed winner." if left else ""
    if len(tuned) == 1:
        (task,) = tuned
        speed = [duration(task.median_us), *task.rates]
        if task.roofline is not None:
            speed.append(f"{percent(task.roofline)} of the roofline")
        end = f" ({', '.join(speed)}).{rest}"
        return [[(f"{task.label}: ", ""), (task.phrase, task.standing), (end, "")]]
    return [
        [(f"{count(len(tuned), 'workload')} tuned.{rest}", "")],
        _compare_baselines(tuned),
        _compare_defaults(tuned),
    ]


def _compare_baselines(tuned: list[TaskData]) -> list[Words]:
    """How often what was tuned is faster than the fastest baseline, and where it is slowest."""
    known = [(over.value, task) for task in tuned if (over := task.over_baseline)]
    if not known:
        return [("No baseline to compare with.", "")]
    mean = factor(geometric_mean(math.exp(value) for value, _ in known))
    parts: list[Words] = [(f"Against the fastest correct baseline of each: geomean {mean}", "")]
    verdicts = Counter(task.standing for _, task in known)
    for verdict in (Verdict.FASTER, Verdict.SLOWER, Verdict.SAME, Verdict.UNDECIDED):
        if verdicts[verdict]:
            parts += [(", ", ""), (f"{verdicts[verdict]} {verdict}", verdict)]
    if verdicts[Verdict.SLOWER]:
        _, task = min(known, key=lambda each: each[0])
        parts.append((f" (worst: {task.label}, {task.against_baseline})", ""))
    return [*parts, (".", "")]


def _compare_defaults(tuned: list[TaskData]) -> list[Words]:
    over = [task.over_default.ratio for task in tuned if task.over_default]
    if not over:
        return [("No default config to compare with.", "")]
    verdicts = Counter(task.verdict for task in tuned)
    shown = (Verdict.FASTER, Verdict.SAME, Verdict.UNDECIDED, DEFAULT_KEPT)
    found = [f"{verdicts[verdict]} {verdict}" for verdict in shown if verdicts[verdict]]
    mean = factor(geometric_mean(over))
    return [(f"Against the default config: geomean {mean}, {', '.join(found)}.", "")]


def _notes(data: RunData) -> list[str]:
    notes = [_STATUS_NOTES[data.run.status]] if data.run.status in _STATUS_NOTES else []
    notes += _never_timed(data)
    simulated = {
        task.device
        for task in data.tasks
        if backend_kinds.spec_of_stored(task.info.key.device.kind).replayed
    }
    notes += [
        f"{device} is simulated: its times are replayed from a recording, not measured."
        for device in sorted(simulated)
    ]
    notes += _describe_promotions(data.promotions)
    late = sum(trial.compiled for trial in data.trials)
    if late:
        notes.append(
            f"{count(late, 'launch', 'launches')} compiled on the device worker instead of "
            "on a builder; their device time includes compiling."
        )
    return notes


def _describe_promotions(promotions: Sequence[PromotionRecord]) -> list[str]:
    """One sentence per folder of published tables."""
    notes = []
    for folder in dict.fromkeys(f"{Path(each.path).parent}" for each in promotions):
        here = [each for each in promotions if f"{Path(each.path).parent}" == folder]
        outcomes = Counter(each.outcome for each in here)
        refused = dict.fromkeys(e.reason for e in here if e.outcome == PromotionOutcome.REFUSED)
        promoted = count(outcomes[PromotionOutcome.PROMOTED], "entry", "entries")
        found = [f"{promoted} promoted to {folder}"]
        if outcomes[PromotionOutcome.SAME]:
            found.append(f"{outcomes[PromotionOutcome.SAME]:,} there already")
        if refused:
            number = outcomes[PromotionOutcome.REFUSED]
            found.append(f"{number:,} refused: {'; '.join(refused)}")
        notes.append(f"{', '.join(found)}.")
    return notes


def _never_timed(data: RunData) -> list[str]:
    """One sentence per kernel and target that was only compiled."""
    groups: dict[tuple[str, str], list[TrialRecord]] = {}
    for task in data.tasks:
        if task.state == "built":
            key = (task.kernel, task.info.key.device.target)
            groups.setdefault(key, []).extend(task.trials)
    notes = []
    for (kernel, target), trials in sorted(groups.items()):
        built = count(sum(map(compiled, trials)), "variant")
        verified = sum(t.status is Status.CORRECT and bool(t.verified_by) for t in trials)
        number = sum(trial.state == NOT_CHECKED for trial in trials)
        unchecked = f"{number} not checked, " if number else ""
        notes.append(
            f"{kernel} for {target}: {built} compiled, {verified} verified in Triton's "
            f"interpreter, {unchecked}none timed: the device is absent."
        )
    return notes


def _tiles(data: RunData) -> list[tuple[str, str, str]]:
    """(number, its meaning, a note) of each tile."""
    trials = data.trials
    failed = Counter(t.status.value for t in trials if t.status is not Status.CORRECT)
    sources = Counter(trial.source for trial in trials)
    shared = {
        Source.REUSED: "reused", Source.VERIFIED: "verified again",
        Source.BINARY: "of an equal binary",
    }  # fmt: skip
    builds = finite_times(t.build_s for t in trials if t.source != Source.REUSED and t.build_s)
    notes = [f"{sources[source]:,} {how}" for source, how in shared.items() if sources[source]]
    failures = [f"{number:,} {status}" for status, number in failed.most_common()]
    return [
        *_ratio_tile([task.over_baseline for task in data.tasks], "over the fastest baseline"),
        *_ratio_tile([task.over_default for task in data.tasks], "over the default config"),
        *_speed_tile([task for task in data.tasks if task.confirmed]),
        (f"{len(trials):,}", "trials", ", ".join(notes)),
        (f"{sum(failed.values()):,}", "failed trials", ", ".join(failures)),
        *_device_tile([t for task in data.tasks if not task.absent for t in task.trials]),
        (f"{len(builds):,}", "builds", f"{seconds(sum(builds))} of compiling" if builds else ""),
    ]


def _device_tile(trials: list[TrialRecord]) -> list[tuple[str, str, str]]:
    """Seconds for which the devices were held; reused trials held none in this run."""
    if not trials:
        return []
    held = [trial for trial in trials if trial.source != Source.REUSED]
    workers = len({trial.worker for trial in held if trial.worker})
    time = seconds(sum(finite_times(trial.device_s for trial in held)))
    return [(time, "of device time", f"on {count(workers, 'worker')}" if workers else "")]


def _speed_tile(tasks: list[TaskData]) -> list[tuple[str, str, str]]:
    shares = [task.roofline for task in tasks if task.roofline is not None]
    if not shares:
        return []
    fastest = max(tasks, key=lambda each: each.roofline or 0.0)
    note = f"at most {percent(max(shares))}: {', '.join(fastest.rates)}"
    return [(percent(median(shares)), "of the speed on the data sheet (roofline), median", note)]


def _ratio_tile(ratios: list[LogRatio | None], what: str) -> list[tuple[str, str, str]]:
    values = [over.ratio for over in ratios if over is not None]
    if not values:
        return []
    return [(factor(geometric_mean(values)), what, f"geomean of {count(len(values), 'workload')}")]


SECTION = SectionSpec(build)
