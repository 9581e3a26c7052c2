"""What is known of the times of a new config against the published one.

The evidence is, in this order: a new pass of both configs, if one was made; the confirmation of
the new config, where it timed the published one too; both confirmations, relative to the default
config.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from results_db.errors import StoreError
from results_db.run_comparison import TaskComparison
from results_db.shipped import select_shipped
from results_db.stored_records import TaskInfo
from results_db.task_history import find_change, list_breaks
from search_spaces.records import Config, Workload, config_key
from tuner.base.log_ratio import EQUAL, LogRatio, Verdict
from tuner.runtime import Entry, Table
from tuner.runtime._entry import key_of
from tuner.tables.table_check import list_tasks
from workers.job_records import Mode

if TYPE_CHECKING:
    from results_db import Store

#: ln(new time / published time), None where nothing is known, and how it was compared or why not.
Evidence: TypeAlias = tuple[LogRatio | None, str]
Remeasure: TypeAlias = Callable[[Sequence[TaskComparison]], Sequence[TaskComparison]]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two configs for one workload: that of a published entry and that of a run's."""

    workload: Workload
    former: Entry
    new: Entry


@dataclass(slots=True)
class EvidenceSource:
    """Where the times of a published table and of a run's table are looked up.

    tasks: those of the run. remeasure: measures both sides again where it can.
    """

    store: Store
    published: Table
    table: Table
    tasks: Sequence[TaskInfo]
    remeasure: Remeasure | None = None

    def list_evidence(self, pairs: Sequence[Pair]) -> list[Evidence]:
        """What is known of each pair."""
        again = self._measure(pairs)
        found: list[Evidence] = []
        for at, pair in enumerate(pairs):
            if again and again[at].remeasured_us is not None:
                found.append((again[at].log_ratio, "measured again"))
            else:
                ratio, why = self._compare_stored(pair)
                why = "; ".join(filter(None, [why, again[at].why if again else ""]))
                found.append((ratio, why))
        return found

    def _measure(self, pairs: Sequence[Pair]) -> Sequence[TaskComparison]:
        if self.remeasure is None or not pairs:
            return ()
        known = {task.key.device.fingerprint: task.key.device for task in self.tasks}
        sides = []
        for table, name in ((self.published, "former"), (self.table, "new")):
            entries = [replace(getattr(each, name), key=each.workload.as_dict()) for each in pairs]
            sides.append(list_tasks(replace(table, entries=tuple(entries)), known))
        return self.remeasure(
            [TaskComparison(old, new, Verdict.UNDECIDED) for old, new in zip(*sides, strict=True)]
        )

    def _compare_stored(self, pair: Pair) -> Evidence:
        """ln(new time / published time) from confirmations."""
        new = self._find_task(self.tasks, pair.workload)
        if new is None:
            return None, "the run has no result of this size"
        ends = _time_of(new, pair.new.config), _time_of(new, pair.former.config)
        if ends[0] is not None and ends[1] is not None:
            return ends[0] - ends[1], "in one confirmation"
        record = find_record(self.store, self.published, pair.former)
        if record is None:
            return None, "this database does not have the published result"
        old: TaskInfo | None = record
        if key_of(pair.former.key) != key_of(pair.workload.as_dict()):
            old = self._find_task(self.store.tasks(record.run_id), pair.workload)
        if old is None:
            return None, "the published run has no result of this size"
        if not (_ships(old, pair.former.config) and _ships(new, pair.new.config)):
            return None, "another config was confirmed at this size"
        if breaks := list(list_breaks(old, new)):
            return None, f"the published result has another {', '.join(breaks)}"
        anchor, ratio = find_change(old, new, ())
        return ratio, f"by {anchor}" if anchor else "no default config was timed with both"

    def _find_task(self, tasks: Iterable[TaskInfo], workload: Workload) -> TaskInfo | None:
        """The newest task of the table's kernel, code and device with a workload."""
        table, key = self.table, key_of(workload.as_dict())
        found = [
            task
            for task in tasks
            if (task.key.kernel, task.key.launch_hash) == (table.kernel, table.launch_hash)
            and task.key.device.fingerprint == table.device.fingerprint
            and key_of(task.key.workload.as_dict()) == key
            and task.selection is not None
        ]
        return max(found, key=lambda task: task.task_id, default=None)


def find_record(store: Store, table: Table, entry: Entry) -> TaskInfo | None:
    """The task that an entry was made from; None if another database has it."""
    number = entry.provenance.get("task")
    try:
        task = store.task(number if isinstance(number, int) else 0)
    except StoreError:
        return None
    confirmed = task.selection and task.selection.confirmed_at
    is_same = (
        task.run_id == entry.provenance.get("run")
        and (task.key.kernel, task.key.launch_hash) == (table.kernel, table.launch_hash)
        and key_of(task.key.workload.as_dict()) == key_of(entry.key)
        and (confirmed.isoformat() if confirmed else None) == entry.provenance.get("confirmed_at")
    )
    return task if is_same else None


def describe_ratio(ratio: LogRatio, why: str) -> str:
    """ln(new time / published time) as a speed-up with its interval."""
    low, high = (-ratio).interval or (0.0, 0.0)
    return f"{(-ratio).ratio:.3f}x as fast [{low:.3f}, {high:.3f}], {why}"


def _ships(task: TaskInfo, config: Config) -> bool:
    return task.selection is not None and (
        config_key(select_shipped(task.selection).config) == config_key(config)
    )


def _time_of(task: TaskInfo, config: Config) -> LogRatio | None:
    """ln(config's time / the winner's) in the task's confirmation; None where it is not known."""
    assert task.selection is not None
    wanted = config_key(config)
    if wanted == config_key(task.selection.winner):
        return EQUAL
    for final in task.finals:
        if final.stage is Mode.CONFIRM and config_key(final.config) == wanted and final.log_ratio:
            return final.log_ratio
    return None
