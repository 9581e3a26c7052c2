"""What happened, in one sentence, a few numbers and an honest note on what was never timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from reports.quantity import count, factor, listed, seconds
from reports.sections.results import Outcome, outcome
from reports.source import RunData, TaskData, compiled
from reports.stats import finite, geomean
from reports.view import Section
from results_db.records import TrialRecord
from search_spaces.records import Status

_STATUS_NOTES = {
    "running": "The run is still going on; this is its state so far.",
    "interrupted": "The run was interrupted; what had finished is below, and it can be resumed.",
    "failed": "The run ended with an error; what had finished is below.",
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


def _sentences(outcomes: list[tuple[TaskData, Outcome]]) -> list[tuple[str, str]]:
    """(device, what was found there), one per device that was measured."""
    if not outcomes:
        return [("", "This run has no tasks: nothing was tuned.")]
    sentences = []
    for device, _ in Counter(task.device for task, _ in outcomes).most_common():
        here = [(t, o) for t, o in outcomes if t.device == device and o.verdict != "not timed"]
        if here:
            sentences.append((device, _device_sentence([result for _, result in here])))
    return sentences or [("", "Nothing was timed: variants were only compiled.")]


def _device_sentence(results: list[Outcome]) -> str:
    tuned = [result for result in results if result.confirmed]
    if not tuned:
        failed = sum(result.verdict == "failed" for result in results)
        words = count(len(results), "workload") + ", none confirmed yet"
        return f"{words}; {failed} without a correct config." if failed else f"{words}."
    text = f"{count(len(tuned), 'workload')} tuned"
    over = [r.over_baseline.value for r in tuned if r.over_baseline]
    if over:
        text += f", geomean {factor(geomean(over))} over the fastest correct baseline"
    ahead = sum(r.over_baseline is not None and r.over_baseline.verdict == "slower" for r in tuned)
    if ahead:
        text += f" (which still wins on {ahead})"
    verdicts = Counter(result.verdict for result in tuned)
    found = [f"{verdicts[v]} {v}" for v in ("faster", "same", "undecided", "slower")]
    text += f". Against the default config: {', '.join(found)}"
    left = len(results) - len(tuned)
    return f"{text}. {count(left, 'workload')} without a confirmed winner." if left else f"{text}."


def _notes(data: RunData) -> list[str]:
    notes = [_STATUS_NOTES[data.run.status]] if data.run.status in _STATUS_NOTES else []
    notes += _never_timed(data)
    simulated = {task.device for task in data.tasks if task.info.key.device.kind == "simulated"}
    notes += [
        f"{device} is simulated: its times are replayed from a recording, not measured."
        for device in sorted(simulated)
    ]
    late = sum(trial.compiled for trial in data.trials)
    if late:
        notes.append(
            f"{count(late, 'launch', 'launches')} compiled on the device worker instead of "
            "coming ready from a builder; their device time includes compiling."
        )
    return notes


def _never_timed(data: RunData) -> list[str]:
    """One sentence per kernel and target that was only compiled."""
    groups: dict[tuple[str, str], list[TrialRecord]] = {}
    for task in data.tasks:
        if task.state == "built":
            key = (task.kernel, task.info.key.device.target)
            groups.setdefault(key, []).extend(task.trials)
    return [
        f"{kernel} for {target}: {count(sum(map(compiled, trials)), 'variant')} compiled, "
        f"{_verified(trials)} verified in Triton's interpreter, none timed: no such device here."
        for (kernel, target), trials in sorted(groups.items())
    ]


def _verified(trials: Iterable[TrialRecord]) -> int:
    return sum(t.status is Status.CORRECT and bool(t.verified_by) for t in trials)


def _tiles(data: RunData, outcomes: list[Outcome]) -> list[tuple[str, str, str]]:
    """(number, what it is, a remark)"""
    trials = data.trials
    failed = Counter(t.status.value for t in trials if t.status is not Status.CORRECT)
    fresh = [t for t in trials if t.source != "reused"]
    builds = [t for t in fresh if (finite(t.build_s) or 0) > 0]
    twins = sum(trial.source == "binary" for trial in trials)
    over_default = [o.over_default.value for o in outcomes if o.over_default]
    over_baseline = [o.over_baseline.value for o in outcomes if o.over_baseline]
    remarks = [f"{len(trials) - len(fresh):,} reused"] if len(fresh) < len(trials) else []
    remarks += [f"{twins:,} with another's binary"] if twins else []
    return [
        (
            factor(geomean(over_baseline)),
            "over the fastest baseline",
            f"geomean of {count(len(over_baseline), 'workload')}",
        ),
        (
            factor(geomean(over_default)),
            "over the default config",
            f"geomean of {count(len(over_default), 'workload')}",
        ),
        (f"{len(trials):,}", "trials", listed(remarks)),
        (
            f"{sum(failed.values()):,}",
            "failed trials",
            ", ".join(f"{number} {status}" for status, number in failed.most_common()),
        ),
        (
            seconds(sum(finite(t.device_s) or 0.0 for t in fresh)),
            "device time",
            f"in {count(len({t.worker for t in fresh if t.worker}), 'worker')}",
        ),
        (
            f"{len(builds):,}",
            "builds",
            f"{seconds(sum(finite(t.build_s) or 0.0 for t in builds))} of compiling",
        ),
    ]
