"""Promote the results of a run into a folder of published tables, entry by entry.

An entry replaces the published one only where its config is faster beyond the interval, with equal
code, device and toolchain. The evidence is, in this order: a new pass of both configs, if one was
made; the confirmation of the new config, where it timed the published one too; both confirmations,
relative to the default config.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from results_db.errors import StoreError
from results_db.promotion_records import PromotionOutcome, PromotionRecord
from results_db.run_comparison import TaskComparison
from results_db.shipped import select_shipped
from results_db.stored_records import TaskInfo
from results_db.task_history import find_change, list_breaks
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.log_ratio import LogRatio, Verdict
from search_spaces.records import Workload, config_key
from tuner.runtime import Entry, Table, TableError, read
from tuner.runtime._entry import key_of
from tuner.tables.published_versions import (
    bring_back,
    find_newest,
    lock_folder,
    replace_files,
)
from tuner.tables.results import Results, join_space_hashes
from tuner.tables.table_files import name_files
from tuner.tables.table_tasks import read_table_tasks
from tuner.tables.text import text_of
from tuner.tables.valid_sizes import rule_of
from workers.job_records import Mode

if TYPE_CHECKING:
    from results_db import Store

#: Facts of a toolchain on which no timing depends.
_FREE = {"python"}
_WHOLE = "`tuner export` replaces the whole table"


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one entry of a run's table."""

    entry: Entry
    outcome: PromotionOutcome
    reason: str
    #: The published entry of the same workload; None for a new one.
    former: Entry | None = None
    #: ln(time / the published config's time); None where nothing was compared.
    log_ratio: LogRatio | None = None

    def to_record(self, run_id: int, path: Path, kernel: str) -> PromotionRecord:
        """The decision as the database keeps it."""
        return PromotionRecord(
            run_id=run_id,
            path=f"{path}",
            kernel=kernel,
            workload=Workload.from_mapping(self.entry.key).key,
            outcome=self.outcome,
            reason=self.reason,
            config=dict(self.entry.config),
            former=dict(self.former.config) if self.former else None,
            log_ratio=self.log_ratio,
        )


@dataclass(slots=True)
class Promoter:
    """The promotion of one run's results into a folder."""

    store: Store
    run_id: int
    folder: Path
    kernels: Mapping[str, Kernel]
    #: Measures both configs of comparisons again where it can, as `tuner.bench.remeasure`.
    remeasure: Callable[[Sequence[TaskComparison]], Sequence[TaskComparison]] | None = None

    def promote(self, on_wait: Callable[[], None]) -> list[PromotionRecord]:
        """Decide and write under the folder's lock; returns the decisions, which are stored.

        Raises `TunerError` where the run has no table, or a published file is none.
        """
        with lock_folder(self.folder, on_wait):
            records, files = self.decide()
            for path in replace_files(self.folder, files) if files else ():
                record_tables(self.store, path)
        self.store.record_promotions(records)
        return records

    def decide(self) -> tuple[list[PromotionRecord], dict[str, bytes]]:
        """The decisions about all entries, and the tables to write, by their file names."""
        results = Results(self.store, self.run_id, self.kernels)
        records, files = [], {}
        for name, table in name_files(results):
            path = self.folder / name
            decisions, published = self._decide_table(results, path, table)
            records += [each.to_record(self.run_id, path, table.kernel) for each in decisions]
            if any(each.outcome is PromotionOutcome.PROMOTED for each in decisions):
                files[name] = text_of(_merge(published, table, decisions)).encode()
        if not records:
            raise TunerError(
                f"run {self.run_id} has nothing to promote",
                "only tasks with a confirmed winner go into tables; see `tuner status`",
            )
        return records, files

    def _decide_table(
        self, results: Results, path: Path, table: Table
    ) -> tuple[list[Decision], Table | None]:
        if not path.exists():
            promoted = PromotionOutcome.PROMOTED
            return [Decision(each, promoted, "new table") for each in table.entries], None
        try:
            published = read(path)
        except TableError as error:
            raise TunerError(f"{path}: {error}", _WHOLE) from None
        differs = ", ".join(_list_differences(published, table))
        found = [_decide_alone(published, entry, differs) for entry in table.entries]
        open_places = [at for at, each in enumerate(found) if isinstance(each, Entry)]
        decided = self._compare(results, path, published, [table.entries[at] for at in open_places])
        for at, decision in zip(open_places, decided, strict=True):
            found[at] = decision
        return [each for each in found if isinstance(each, Decision)], published

    def _compare(
        self, results: Results, path: Path, published: Table, entries: Sequence[Entry]
    ) -> list[Decision]:
        """The decisions about entries whose config differs from the published one."""
        tasks = {task.task_id: task for task in results.tasks}
        news = [tasks[_find_number(entry, "task")] for entry in entries]
        formers = [published.index[key_of(entry.key)] for entry in entries]
        again: Sequence[TaskComparison] = ()
        if self.remeasure is not None and entries:
            devices = {task.key.device.fingerprint: task.key.device for task in news}
            published_tasks = read_table_tasks(path, devices)
            olds = {key_of(task.key.workload.as_dict()): task for task in published_tasks}
            again = self.remeasure(
                [
                    TaskComparison(olds[key_of(former.key)], new, Verdict.UNDECIDED)
                    for former, new in zip(formers, news, strict=True)
                ]
            )
        decisions = []
        for at, (entry, former, new) in enumerate(zip(entries, formers, news, strict=True)):
            if again and again[at].remeasured_us is not None:
                ratio, why = again[at].log_ratio, "measured again"
            else:
                ratio, why = _compare_stored(self.store, published, former, new)
                why = "; ".join(filter(None, [why, again[at].why if again else ""]))
            decisions.append(_judge(entry, former, ratio, why))
        return decisions


def roll_back(store: Store, folder: Path, on_wait: Callable[[], None]) -> list[tuple[Path, str]]:
    """Undo the last promotion into a folder; returns the files with what was done to them."""
    find_newest(folder)  # a folder of another name gets no lock
    with lock_folder(folder, on_wait):
        written, deleted = bring_back(folder)
        for path in written:
            record_tables(store, path)
    return [(path, "restored") for path in written] + [(path, "deleted") for path in deleted]


def record_tables(store: Store, path: Path) -> None:
    """Record which results of the database a table holds, so that none of them is pruned."""
    table = read(path)
    tasks = [find_record(store, table, entry) for entry in table.entries]
    task_ids = sorted({task.task_id for task in tasks if task is not None})
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    store.record_export(f"{path}", "tuner", None, sha256, task_ids)


def find_record(store: Store, table: Table, entry: Entry) -> TaskInfo | None:
    """The task that an entry was made from; None if another database has it."""
    try:
        task = store.task(_find_number(entry, "task"))
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


def _find_number(entry: Entry, name: str) -> int:
    number = entry.provenance.get(name)
    return number if isinstance(number, int) else 0


def _decide_alone(published: Table, entry: Entry, differs: str) -> Decision | Entry:
    """The decision that needs no comparison of times; else the entry itself."""
    former = published.index.get(key_of(entry.key))
    refused = PromotionOutcome.REFUSED
    if differs:
        return Decision(entry, refused, f"the table has another {differs}; {_WHOLE}", former)
    if former is not None and config_key(former.config) == config_key(entry.config):
        return Decision(entry, PromotionOutcome.SAME, "the table has this config", former)
    if entry.serves or (former is not None and former.serves):
        why = "its entries serve a range together"
        return Decision(entry, refused, f"{why}; {_WHOLE}", former)
    if entry.median_us is None:
        return Decision(entry, refused, "it has no confirmed time", former)
    if former is None:
        return Decision(entry, PromotionOutcome.PROMOTED, "new workload")
    return entry


def _list_differences(published: Table, table: Table) -> Iterator[str]:
    """What of code, device and toolchain differs, so that times cannot be compared."""
    if published.launch_hash != table.launch_hash:
        yield "code of the kernel"
    elif published.check_hash != table.check_hash:
        yield "reference, inputs, tolerance or baselines"
    if published.device.fingerprint != table.device.fingerprint:
        yield "device"
    for name in sorted((published.toolchain.keys() | table.toolchain.keys()) - _FREE):
        was, now = published.toolchain.get(name, "none"), table.toolchain.get(name, "none")
        if was != now:
            yield f"{name} ({was}, not {now})"


def _compare_stored(
    store: Store, published: Table, former: Entry, new: TaskInfo
) -> tuple[LogRatio | None, str]:
    """ln(new time / published time) from confirmations, and how it was compared, or why not."""
    wanted = config_key(former.config)
    for final in new.finals:
        if final.stage is Mode.CONFIRM and config_key(final.config) == wanted and final.log_ratio:
            ships = select_shipped(new.selection) if new.selection else None
            if ships is not None and not ships.default_kept:
                return -final.log_ratio, "in one confirmation"
    old = find_record(store, published, former)
    if old is None:
        return None, "this database does not have the published result"
    if breaks := list(list_breaks(old, new)):
        return None, f"the published result has another {', '.join(breaks)}"
    anchor, ratio = find_change(old, new, ())
    return ratio, f"by {anchor}" if anchor else "no default config was timed with both"


def _judge(entry: Entry, former: Entry, ratio: LogRatio | None, why: str) -> Decision:
    if ratio is None or ratio.ends is None:
        reason = f"it cannot be compared: {why}; --remeasure measures both"
        return Decision(entry, PromotionOutcome.REFUSED, reason, former)
    low, high = (-ratio).interval or (0.0, 0.0)
    figures = f"{(-ratio).ratio:.3f}x as fast [{low:.3f}, {high:.3f}], {why}"
    if ratio.high < 0:
        return Decision(entry, PromotionOutcome.PROMOTED, figures, former, ratio)
    reason = "it is slower" if ratio.low > 0 else "it is not faster beyond its interval"
    return Decision(entry, PromotionOutcome.REFUSED, f"{reason}: {figures}", former, ratio)


def _merge(published: Table | None, table: Table, decisions: Sequence[Decision]) -> Table:
    """The table to publish: the published entries with those that were promoted."""
    if published is None:
        return table
    entries = {key_of(entry.key): entry for entry in published.entries}
    for each in decisions:
        if each.outcome is PromotionOutcome.PROMOTED:
            entries[key_of(each.entry.key)] = each.entry
    merged = tuple(entries.values())
    return replace(
        table,
        entries=merged,
        space_hash=join_space_hashes(
            f"{entry.provenance.get('space_hash') or published.space_hash}" for entry in merged
        ),
        rule=rule_of(merged) if published.rule.rule in ("sizes", "exact") else published.rule,
        default=table.default if table.default == published.default else None,
        coverage=published.coverage,
    )
