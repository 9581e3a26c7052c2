"""What changed since the previous run of the campaign: times, chosen configs, tasks."""

from __future__ import annotations

from collections.abc import Mapping

from reports.quantity import clean, duration
from reports.source import RunData
from reports.view import ListingCell
from results_db.config_text import describe_changes
from results_db.run_comparison import SAME, TaskComparison, compare_runs, count_verdicts
from results_db.shipped import select_shipped
from results_db.stored_records import TaskInfo
from search_spaces.records import Config
from tuner.base.log_ratio import Verdict, describe_same

_ORDER = (Verdict.SLOWER, Verdict.FASTER, None, Verdict.UNDECIDED, Verdict.SAME)
_PARAMETERS = 3


def list_task_changes(data: RunData) -> tuple[str, list[ListingCell]]:
    """A sentence, and the tasks that changed: slower ones first, then by the size of the change."""
    now = [task.info for task in data.tasks]
    found = [each for each in compare_runs(data.previous_tasks, now) if any(each.times_us)]
    found.sort(key=lambda each: (_ORDER.index(each.verdict), -_find_change(each)))
    names = {task.info.task_id: (f"#{task.slug}", task.label) for task in data.tasks}
    sentence = count_verdicts(found) if found else "no task was timed in either"
    return sentence, [_describe(each, names) for each in found if _is_change(each)]


def _is_change(each: TaskComparison) -> bool:
    """Whether to list it: what is undecided only where the times differ."""
    if each.verdict is Verdict.UNDECIDED and not each.alike and _find_change(each) >= SAME - 1:
        return True
    settled = each.verdict not in (Verdict.SAME, Verdict.UNDECIDED)
    return settled or None in each.times_us or bool(_list_differences(each))


def _find_change(each: TaskComparison) -> float:
    before, now = each.times_us
    return abs(now / before - 1) if before and now else 0.0


def _describe(each: TaskComparison, names: Mapping[int, tuple[str, str]]) -> ListingCell:
    key = each.task.key
    href, label = names.get(each.task.task_id, ("", clean(f"{key.kernel} {key.workload.key}")))
    before, now = each.times_us
    missing = "new" if each.old is None else "gone"
    tone = Verdict.SAME if each.alike else each.verdict or missing
    same = describe_same(each.alike) if each.alike else ""
    parts = [_describe_times(before, now), each.why, same, *_list_differences(each)]
    text = "; ".join(part for part in parts if part) if each.verdict else duration(now or before)
    return ListingCell(label, href, tone, (text,))


def _describe_times(before: float | None, now: float | None) -> str:
    if not before or not now:
        return f"{duration(before)} → {duration(now)}"
    sign = "+" if now >= before else "-"
    change = f"{sign}{duration(abs(now - before))}, {sign}{abs(now / before - 1):.1%}"
    return f"{duration(before)} → {duration(now)} ({change})"


def _list_differences(each: TaskComparison) -> list[str]:
    """How the chosen config changed; empty where it did not."""
    before, now = _find_config(each.old), _find_config(each.new)
    if before is None or now is None:
        return []
    changes = describe_changes(now, before)
    more = [f"{len(changes) - _PARAMETERS} more"] if len(changes) > _PARAMETERS else []
    return [f"config: {', '.join([*changes[:_PARAMETERS], *more])}"] if changes else []


def _find_config(task: TaskInfo | None) -> Config | None:
    return select_shipped(task.selection).config if task and task.selection else None
