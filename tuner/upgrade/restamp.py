"""Carry results and tables over an edit of code that launches what it launched before.

An edit anywhere in a kernel's modules gives it another identity, and its results are measured
again. Where the edit changes nothing, that can be proven: each config that counts is built again,
and the digest of its launches (machine code, grids, options and arguments) compared with the one
that was stored. If all are equal, the winner is checked once by the present reference, and the
result or the table is given the present identity. No time is measured, and no device is needed.

A time holds for equal launches alone. So the versions of the compiler have to be those of the
result, and a variant for a processor, whose binary does not cover the Python code around it, is
never carried over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from pathlib import Path

from results_db import NothingStoredError, Store
from results_db.shipped import select_shipped
from results_db.stored_records import TaskInfo
from search_spaces.atomic_file import write_output
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.records import Config, Status, Workload, config_key
from tuner.bench import (
    BenchTarget,
    LocalSession,
    ProgressCallback,
    Variant,
    bench_target,
    check_variants,
    find_spec,
    group_by_pool,
)
from tuner.settings.sections import Settings
from tuner.tables.results import digest_binaries
from tuner.tables.text import text_of
from tuner.tables.valid_sizes import renew_sizes, rule_of
from tuner.upgrade.tables_here import TableHere
from workers import backend_kinds
from workers.job_records import Artifact


@dataclass(frozen=True, slots=True)
class Carried:
    """What became of one entry of a table, or of one task."""

    kernel: str
    workload: str
    #: The table's path, or `task` with its number.
    of: str
    #: Why it was not carried over; empty where it was.
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Claim:
    """What the stored result says: its configs, and what they launch."""

    workload: Workload
    winner: Config
    #: The winner, and the configs whose launches have to be equal as well.
    configs: tuple[Config, ...]
    #: Their digests by config key, or one digest of all.
    binaries: Mapping[str, str] | str | None
    #: The version of Triton that built them.
    triton: str


def restamp_tables(
    settings: Settings,
    tables: Sequence[TableHere],
    on_progress: ProgressCallback,
    *,
    drop: bool = False,
    dry_run: bool = False,
) -> Iterator[Carried]:
    """Give tables the present identity where their entries launch what they launched before.

    drop: entries without proof leave their table; without it, one of them keeps the table as it
    is. dry_run: nothing is written. Yields the outcome of every entry of tables whose identity is
    another one.
    """
    stale = [item for item in tables if not _is_current(item.target.kernel, item)]
    done, total = 0, sum(len(item.table.entries) for item in stale)
    for (runner, paths), shared in group_by_pool(stale, attrgetter("target")).items():
        with LocalSession(settings, runner, paths, on_progress) as session:
            for item in shared:
                proof = _Proof(settings, item.target, session)
                kept = []
                for entry in item.table.entries:
                    workload = Workload.from_mapping(entry.key)
                    claim = _Claim(
                        workload,
                        entry.config,
                        (entry.config, *entry.tie_set),
                        f"{entry.provenance.get('binaries') or ''}" or None,
                        item.table.toolchain.get("triton", ""),
                    )
                    reason = proof.find_doubt(claim)
                    if not reason:
                        kept.append(entry)
                    done += 1
                    on_progress(f"comparing {item.table.kernel}", done, total)
                    yield Carried(item.table.kernel, workload.key, f"{item.path}", reason)
                if kept and not dry_run and (drop or len(kept) == len(item.table.entries)):
                    kernel, device = item.target.kernel, item.target.device
                    renewed = tuple(renew_sizes(kernel, device, each, each) for each in kept)
                    table = replace(
                        item.table,
                        entries=renewed,
                        rule=rule_of(renewed),
                        launch_hash=kernel.launch_hash(),
                        kernel_hashes=kernel.kernel_hashes(),
                    )
                    write_output(item.path, text_of(table).encode(), "make it writable")


def restamp_results(
    settings: Settings,
    base: Path,
    kernels: Mapping[str, Sequence[Kernel]],
    on_progress: ProgressCallback,
    *,
    dry_run: bool = False,
) -> Iterator[Carried]:
    """Give stored results the present identity where they launch what they launched before.

    Concerns the newest confirmed result of each kernel, workload, device and toolchain. A task is
    carried over as a whole, with its trials; nothing is stored twice. Without a database there is
    nothing to do.
    """
    try:
        with Store.open(settings.database.url, create=False) as store:
            found: list[tuple[TaskInfo, BenchTarget]] = []
            for task in _list_newest(store):
                target = _target_of(settings, base, task, kernels)
                if isinstance(target, str):
                    yield replace(_outcome_of(task), reason=target)
                elif target.kernel.launch_hash() != task.key.launch_hash:
                    found.append((task, target))
            done = 0
            for (runner, paths), shared in group_by_pool(found, itemgetter(1)).items():
                with LocalSession(settings, runner, paths, on_progress) as session:
                    for task, target in shared:
                        proof = _Proof(settings, target, session)
                        yield _carry(store, task, proof, dry_run)
                        done += 1
                        on_progress("comparing results", done, len(found))
    except NothingStoredError:
        return


def _outcome_of(task: TaskInfo) -> Carried:
    return Carried(task.key.kernel, task.key.workload.key, f"task {task.task_id}")


def _carry(store: Store, task: TaskInfo, proof: _Proof, dry_run: bool) -> Carried:
    """The outcome of one task."""
    key, chosen, kernel = task.key, task.selection, proof.target.kernel
    assert chosen is not None
    timed = [t for t in store.trials(task.task_id) if t.status is Status.CORRECT]
    claim = _Claim(
        key.workload,
        select_shipped(chosen).config,
        tuple(trial.config for trial in timed),
        {config_key(trial.config): trial.binary_hash for trial in timed},
        key.toolchain.triton,
    )
    reason = proof.find_doubt(claim)
    if not reason and not dry_run:
        renewed = replace(
            key, launch_hash=kernel.launch_hash(), kernel_hashes=kernel.kernel_hashes()
        )
        store.renew_identity(task.task_id, renewed)
    return replace(_outcome_of(task), reason=reason)


def _list_newest(store: Store) -> Iterator[TaskInfo]:
    seen = set()
    for confirmed in store.list_confirmed():
        task = store.task(confirmed.task_id)
        key = task.key
        place = key.kernel, key.workload, key.device.fingerprint, key.toolchain.key
        if place not in seen and task.selection is not None:
            seen.add(place)
            yield task


def _target_of(
    settings: Settings, base: Path, task: TaskInfo, kernels: Mapping[str, Sequence[Kernel]]
) -> BenchTarget | str:
    """What builds for a task's device; the reason where nothing does."""
    device = task.key.device
    try:
        spec = find_spec(task.key.kernel, device.kind, kernels, task.key.launch_hash)
        stands_in = backend_kinds.spec_of_stored(device.kind).stand_in
        return bench_target(
            settings, base, spec, target=device.target if stands_in else device.kind, timed=False
        )
    except TunerError as error:
        return error.message


def _is_current(kernel: Kernel, item: TableHere) -> bool:
    table = item.table
    same = set(kernel.kernel_hashes()) == set(table.kernel_hashes)
    return same and kernel.launch_hash() == table.launch_hash


@dataclass(frozen=True, slots=True)
class _Proof:
    """Builds what results claim, and compares."""

    settings: Settings
    target: BenchTarget
    session: LocalSession

    def find_doubt(self, claim: _Claim) -> str:
        """Why a claim is not proven; empty where it is."""
        if not backend_kinds.spec(self.target.device.kind).accelerator:
            return "variants for processors are measured again: their binaries are not all of them"
        known = claim.binaries
        if not known or (isinstance(known, Mapping) and not all(known.values())):
            return "what its configs launch was not stored"
        task = self.target.measured_task(self.settings, self.session, claim.workload)
        configs = {config_key(config): config for config in claim.configs}
        jobs = (task.make_build_job(key, config) for key, config in configs.items())
        built: dict[str, str] = {}
        for job, result in self.session.build(jobs):
            if not isinstance(result, Artifact):
                return f"{job.config} no longer builds: {result.message}"
            if result.toolchain.triton != claim.triton:
                return f"it was built by Triton {claim.triton}, not {result.toolchain.triton}"
            built[job.job_id] = result.binary_hash
        if isinstance(known, str):
            if digest_binaries(built) != known:
                return "its winner, or a config that ties with it, launches something else"
        elif changed := [key for key, found in built.items() if known[key] != found]:
            return f"{len(changed)} configs launch something else, e.g. {configs[changed[0]]}"
        winner = (Variant("winner", claim.winner),)
        (checked,) = check_variants(
            self.settings, self.target, self.session, claim.workload, winner
        )
        wrong = checked.status is not Status.CORRECT
        return f"its winner is {checked.status}: {checked.message}" if wrong else ""
