"""Two runs or tables compared task by task, from their confirmations.

Times of different passes are not directly comparable. Each run confirmed what it ships in one pass
with the default config and the baselines. One of these is the common anchor
(`task_history.find_change`):

    ln(B / A) = ln(anchor / A) - ln(anchor / B), each in its own pass,

and its interval is that of a difference of two independent estimates, with the noise between runs.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from results_db.shipped import select_shipped
from results_db.stored_records import SelectionRecord, TaskInfo
from results_db.task_history import find_change, list_breaks
from search_spaces.records import config_key
from tuner.base.log_ratio import LogRatio, Verdict, describe_same

#: Two times within this ratio of each other count as the same.
SAME = 1.01
SAME_RECORD = "same record"
BESIDE_DEFAULT = "the same config beside the default config, measured again"


@dataclass(frozen=True, slots=True)
class TaskComparison:
    """What run B ships for a task against what run A ships. A time is None where there is none."""

    #: The task in either run; None where the other run alone has it.
    old: TaskInfo | None
    new: TaskInfo | None
    #: What B's time is against A's; None where one run alone has the task.
    verdict: Verdict | None
    #: What the verdict rests on, where it does not rest on an interval.
    why: str = ""
    #: ln(B's time / A's) by what both measured; None where that is nothing.
    log_ratio: LogRatio | None = None
    #: Both times in microseconds where they were measured again, in one pass.
    remeasured_us: tuple[float, float] | None = None

    @property
    def task(self) -> TaskInfo:
        """The task, of B if B has it."""
        found = self.new or self.old
        assert found is not None
        return found

    @property
    def alike(self) -> float:
        """The share within which both times are the same; 0 where they may differ (`LogRatio`)."""
        return self.log_ratio.alike if self.log_ratio else 0.0

    @property
    def times_us(self) -> tuple[float | None, float | None]:
        """Both times in microseconds: as measured again, else each as confirmed in its own pass."""
        return self.remeasured_us or (_time_us(self.old), _time_us(self.new))


def count_verdicts(found: Sequence[TaskComparison]) -> str:
    """How many comparisons have each verdict: `0 faster, 1 slower, 14 same within 1.9 %`."""
    counts = Counter(Verdict.SAME if each.alike else each.verdict for each in found)
    within = max((each.alike for each in found), default=0.0)
    texts: dict[Verdict | None, str] = {each: each for each in Verdict}
    texts[Verdict.SAME] = describe_same(within)
    texts[None] = f"task{'s' * (counts[None] > 1)} in one of them only"
    shown = [each for each in texts if counts[each] or each in (Verdict.FASTER, Verdict.SLOWER)]
    return ", ".join(f"{counts[each]} {texts[each]}" for each in shown)


def compare_runs(old: Sequence[TaskInfo], new: Sequence[TaskInfo]) -> list[TaskComparison]:
    """Compare the tasks of run A with those of run B, in B's order; then those of A alone.

    Tasks belong together by kernel, workload and device. Of several with the same three, those
    with the same code do, and the others in their order.
    """
    waiting: dict[tuple[str, ...], list[TaskInfo]] = defaultdict(list)
    partner: dict[int, TaskInfo] = {}
    for identify in (_identify_code, _identify):
        waiting.clear()
        taken = {task.task_id for task in partner.values()}
        for task in old:
            if task.task_id not in taken:
                waiting[identify(task)].append(task)
        for task in new:
            if task.task_id not in partner and waiting[identify(task)]:
                partner[task.task_id] = waiting[identify(task)].pop(0)
    found = [
        _compare_tasks(partner[task.task_id], task)
        if task.task_id in partner
        else TaskComparison(None, task, None, "only in B")
        for task in new
    ]
    left = {task.task_id for tasks in waiting.values() for task in tasks}
    only = [TaskComparison(each, None, None, "only in A") for each in old if each.task_id in left]
    return [*found, *only]


def _compare_tasks(old: TaskInfo, new: TaskInfo) -> TaskComparison:
    a, b = old.selection, new.selection
    if old.task_id == new.task_id or _is_same_record(a, b):
        return TaskComparison(old, new, Verdict.SAME, SAME_RECORD)
    if a is None or b is None:
        lacks = "neither" if a is None and b is None else "A" if a is None else "B"
        why = f"{lacks} confirmed {'a' if lacks == 'neither' else 'no'} winner"
        return TaskComparison(old, new, Verdict.UNDECIDED, why)
    breaks = tuple(list_breaks(old, new))
    _, ratio = find_change(old, new, breaks)
    if ratio is None:
        return TaskComparison(old, new, Verdict.UNDECIDED, _explain_no_anchor(a, b, breaks))
    return TaskComparison(old, new, judge_times(ratio), "", ratio)


def _is_same_record(a: SelectionRecord | None, b: SelectionRecord | None) -> bool:
    """Whether both are the same confirmation, of which a table keeps only a part."""
    if a is None or b is None or a == b or None not in (a.default, b.default):
        return a is not None and a == b
    configs = [config_key(select_shipped(each).config) for each in (a, b)]
    return configs[0] == configs[1] and a.confirmed_at == b.confirmed_at is not None


def _explain_no_anchor(a: SelectionRecord, b: SelectionRecord, breaks: Sequence[str]) -> str:
    """Why both have measured nothing that their times can be compared by."""
    if None in (a.median_us, b.median_us):
        return "nothing was timed"
    if None in (a.default, b.default):
        return "no common default config is known"
    if breaks:
        return f"not comparable by the default config ({', '.join(breaks)}), and by no baseline"
    return "both ship the default config, and no baseline was measured in both"


def judge_times(ratio: LogRatio) -> Verdict:
    """The verdict on a time from ln(it / another); times within `SAME` are the same."""
    if -math.log(SAME) <= ratio.low and ratio.high <= math.log(SAME):
        return Verdict.SAME
    if ratio.high < 0:
        return Verdict.FASTER
    return Verdict.SLOWER if ratio.low > 0 else Verdict.UNDECIDED


def _time_us(task: TaskInfo | None) -> float | None:
    return select_shipped(task.selection).median_us if task and task.selection else None


def _identify(task: TaskInfo) -> tuple[str, ...]:
    return task.key.kernel, task.key.workload.key, task.key.device.fingerprint


def _identify_code(task: TaskInfo) -> tuple[str, ...]:
    return (*_identify(task), task.key.launch_hash)
