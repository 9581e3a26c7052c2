"""The summary: one sentence per device, key figures, and notes on what was not timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from reports.outcome import TaskOutcome, outcome
from reports.parts.view import Section
from reports.quantity import count, factor, seconds
from reports.run_data import RunData, TaskData, compiled
from results_db.stored_records import RunStatus, Source, TrialRecord
from search_spaces.log_ratio import LogRatio, Verdict
from search_spaces.records import Status
from search_spaces.statistics import finite_times, geometric_mean
from workers import backend_kinds

_STATUS_NOTES = {
    RunStatus.RUNNING: "The run is in progress; this report shows its present state.",
    RunStatus.INTERRUPTED: "The run was interrupted and can be resumed; this report shows its "
    "results.",
    RunStatus.FAILED: "The run ended with an error; this report shows the finished results.",
}


def build(data: RunData) -> Section:
    """Sentences, tiles and notes."""
    outcomes = [(task, outcome(task)) for task in data.tasks]
    return Section(
        name="summary",
        title="Summary",
        template="summary.html.j2",
        context={
            "sentences": _sentences(outcomes),
            "notes": _notes(data),
            "tiles": _tiles(data, [result for _, result in outcomes]) if outcomes else [],
        },
    )


def _sentences(outcomes: list[tuple[TaskData, TaskOutcome]]) -> list[tuple[str, str]]:
    """(device, sentence) of each device that was measured."""
    if not outcomes:
        return [("", "This run has no tasks: nothing was tuned.")]
    sentences = []
    for device, _ in Counter(task.device for task, _ in outcomes).most_common():
        here = [(t, o) for t, o in outcomes if t.device == device and o.verdict != "not timed"]
        if here:
            sentences.append((device, _device_sentence([result for _, result in here])))
    return sentences or [("", "Nothing was timed: variants were only compiled.")]


def _device_sentence(results: list[TaskOutcome]) -> str:
    tuned = [result for result in results if result.confirmed]
    if not tuned:
        failed = sum(result.verdict == "failed" for result in results)
        words = count(len(results), "workload") + ", none confirmed yet"
        return f"{words}; {failed} without a correct config." if failed else f"{words}."
    text = f"{count(len(tuned), 'workload')} tuned"
    over = [r.over_baseline for r in tuned if r.over_baseline]
    if over:
        mean = "geomean " if len(over) > 1 else ""
        speedup = factor(geometric_mean(each.ratio for each in over))
        text += f", {mean}{speedup} over the fastest correct baseline"
    ahead = sum((-each).verdict() is Verdict.SLOWER for each in over)
    if ahead:
        text += f" (still slower on {ahead})"
    verdicts = Counter(result.verdict for result in tuned)
    found = [f"{verdicts[v]} {v}" for v in (Verdict.FASTER, Verdict.SAME, Verdict.UNDECIDED)]
    kept = verdicts["default kept"]
    found += [f"{kept} default kept"] * bool(kept)
    text += f". Against the default config: {', '.join(found)}"
    left = len(results) - len(tuned)
    return f"{text}. {count(left, 'workload')} without a confirmed winner." if left else f"{text}."


def _notes(data: RunData) -> list[str]:
    notes = [_STATUS_NOTES[data.run.status]] if data.run.status in _STATUS_NOTES else []
    notes += _never_timed(data)
    simulated = {task.device for task in data.tasks if _is_replayed(task)}
    notes += [
        f"{device} is simulated: its times are replayed from a recording, not measured."
        for device in sorted(simulated)
    ]
    late = sum(trial.compiled for trial in data.trials)
    if late:
        notes.append(
            f"{count(late, 'launch', 'launches')} compiled on the device worker instead of "
            "on a builder; their device time includes compiling."
        )
    return notes


def _is_replayed(task: TaskData) -> bool:
    return backend_kinds.spec_of_stored(task.info.key.device.kind).replayed


def _never_timed(data: RunData) -> list[str]:
    """One sentence per kernel and target that was only compiled."""
    groups: dict[tuple[str, str], list[TrialRecord]] = {}
    for task in data.tasks:
        if task.state == "built":
            key = (task.kernel, task.info.key.device.target)
            groups.setdefault(key, []).extend(task.trials)
    return [
        f"{kernel} for {target}: {count(sum(map(compiled, trials)), 'variant')} compiled, "
        f"{_count_verified(trials)} verified in Triton's interpreter, none timed: "
        "the device is absent."
        for (kernel, target), trials in sorted(groups.items())
    ]


def _count_verified(trials: Iterable[TrialRecord]) -> int:
    return sum(t.status is Status.CORRECT and bool(t.verified_by) for t in trials)


def _tiles(data: RunData, outcomes: list[TaskOutcome]) -> list[tuple[str, str, str]]:
    """(number, its meaning, a note) of each tile."""
    trials = data.trials
    failed = Counter(t.status.value for t in trials if t.status is not Status.CORRECT)
    reused = sum(trial.source == Source.REUSED for trial in trials)
    verified = sum(trial.source == Source.VERIFIED for trial in trials)
    copied = sum(trial.source == Source.BINARY for trial in trials)
    builds = finite_times(t.build_s for t in trials if t.source != Source.REUSED and t.build_s)
    shared = {"reused": reused, "verified again": verified, "of an equal binary": copied}
    notes = [f"{number:,} {how}" for how, number in shared.items() if number]
    return [
        *_ratio_tile([o.over_baseline for o in outcomes], "over the fastest baseline"),
        *_ratio_tile([o.over_default for o in outcomes], "over the default config"),
        (f"{len(trials):,}", "trials", ", ".join(notes)),
        (
            f"{sum(failed.values()):,}",
            "failed trials",
            ", ".join(f"{number:,} {status}" for status, number in failed.most_common()),
        ),
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


def _ratio_tile(ratios: list[LogRatio | None], what: str) -> list[tuple[str, str, str]]:
    values = [over.ratio for over in ratios if over is not None]
    if not values:
        return []
    return [(factor(geometric_mean(values)), what, f"geomean of {count(len(values), 'workload')}")]
