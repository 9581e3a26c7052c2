"""Compare tables with the present kernels, toolchain and results; one line per finding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from results_db.stored_records import SelectionRecord, Stage, TaskInfo, TaskKey
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.records import Device, Toolchain, Workload
from tuner.base.log_ratio import LogRatio, Verdict
from tuner.runtime import Entry, Table, TableError, read, staleness
from tuner.tables.exporters import make_files
from tuner.tables.results import Results, find_kernel, join_space_hashes

if TYPE_CHECKING:
    from results_db import Store

#: Suffixes of other formats whose files may be in the same folder.
_OTHER_FORMATS = (".triton.json", ".t4.json", ".t4-metadata.json", ".space.json")
_HINT = "write them with `tuner export`"


def check(paths: Iterable[str | Path], kernels: Mapping[str, Kernel] | None = None) -> list[str]:
    """The faults of tables on disk, one line each; an empty list for valid tables.

    paths: files, and folders of which all `*@*.json` are read. kernels: declarations by name, for
    kernels that are not registered. A fault is a malformed table, changed code or search space, a
    Triton (or torch) other than the installed one, or an unknown device.
    """
    findings: list[str] = []
    for path in table_files(paths):
        try:
            table = read(path)
        except TableError as error:
            findings.append(f"{path}: {error}")
            continue
        kernel = find_kernel(table.kernel, kernels or {})
        findings += [f"{path}: {problem}" for problem in _problems(table, kernel)]
    return findings


def check_export(
    store: Store,
    run_id: int,
    out_dir: str | Path,
    format: str = "tuner",
    kernels: Mapping[str, Kernel] | None = None,
) -> list[str]:
    """The changes that `export` would make on disk, and the findings of `check` there."""
    findings = []
    paths = []
    for file in make_files(format, None, Results(store, run_id, kernels)):
        path = Path(out_dir) / file.name
        paths.append(path)
        try:
            current = path.read_bytes()
        except FileNotFoundError:
            findings.append(f"{path}: is missing")
        except OSError as error:
            findings.append(f"{path}: cannot be read ({error.strerror or error})")
        else:
            if current != file.content:
                findings.append(f"{path}: differs from the results of run {run_id}")
    if format == "tuner":
        findings += check([path for path in paths if path.is_file()], kernels)
    return findings


def table_files(paths: Iterable[str | Path]) -> Iterator[Path]:
    """The files that are given, and of the folders all tables in them."""
    for given in paths:
        path = Path(given)
        if path.is_dir():
            yield from (
                file
                for file in sorted(path.glob("*@*.json"))
                if not file.name.endswith(_OTHER_FORMATS)
            )
        else:
            yield path


def list_tables(paths: Iterable[str | Path]) -> list[Path]:
    """`table_files`, each once. Raises `TunerError` for a missing path, and where there is none."""
    paths = list(paths)
    missing = [path for path in paths if not Path(path).exists()]
    files = list(dict.fromkeys(table_files(paths)))
    if missing or not files:
        named = ", ".join(map(str, missing or paths))
        raise TunerError(f"{named}: there are no tables", _HINT)
    return files


def _problems(table: Table, kernel: Kernel | None) -> Iterator[str]:
    if not table.device.name or not table.device.fingerprint:
        yield "does not name the device it was measured on"
    if reason := staleness(table):
        yield reason
    if kernel is None:
        yield f"is of kernel {table.kernel!r}, which is not registered"
        return
    if changed := _code(table, kernel):
        yield changed
    elif (changed := space_hash(table, kernel)) != table.space_hash:
        yield f"was made for another search space of {table.kernel} ({changed})"


def _code(table: Table, kernel: Kernel) -> str:
    """What of the kernel's code differs from the table's; empty text if nothing does."""
    if set(kernel.kernel_hashes()) != set(table.kernel_hashes):
        return f"was made for other source code of {table.kernel}: its device code has changed"
    if kernel.launch_hash() != table.launch_hash:
        return (
            f"was made for other source code of {table.kernel}: a module that it can reach has "
            f"changed; `tuner restamp {table.path}` renews it where the launches are the same"
        )
    return ""


def space_hash(table: Table, kernel: Kernel) -> str:
    """The hash of the search space of today for the table's workloads."""
    return join_space_hashes(
        kernel.space_hash(Workload.from_mapping(entry.key)) for entry in table.entries
    )


# -- the entries of tables as tasks, so that they are compared like what runs have confirmed -------
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
        raise TunerError(f"{path}: there are no tables", _HINT)
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
