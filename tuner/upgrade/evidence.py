"""What the results database knows of a table's entry: runners-up, binaries, size of its search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from results_db import NothingStoredError, Store
from results_db.shipped import select_shipped
from results_db.stored_records import TaskInfo
from search_spaces.records import Config, Status, Toolchain, Workload, config_key
from tuner.runtime import Entry, Table
from workers.job_records import Mode


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
