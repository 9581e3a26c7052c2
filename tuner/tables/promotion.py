"""Promote the results of a run into a folder of published tables, entry by entry.

An entry replaces the published one only where its config is faster beyond the interval, with equal
code, device and toolchain (`promotion_evidence.py`). The entries of a range do so together
(`range_promotion.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from results_db.config_text import split_triton_config
from results_db.promotion_records import PromotionOutcome, PromotionRecord
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.records import Workload, config_key, digest
from tuner.base.log_ratio import LogRatio
from tuner.runtime import Entry, Table, TableError, read
from tuner.runtime._entry import key_of
from tuner.tables.exporters import File
from tuner.tables.promotion_evidence import (
    Evidence,
    EvidenceSource,
    Pair,
    Remeasure,
    describe_ratio,
    find_record,
)
from tuner.tables.published_versions import bring_back, find_newest, lock_folder, replace_files
from tuner.tables.range_promotion import WHOLE, RangeUpdate, list_updates, merge_coverage
from tuner.tables.results import Results, join_space_hashes
from tuner.tables.text import file_name, text_of
from tuner.tables.valid_sizes import rule_of

if TYPE_CHECKING:
    from results_db import Store

#: Facts of a toolchain on which no timing depends.
_FREE = {"python"}


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
    #: Further published entries that leave the table with a promotion: those of the same range.
    leaving: tuple[Entry, ...] = ()

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
    #: Measures both configs of comparisons again where it can, as `tuner.compare.remeasure`.
    remeasure: Remeasure | None = None

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
            raise TunerError(f"{path}: {error}", WHOLE) from None
        differs = ", ".join(_list_differences(published, table))
        updates = [] if differs else list_updates(published, table)
        ranged = {key_of(entry.key) for update in updates for entry in update.entries}
        alone = [entry for entry in table.entries if key_of(entry.key) not in ranged]
        found = [_decide_alone(published, entry, differs) for entry in alone]
        open_pairs = [each for each in found if isinstance(each, Pair)]
        pairs = [*open_pairs, *(pair for update in updates for pair in update.pairs)]
        source = EvidenceSource(self.store, published, table, results.tasks, self.remeasure)
        evidence = iter(source.list_evidence(pairs))
        decided = [
            _judge(each, next(evidence)) if isinstance(each, Pair) else each for each in found
        ]
        for update in updates:
            decided += _judge_range(published, update, list(islice(evidence, len(update.pairs))))
        return decided, published


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


def _decide_alone(published: Table, entry: Entry, differs: str) -> Decision | Pair:
    """The decision that needs no comparison of times; else the configs to compare."""
    former = published.index.get(key_of(entry.key))
    refused = PromotionOutcome.REFUSED
    if differs:
        return Decision(entry, refused, f"the table has another {differs}; {WHOLE}", former)
    if former is not None and config_key(former.config) == config_key(entry.config):
        return Decision(entry, PromotionOutcome.SAME, "the table has this config", former)
    if former is not None and former.serves:
        why = "the table's entry serves a range with others"
        return Decision(entry, refused, f"{why}; {WHOLE}", former)
    if entry.median_us is None:
        return Decision(entry, refused, "it has no confirmed time", former)
    if former is None:
        return Decision(entry, PromotionOutcome.PROMOTED, "new workload")
    return Pair(Workload.from_mapping(entry.key), former, entry)


def _list_differences(published: Table, table: Table) -> Iterator[str]:
    """What of code, device and toolchain differs, so that times cannot be compared."""
    if published.launch_hash != table.launch_hash:
        yield "code of the kernel"
    if published.device.fingerprint != table.device.fingerprint:
        yield "device"
    for name in sorted((published.toolchain.keys() | table.toolchain.keys()) - _FREE):
        was, now = published.toolchain.get(name, "none"), table.toolchain.get(name, "none")
        if was != now:
            yield f"{name} ({was}, not {now})"


def _judge(pair: Pair, evidence: Evidence) -> Decision:
    entry, former, (ratio, why) = pair.new, pair.former, evidence
    if ratio is None or ratio.ends is None:
        reason = f"it cannot be compared: {why}; --remeasure measures both"
        return Decision(entry, PromotionOutcome.REFUSED, reason, former)
    figures = describe_ratio(ratio, why)
    if ratio.high < 0:
        return Decision(entry, PromotionOutcome.PROMOTED, figures, former, ratio)
    reason = "it is slower" if ratio.low > 0 else "it is not faster beyond its interval"
    return Decision(entry, PromotionOutcome.REFUSED, f"{reason}: {figures}", former, ratio)


def _judge_range(
    published: Table, update: RangeUpdate, evidence: Sequence[Evidence]
) -> list[Decision]:
    """The one decision about a range, as that about each of its entries."""
    outcome, reason = update.judge(evidence)
    pairs = {key_of(pair.workload.as_dict()): at for at, pair in enumerate(update.pairs)}
    decisions = []
    for entry in update.entries:
        at, hit = pairs.get(key_of(entry.key)), published.find(entry.key)
        ratio = None if at is None else evidence[at][0]
        former = hit.entry if hit is not None and hit.entry in update.former else None
        decisions.append(Decision(entry, outcome, reason, former, ratio, update.former))
    return decisions


def _merge(published: Table | None, table: Table, decisions: Sequence[Decision]) -> Table:
    """The table to publish: the published entries with those that were promoted."""
    if published is None:
        return table
    entries = {key_of(entry.key): entry for entry in published.entries}
    promoted = [each for each in decisions if each.outcome is PromotionOutcome.PROMOTED]
    for former in (entry for each in promoted for entry in each.leaving):
        entries.pop(key_of(former.key), None)
    entries |= {key_of(each.entry.key): each.entry for each in promoted}
    merged = tuple(entries.values())
    return replace(
        table,
        entries=merged,
        space_hash=join_space_hashes(
            f"{entry.provenance.get('space_hash') or published.space_hash}" for entry in merged
        ),
        rule=rule_of(merged) if published.rule.rule in ("sizes", "exact") else published.rule,
        default=table.default if table.default == published.default else None,
        coverage=merge_coverage(published, table, [each.entry for each in promoted]),
    )


# -- exporters of tables: the format of `tuner.runtime`, and lists of Triton configs ---------------
class Tables:
    """`tuner`: one table per kernel and device, as `tuner.runtime` reads them."""

    def files(self, results: Results) -> Iterator[File]:
        for name, table in name_files(results):
            yield File(name, text_of(table).encode(), _tasks(table))


class TritonConfigs:
    """`triton`: a list of configs per key, winner first, each for `triton.Config(**config)`."""

    def files(self, results: Results) -> Iterator[File]:
        for name, table in name_files(results):
            rows = [
                {
                    "key": dict(entry.key),
                    "configs": [
                        split_triton_config(entry.config),
                        *(split_triton_config(tie) for tie in entry.tie_set if tie != entry.config),
                    ],
                }
                for entry in table.entries
            ]
            text = json.dumps(rows, indent=2, sort_keys=True, allow_nan=False) + "\n"
            yield File(f"{name.removesuffix('.json')}.triton.json", text.encode(), _tasks(table))


def name_files(results: Results) -> Iterator[tuple[str, Table]]:
    """Tables with their file names. Tables of several toolchains get a digest in their names."""
    count = Counter(file_name(table) for table in results.tables)
    for table in results.tables:
        name = file_name(table)
        if count[name] > 1:
            suffix = digest([table.launch_hash, dict(table.toolchain)], 6)
            name = f"{name.removesuffix('.json')}-{suffix}.json"
        yield name, table


def _tasks(table: Table) -> tuple[int, ...]:
    found = (entry.provenance.get("task") for entry in table.entries)
    return tuple(sorted(task for task in found if isinstance(task, int)))
