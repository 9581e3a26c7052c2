"""Promote the results of a run into a folder of published tables, entry by entry.

An entry replaces the published one only where its config is faster beyond the interval, with equal
code, device and toolchain (`promotion_evidence.py`). The entries of a range do so together
(`promotion_groups.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from results_db.config_text import split_triton_config
from results_db.promotion_records import PromotionOutcome, PromotionRecord
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.records import Workload, digest
from tuner.runtime import Table, TableError, read
from tuner.runtime._entry import key_of
from tuner.tables.exporters import File
from tuner.tables.promotion_evidence import EvidenceSource, Remeasure, find_record
from tuner.tables.promotion_groups import WHOLE, EntryGroup, list_groups
from tuner.tables.published_versions import (
    bring_back,
    find_newest,
    list_versions,
    lock_folder,
    replace_files,
)
from tuner.tables.results import Results, join_space_hashes
from tuner.tables.text import file_name, text_of
from tuner.tables.valid_sizes import rule_of

if TYPE_CHECKING:
    from results_db import Store

#: Whether these files may be published, and why, in a clause.
Gate: TypeAlias = Callable[[Mapping[str, bytes]], tuple[bool, str]]
#: Facts of a toolchain on which no timing depends.
_FREE = {"python"}


@dataclass(slots=True)
class Promoter:
    """The promotion of one run's results into a folder."""

    store: Store
    run_id: int
    folder: Path
    kernels: Mapping[str, Kernel]
    #: Measures both configs of comparisons again where it can, as `tuner.compare.remeasure`.
    remeasure: Remeasure | None = None
    #: Decides about all tables together, where one is to be written.
    gate: Gate | None = None
    #: What it found.
    gated: str = ""

    def promote(self, on_wait: Callable[[], None]) -> list[PromotionRecord]:
        """Decide and write under the folder's lock; returns the decisions, which are stored.

        A folder without promotions is made, and locked, only to write into it. Raises
        `TunerError` where the run has no table, or a published file is none.
        """
        first = not list_versions(self.folder)
        records, files = self.decide() if first else ([], {})
        if files or not first:
            with lock_folder(self.folder, on_wait):
                if not first or list_versions(self.folder):  # another one was the first
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
            decided, merged = self._decide_table(results, self.folder / name, table)
            records += decided
            if merged is not None:
                files[name] = text_of(merged).encode()
        if files and self.gate is not None:
            passes, self.gated = self.gate(files)
            if not passes:
                return [self._refuse(each) for each in records], {}
        if not records:
            raise TunerError(
                f"run {self.run_id} has nothing to promote",
                "only tasks with a confirmed winner go into tables; see `tuner status`",
            )
        return records, files

    def _refuse(self, record: PromotionRecord) -> PromotionRecord:
        if record.outcome is not PromotionOutcome.PROMOTED:
            return record
        return replace(record, outcome=PromotionOutcome.REFUSED, reason=self.gated)

    def _decide_table(
        self, results: Results, path: Path, table: Table
    ) -> tuple[list[PromotionRecord], Table | None]:
        """The decisions about a table, and the one to publish; None where nothing is promoted."""
        try:
            published = read(path) if path.exists() else replace(table, entries=())
        except TableError as error:
            raise TunerError(f"{path}: {error}", WHOLE) from None
        differs = ", ".join(_list_differences(published, table))
        groups = list_groups(
            published, table, f"the table has another {differs}; {WHOLE}" if differs else ""
        )
        source = EvidenceSource(self.store, published, table, results.tasks, self.remeasure)
        evidence = iter(source.list_evidence([pair for group in groups for pair in group.pairs]))
        records, promoted = [], []
        for group in groups:
            known = [*islice(evidence, len(group.pairs))]
            outcome, reason = group.judge(known)
            keys = [key_of(pair.workload.as_dict()) for pair in group.pairs]
            ratios = dict(zip(keys, (ratio for ratio, _ in known), strict=True))
            if outcome is PromotionOutcome.PROMOTED:
                promoted.append(group)
            for entry in group.new.entries:
                former = group.old.find(entry.key)
                record = PromotionRecord(
                    run_id=self.run_id,
                    path=f"{path}",
                    kernel=table.kernel,
                    workload=Workload.from_mapping(entry.key).key,
                    outcome=outcome,
                    reason=reason if published.entries else "new table",
                    config=dict(entry.config),
                    former=dict(former.config) if former else None,
                    log_ratio=ratios.get(key_of(entry.key)),
                )
                records.append(record)
        return records, _merge(published, table, promoted) if promoted else None


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


def _merge(published: Table, table: Table, promoted: Sequence[EntryGroup]) -> Table:
    """The table to publish: the published entries with those of these groups."""
    gone = {key_of(entry.key) for group in promoted for entry in group.old.entries}
    new = [entry for group in promoted for entry in group.new.entries]
    merged = (*(each for each in published.entries if key_of(each.key) not in gone), *new)
    # The dim and the other dims under which the coverage of a range stands.
    places = {
        (name, Workload.from_mapping({n: v for n, v in entry.key.items() if n != name}).key)
        for entry in new
        for name in entry.serves
    }
    kept = [each for each in published.coverage if (each["dim"], each["of"]) not in places]
    came = [each for each in table.coverage if (each["dim"], each["of"]) in places]
    return replace(
        table,
        entries=merged,
        space_hash=join_space_hashes(
            f"{entry.provenance.get('space_hash') or published.space_hash}" for entry in merged
        ),
        rule=rule_of(merged) if published.rule.rule in ("sizes", "exact") else published.rule,
        default=table.default if table.default == published.default else None,
        coverage=(*kept, *came),
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
