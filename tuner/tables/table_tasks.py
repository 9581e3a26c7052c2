"""The entries of tables as tasks, so that they are compared like what runs have confirmed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import datetime
from pathlib import Path

from results_db.stored_records import SelectionRecord, Stage, TaskInfo, TaskKey
from search_spaces.errors import TunerError
from search_spaces.records import Device, Toolchain, Workload
from tuner.base.log_ratio import LogRatio, Verdict
from tuner.runtime import Entry, Table, TableError, read
from tuner.tables.table_check import table_files

#: Numbers of tasks that no database holds.
_NUMBERS = itertools.count(-1, -1)


def read_table_tasks(path: Path, known: Mapping[str, Device]) -> list[TaskInfo]:
    """One task per entry of a table, or of all tables in a folder; the default config is unknown.

    known: devices by fingerprint; a table does not have all facts of its own. Raises `TunerError`
    for a file that is no table, and for a folder without any.
    """
    found: list[TaskInfo] = []
    for file in table_files([path]):
        try:
            table = read(file)
        except TableError as error:
            raise TunerError(f"{file}: {error}", "rewrite it with `tuner export`") from None
        found += list_tasks(table, known)
    if not found:
        raise TunerError(f"{path}: there are no tables", "write them with `tuner export`")
    return found


def list_tasks(table: Table, known: Mapping[str, Device]) -> Iterator[TaskInfo]:
    """One task per entry of a table, as `read_table_tasks` gives them."""
    facts = table.device
    device = known.get(facts.fingerprint) or Device(
        facts.kind,
        facts.name,
        facts.target,
        sm_count=facts.sm_count,
        memory_bytes=facts.memory_bytes,
        shared_bytes=facts.shared_bytes,
        power_limit_w=facts.power_limit_w,
    )
    named = {field.name for field in fields(Toolchain)}
    versions = {name: text for name, text in table.toolchain.items() if name in named}
    for entry in table.entries:
        key = TaskKey(
            kernel=table.kernel,
            launch_hash=table.launch_hash,
            space_hash=table.space_hash,
            workload=Workload.from_mapping(entry.key),
            device=device,
            toolchain=Toolchain(**versions),
            kernel_hashes=table.kernel_hashes,
        )
        yield TaskInfo(next(_NUMBERS), 0, key, Stage.DONE, selection=_select(entry))


def _select(entry: Entry) -> SelectionRecord:
    gain, ends = entry.speedup_over_default, entry.interval
    low, high = map(math.log, ends) if ends and min(ends) > 0 else (None, None)
    confirmed = entry.provenance.get("confirmed_at")
    return SelectionRecord(
        winner=entry.config,
        tie_set=entry.tie_set,
        verdict=Verdict(entry.verdict),
        median_us=entry.median_us,
        log_ratio=LogRatio.of(math.log(gain), low, high) if gain else None,
        confirmed_at=datetime.fromisoformat(confirmed) if isinstance(confirmed, str) else None,
    )
