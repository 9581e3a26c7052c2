"""The tables that can be checked on this machine, each with its kernel and device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from results_db import NothingStoredError, Store
from results_db.shipped import select_shipped
from results_db.stored_records import TaskInfo
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.records import Config, Status, Toolchain, Workload, config_key
from tuner.compare.targets import BenchTarget, bench_target, find_spec
from tuner.runtime import Entry, Table, TableError, read
from tuner.settings.sections import Settings
from tuner.tables.results import device_facts
from tuner.tables.table_check import list_tables
from workers import backend_kinds
from workers.job_records import Mode


@dataclass(frozen=True, slots=True)
class TableHere:
    """A table, its kernel as it is now, and the device to check it on."""

    path: Path
    table: Table
    target: BenchTarget


@dataclass(frozen=True, slots=True)
class Refused:
    """A table that is not checked."""

    path: Path
    #: One line.
    reason: str
    #: Whether the table itself is at fault: malformed, or of a kernel that is gone.
    finding: bool


def tables_here(
    settings: Settings,
    base: Path,
    paths: Sequence[str | Path],
    kernels: Mapping[str, Sequence[Kernel]],
    *,
    any_device: bool = False,
    build_only: bool = False,
) -> tuple[list[TableHere], list[Refused]]:
    """The tables in files and folders that can be checked here, and the others with the reason.

    kernels: declarations by name that precede registered names. any_device: also tables of other
    models of device, on the device here. build_only: the device may be absent. Raises `TunerError`
    where there is no table at all.
    """
    found: list[TableHere] = []
    refused: list[Refused] = []
    for path in list_tables(paths):
        try:
            table = read(path)
            spec = find_spec(table.kernel, table.device.kind, kernels, table.launch_hash)
        except TableError as error:
            refused.append(Refused(path, f"{error}", finding=True))
            continue
        except TunerError as error:
            refused.append(Refused(path, f"its kernel is gone: {error.message}", finding=True))
            continue
        try:
            target = bench_target(
                settings, base, spec, target=_target(table, build_only), timed=not build_only
            )
        except TunerError as error:
            refused.append(Refused(path, error.message, finding=False))
            continue
        if reason := _other_device(table, target, any_device or build_only):
            refused.append(Refused(path, reason, finding=False))
        else:
            found.append(TableHere(path, table, target))
    return found, refused


def _target(table: Table, build_only: bool) -> str | None:
    kind = table.device.kind
    if kind not in backend_kinds.target_kinds():
        raise TunerError(f"is of a device of the unknown kind {kind!r}", "install its plug-in")
    backend = backend_kinds.spec(kind)
    if backend.replayed:
        return None
    return table.device.target if build_only and backend.stand_in else kind


def _other_device(table: Table, target: BenchTarget, any_device: bool) -> str:
    """Why the table is not for the device here; empty text where it is."""
    if any_device or table.device.matches(device_facts(target.device)):
        return ""
    return f"is of {table.device.name}, and the device here is {target.device.name}"


# -- what the results database knows of a table's entry: runners-up, binaries, size of its search
@dataclass(frozen=True, slots=True)
class Evidence:
    """The stored task that an entry was made from."""

    toolchain: Toolchain
    #: The configs next to the winner, the nearest first.
    runners_up: tuple[Config, ...]
    #: Digests of binaries by config key.
    binaries: Mapping[str, str]
    #: Number of trials that were measured.
    trials: int
    #: Seconds for which they held the device, without race and confirmation.
    device_s: float


def evidence_of(database: str, table: Table) -> dict[int, Evidence]:
    """What the database knows, by the position of the entry; empty without a database.

    The newest task is taken that ships the entry's config for its workload and device.
    """
    try:
        with Store.open(database, create=False) as store:
            return dict(_all(store, table))
    except NothingStoredError:
        return {}


def _all(store: Store, table: Table) -> Iterator[tuple[int, Evidence]]:
    own = [
        task
        for task in store.list_confirmed(table.kernel)
        if task.fingerprint == table.device.fingerprint and table.launch_hash == task.launch_hash
    ]
    for at, entry in enumerate(table.entries):
        key = Workload.from_mapping(entry.key).key
        numbers = [task.task_id for task in own if task.workload == key]
        made_by = entry.provenance.get("task")
        numbers.sort(key=lambda number: number != made_by)
        tasks = map(store.task, numbers)
        task = next((task for task in tasks if _ships(task, entry)), None)
        if task is not None:
            yield at, _evidence(store, task)


def _ships(task: TaskInfo, entry: Entry) -> bool:
    chosen = task.selection
    return chosen is not None and config_key(select_shipped(chosen).config) == config_key(
        entry.config
    )


def _evidence(store: Store, task: TaskInfo) -> Evidence:
    trials = store.trials(task.task_id)
    return Evidence(
        toolchain=task.key.toolchain,
        runners_up=tuple(_runners_up(task)),
        binaries={config_key(t.config): t.binary_hash for t in trials if t.binary_hash},
        trials=sum(trial.median_us is not None for trial in trials),
        device_s=sum(trial.device_s for trial in trials),
    )


def _runners_up(task: TaskInfo) -> Iterator[Config]:
    """The runner-up of the selection, then the finalists of the race by their time."""
    chosen = task.selection
    if chosen is not None and chosen.runner_up is not None:
        yield chosen.runner_up
    race = [
        (final.log_ratio.value, at, final.config)
        for at, final in enumerate(task.finals)
        if final.stage == Mode.RACE
        and final.status is Status.CORRECT
        and final.log_ratio is not None
    ]
    yield from (config for _, _, config in sorted(race, key=lambda item: item[:2]))
