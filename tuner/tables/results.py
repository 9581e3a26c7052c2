"""The results of a run, and the tables made of its selections, one per kernel and device."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from importlib import metadata
from typing import TYPE_CHECKING, TypeAlias

from results_db.promotion_records import QuarantineRecord
from results_db.shipped import select_shipped
from results_db.stored_records import RunInfo, TaskInfo, TaskKey, TrialRecord
from search_spaces import registry
from search_spaces.absent_device.fake_driver import answering_if_used
from search_spaces.declaration.launch_arguments import name_of
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel, Launch
from search_spaces.records import Config, Device, Value, Workload, config_key, digest
from tuner.base.import_names import DISTRIBUTION
from tuner.base.log_ratio import LogRatio, split_ratio
from tuner.runtime import DeviceFacts, Entry, Span, Table, key_order
from tuner.runtime.device_code import base_function
from tuner.tables.range_entries import (
    compare_baselines,
    list_coverage,
    list_entries,
    name_implementation,
)
from tuner.tables.valid_sizes import add_verified, rule_of, valid_sizes
from workers import backend_kinds

if TYPE_CHECKING:
    import pandas as pd

    from results_db import Store


_log = logging.getLogger(__name__)
#: Valid sizes by kernel, device, workload key and config key.
Sizes: TypeAlias = dict[tuple[str, Device, str, str], dict[str, Span]]


class Results:
    """A run as exporters read it: tasks, trials, kernels and tables, each read or made once.

    kernels: declarations by name, for kernels that are not registered. sizes: the valid sizes of
    entries that are known already, to which others are added.
    """

    def __init__(
        self,
        store: Store,
        run_id: int,
        kernels: Mapping[str, Kernel] | None = None,
        sizes: Sizes | None = None,
    ) -> None:
        self._store = store
        self._kernels = dict(kernels or {})
        self._sizes: Sizes = {} if sizes is None else sizes
        self._trials: dict[int, list[TrialRecord]] = {}
        self.run_id = run_id

    @cached_property
    def run(self) -> RunInfo:
        return self._store.run(self.run_id)

    @cached_property
    def tasks(self) -> list[TaskInfo]:
        return self._store.tasks(self.run_id)

    def trials(self, task_id: int) -> list[TrialRecord]:
        if task_id not in self._trials:
            self._trials[task_id] = self._store.trials(task_id)
        return self._trials[task_id]

    @cached_property
    def quarantines(self) -> list[QuarantineRecord]:
        return self._store.quarantines()

    def list_cards(self, key: TaskKey, config: Config) -> set[str]:
        """The cards that have confirmed a config."""
        return self._store.list_confirming_cards(key, config, self.quarantines)

    def valid_sizes(self, task: TaskInfo, config: Config) -> dict[str, Span]:
        """The spans of the sizes for which a config of a task is valid, by dim."""
        device, workload = task.key.device, task.key.workload
        place = (task.key.kernel, device, workload.key, config_key(config))
        if place not in self._sizes:
            kernel = self.kernel(task.key.kernel)
            self._sizes[place] = valid_sizes(kernel, device, workload.as_dict(), config)
        return self._sizes[place]

    def prepare(self, task_id: int) -> None:
        """Find the valid sizes of the config that the table of a finished task will hold."""
        task = self._store.task(task_id)
        if task.selection is not None and task.selection.median_us is not None:
            self.valid_sizes(task, select_shipped(task.selection).config)

    def trials_frame(self) -> pd.DataFrame:
        return self._store.trials_frame(self.run_id)

    def kernel(self, name: str) -> Kernel | None:
        """The kernel's declaration; None for a name that is not registered."""
        if found := find_kernel(name, self._kernels):
            self._kernels[name] = found
        return found

    @cached_property
    def tables(self) -> list[Table]:
        """The run's tables, by kernel and device."""
        return _tables(self)


def find_kernel(name: str, kernels: Mapping[str, Kernel]) -> Kernel | None:
    """The kernel of a name, among these and the registered ones; None for an unknown name."""
    try:
        return kernels.get(name) or registry.load(name)
    except TunerError:
        return None


def build(store: Store, run_id: int, kernels: Mapping[str, Kernel] | None = None) -> list[Table]:
    """The tables of a run, by kernel and device. Tasks without a confirmed time are left out.

    kernels: declarations by name, for kernels that are not registered. A table of a kernel without
    a declaration has the rule `exact`: the valid configs of other workloads are unknown.
    """
    return Results(store, run_id, kernels).tables


def _tables(stored: Results) -> list[Table]:
    """One table per combination of kernel, code, device and build toolchain in a run."""
    groups: dict[tuple[str, ...], list[TaskInfo]] = defaultdict(list)
    for task in stored.tasks:
        chosen = task.selection
        if chosen is None or chosen.median_us is None:
            continue
        away = (e.card for e in stored.quarantines if e.covers(chosen.clocks, chosen.confirmed_at))
        if card := next(away, ""):
            label = f"{task.key.kernel} {task.key.workload.key}"
            _log.warning("%s is left out: confirmed on %s, in quarantine then", label, card)
            continue
        key = task.key
        if backend_kinds.spec_of_stored(key.device.kind).timed:
            build_key = key.toolchain.build_key
            group = key.kernel, key.device.fingerprint, key.launch_hash, build_key
            groups[group].append(task)
    return [_table(stored, groups[identity]) for identity in sorted(groups)]


def _table(stored: Results, tasks: Sequence[TaskInfo]) -> Table:
    key = tasks[0].key
    newest = {task.key.workload: task for task in sorted(tasks, key=lambda task: task.task_id)}
    alone = [(task, _entry(stored, task)) for task in newest.values() if task.place is None]
    entries = add_verified(stored.kernel(key.kernel), alone, stored.trials)
    entries += list_entries(list(newest.values()), partial(_entry, stored), stored.trials)
    entries.sort(key=lambda entry: key_order(entry.key))
    table = Table(
        kernel=key.kernel,
        launch_hash=key.launch_hash,
        kernel_hashes=key.kernel_hashes,
        space_hash=join_space_hashes(task.key.space_hash for task in newest.values()),
        device=device_facts(key.device),
        toolchain={name: text for name, text in asdict(key.toolchain).items() if text},
        entries=tuple(entries),
        rule=rule_of(entries),
        default=find_common(
            task.selection.default
            for task in newest.values()
            if task.selection is not None and task.selection.default is not None
        ),
        provenance=_provenance(stored, list(newest.values())),
    )
    if entries and all("row_bits" in entry.provenance for entry in entries):
        table = replace(table, provenance={**table.provenance, "numerics": "batch_invariant"})
    coverage = list_coverage(table, list(newest.values()), stored.trials)
    return replace(table, coverage=tuple(coverage)) if coverage else table


def _entry(stored: Results, task: TaskInfo) -> Entry:
    selection = task.selection
    assert selection is not None
    ships = select_shipped(selection)
    median_us = ships.median_us
    speedup, interval = round_ratio(ships.log_ratio)
    shipped_key = config_key(ships.config)
    trial = next(
        (t for t in stored.trials(task.task_id) if config_key(t.config) == shipped_key), None
    )
    confirmed = selection.confirmed_at
    kernel, key = stored.kernel(task.key.kernel), task.key.workload.as_dict()
    cards = stored.list_cards(task.key, ships.config)
    found = Entry(
        key=key,
        config=dict(ships.config),
        verdict=selection.verdict,
        median_us=None if median_us is None else round(median_us, 4),
        speedup_over_default=speedup,
        interval=interval,
        tie_set=tuple(dict(tie) for tie in sorted(ships.ties, key=config_key)),
        provenance={
            "run": task.run_id,
            "task": task.task_id,
            "trial": trial.number if trial else None,
            "attempt": trial.attempt_id if trial else None,
            **({"row_bits": trial.row_bits} if trial and trial.row_bits else {}),
            "confirmed_at": confirmed.isoformat() if confirmed else None,
            "space_hash": task.key.space_hash,
            **({"cards": len(cards)} if cards else {}),
            "binaries": _binaries(stored, task, (ships.config, *ships.ties)),
        },
        dtypes=launch_dtypes(kernel, task.key.workload, ships.config, task.key.device),
        sizes=stored.valid_sizes(task, ships.config),
    )
    return name_implementation(found, compare_baselines(task))


def _binaries(stored: Results, task: TaskInfo, configs: Iterable[Config]) -> str | None:
    """The digest of what these configs launch; None where that of one is not known."""
    known = {config_key(t.config): t.binary_hash for t in stored.trials(task.task_id)}
    return digest_binaries({key: known.get(key, "") for key in map(config_key, configs)})


def digest_binaries(hashes: Mapping[str, str]) -> str | None:
    """One digest of the binaries of configs, by config key; None where one is not known.

    `tuner restamp` computes it again: an equal digest says that equal launches are made.
    """
    return digest(sorted(hashes.items())) if all(hashes.values()) else None


def round_ratio(over: LogRatio | None) -> tuple[float | None, tuple[float, float] | None]:
    """A ratio and its 95 % interval as tables hold them; None where unknown."""
    ratio, low, high = (None if each is None else round(each, 4) for each in split_ratio(over))
    return ratio, None if low is None or high is None else (low, high)


def device_facts(device: Device) -> DeviceFacts:
    """The facts of a device that tables name."""
    return DeviceFacts(
        name=device.name,
        kind=device.kind,
        target=device.target,
        sm_count=device.sm_count,
        memory_bytes=device.memory_bytes,
        shared_bytes=device.shared_bytes,
        power_limit_w=device.power_limit_w,
        fingerprint=device.fingerprint,
    )


def join_space_hashes(hashes: Iterable[str]) -> str:
    """The hash of the space; where workloads have different spaces, the digest of all hashes."""
    distinct = sorted(set(hashes))
    return distinct[0] if len(distinct) == 1 else digest(distinct)


def find_common(configs: Iterable[Config | None]) -> Config | None:
    """The config that all of these are; None where they differ or one is None."""
    found = {"" if each is None else config_key(each): each for each in configs}
    only = next(iter(found.values())) if len(found) == 1 else None
    return None if only is None else dict(only)


def _provenance(stored: Results, tasks: Sequence[TaskInfo]) -> dict[str, Value]:
    """The origin of a table. It omits the time of writing: equal results give equal bytes."""
    run = stored.run
    confirmed = [t.selection.confirmed_at for t in tasks if t.selection]
    latest = max((moment for moment in confirmed if moment), default=run.finished_at)
    return {
        **kernel_facts(stored.kernel(tasks[0].key.kernel)),
        "run": run.run_id,
        "campaign": run.campaign,
        "generated_at": (latest or run.started_at).isoformat(),
        "git_sha": f"{run.environment.get('git') or ''}",
        "git_dirty": bool(run.environment.get("dirty")),
        "tuner": _own_version(),
    }


def _own_version() -> str:
    """The version of tuner; empty in a checkout that is not installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return ""


def kernel_facts(kernel: Kernel | None) -> dict[str, Value]:
    """`place`, where a library has the kernel as `module:object`, and `free`, the arguments that no
    key has since their values do not change the work; each only where there is one."""
    found = {
        "place": getattr(kernel, "place", ""),
        "free": ",".join(getattr(kernel, "free", ())),
    }
    return {name: text for name, text in found.items() if text}


def launch_dtypes(
    kernel: Kernel | None, workload: Workload, config: Config, device: Device
) -> dict[str, str] | None:
    """Dtypes by parameter; None for built-in families, whose libraries look workloads up, for
    kernels without launches, and for those that launch several functions, none of their name.

    Launches that fill tensors before the kernel runs do not count.
    """
    if kernel is None or registry.is_ours(kernel.spec):
        return None
    try:
        with answering_if_used(device):
            launches = _launches(kernel, workload, config)
    except Exception:  # user code may raise anything, as on a machine that lacks its library
        return None
    launches = [launch for launch in launches if not _is_preparation(launch)]
    named = [launch for launch in launches if name_of(launch) == kernel.name] or launches
    found = [dict(_tensors(launch)) for launch in named]
    return found[0] if found and all(each == found[0] for each in found) else None


def _launches(kernel: Kernel, workload: Workload, config: Config) -> list[Launch]:
    from search_spaces.tensors import empty_tensors

    specs = {**kernel.outputs(workload), **kernel.scratch(workload, config)}
    tensors = {**kernel.make_inputs(workload, 0, "meta"), **empty_tensors(specs, "meta")}
    return list(kernel.launches(workload, config, tensors))


def _is_preparation(launch: Launch) -> bool:
    return str(base_function(launch.fn).__module__) == "search_spaces.fill"


def _tensors(launch: Launch) -> Iterator[tuple[str, str]]:
    code = base_function(launch.fn).__code__
    names = code.co_varnames[: code.co_argcount]
    for name, value in (*zip(names, launch.args, strict=False), *launch.kwargs.items()):
        if hasattr(value, "dtype"):
            yield name, f"{value.dtype}".rpartition(".")[2]
