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
from pathlib import Path

from results_db import NothingStoredError, Store
from results_db.shipped import select_shipped
from results_db.stored_records import TaskInfo
from search_spaces.atomic_file import write_output
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.records import Config, Status, Workload, config_key
from tuner.compare.given_tasks import Evaluated, GivenTask, evaluate
from tuner.compare.named_configs import Variant
from tuner.compare.tables_here import TableHere
from tuner.compare.targets import BenchTarget, bench_target, find_spec
from tuner.engine import Aim
from tuner.progress import ProgressCallback
from tuner.settings.sections import Settings
from tuner.tables.results import digest_binaries
from tuner.tables.text import text_of
from tuner.tables.valid_sizes import renew_sizes, rule_of
from workers import backend_kinds


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

    #: Builds for the device of the result.
    target: BenchTarget
    workload: Workload
    #: The config that ships, then those whose launches have to be equal as well.
    configs: tuple[Config, ...]
    #: Their digests by config key, or one digest of all.
    binaries: Mapping[str, str] | str | None
    #: The version of Triton that built them.
    triton: str


def restamp_tables(
    settings: Settings,
    tables: Sequence[TableHere],
    on_progress: ProgressCallback | None,
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
    claims = [
        _Claim(
            item.target,
            Workload.from_mapping(entry.key),
            (entry.config, *entry.tie_set),
            f"{entry.provenance.get('binaries') or ''}" or None,
            item.table.toolchain.get("triton", ""),
        )
        for item in stale
        for entry in item.table.entries
    ]
    doubts = iter(_find_doubts(settings, claims, on_progress))
    for item in stale:
        kept = []
        for entry in item.table.entries:
            reason = next(doubts)
            if not reason:
                kept.append(entry)
            workload = Workload.from_mapping(entry.key)
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
    on_progress: ProgressCallback | None,
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
            claims = [_claim_of(store, task, target) for task, target in found]
            doubts = _find_doubts(settings, claims, on_progress)
            for (task, target), reason in zip(found, doubts, strict=True):
                kernel = target.kernel
                if not reason and not dry_run:
                    launch_hash, hashes = kernel.launch_hash(), kernel.kernel_hashes()
                    renewed = replace(task.key, launch_hash=launch_hash, kernel_hashes=hashes)
                    store.renew_identity(task.task_id, renewed)
                yield replace(_outcome_of(task), reason=reason)
    except NothingStoredError:
        return


def _outcome_of(task: TaskInfo) -> Carried:
    return Carried(task.key.kernel, task.key.workload.key, f"task {task.task_id}")


def _claim_of(store: Store, task: TaskInfo, target: BenchTarget) -> _Claim:
    assert task.selection is not None
    ships = select_shipped(task.selection).config
    timed = {
        config_key(trial.config): trial
        for trial in store.trials(task.task_id)
        if trial.status is Status.CORRECT
    }
    others = [trial.config for key, trial in timed.items() if key != config_key(ships)]
    binaries = {key: trial.binary_hash for key, trial in timed.items()}
    return _Claim(target, task.key.workload, (ships, *others), binaries, task.key.toolchain.triton)


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


def _find_doubts(
    settings: Settings, claims: Sequence[_Claim], on_progress: ProgressCallback | None
) -> list[str]:
    """Why each claim is not proven; empty where it is. All is built, then the winners run once."""
    doubts = [_refuse(claim) for claim in claims]
    open_claims = [at for at, doubt in enumerate(doubts) if not doubt]
    given = [_make_task(claims[at], claims[at].configs) for at in open_claims]
    found = evaluate(settings, given, Aim.COMPARE, build_only=True, on_progress=on_progress)
    for at, each in zip(open_claims, found, strict=True):
        doubts[at] = _compare(claims[at], each)
    open_claims = [at for at in open_claims if not doubts[at]]
    given = [_make_task(claims[at], claims[at].configs[:1]) for at in open_claims]
    found = evaluate(settings, given, Aim.VERIFY, on_progress=on_progress)
    for at, each in zip(open_claims, found, strict=True):
        (checked,) = each.trials.values()
        if checked.status is not Status.CORRECT:
            doubts[at] = f"its winner is {checked.status}: {checked.message}"
    return doubts


def _make_task(claim: _Claim, configs: Sequence[Config]) -> GivenTask:
    distinct = {config_key(config): Variant("", config) for config in configs}
    return GivenTask(claim.target, claim.workload, list(distinct.values()))


def _refuse(claim: _Claim) -> str:
    """Why nothing could prove a claim."""
    if not backend_kinds.spec(claim.target.device.kind).accelerator:
        return "variants for processors are measured again: their binaries are not all of them"
    known = claim.binaries
    if not known or (isinstance(known, Mapping) and not all(known.values())):
        return "what its configs launch was not stored"
    return ""


def _compare(claim: _Claim, found: Evaluated) -> str:
    """Why what was built is not what was claimed."""
    known, triton = claim.binaries, found.task.key.toolchain.triton
    for trial in found.trials.values():
        if trial.status is not Status.CORRECT:
            return f"{trial.config} no longer builds: {trial.message}"
    if triton != claim.triton:
        return f"it was built by Triton {claim.triton}, not {triton}"
    built = {key: trial.binary_hash for key, trial in found.trials.items()}
    if not isinstance(known, Mapping):
        same = digest_binaries(built) == known
        return "" if same else "its winner, or a config that ties with it, launches something else"
    changed = [trial.config for key, trial in found.trials.items() if known[key] != built[key]]
    return f"{len(changed)} configs launch something else, e.g. {changed[0]}" if changed else ""
