"""Compare tables with the present kernels, toolchain and results; one line per finding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.records import Workload
from tuner.runtime import Table, TableError, read, staleness
from tuner.tables.exporters import make_files
from tuner.tables.results import Results, ResultStore, join_space_hashes

#: Suffixes of other formats whose files may be in the same folder.
_OTHER_FORMATS = (".triton.json", ".t4.json", ".t4-metadata.json", ".space.json")


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
        kernel = (kernels or {}).get(table.kernel) or _load_registered(table.kernel)
        findings += [f"{path}: {problem}" for problem in _problems(table, kernel)]
    return findings


def check_export(
    store: ResultStore,
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


def _load_registered(name: str) -> Kernel | None:
    from search_spaces import registry

    try:
        return registry.load(name)
    except TunerError:
        return None


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
