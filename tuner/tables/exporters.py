"""Exporters by name, and the export of a run: an exporter makes files, `export` writes them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Protocol, cast

from search_spaces.adoption.autotuned import AutotuneParts
from search_spaces.atomic_file import write_output
from search_spaces.errors import TunerError
from search_spaces.foreign_imports import contain_foreign_code
from search_spaces.kernel import Kernel
from search_spaces.plugins import PluginGroup
from tuner.runtime import Arguments, Table
from tuner.tables.results import Results, Sizes

if TYPE_CHECKING:
    from results_db import Store

_log = logging.getLogger(__name__)
EXPORTERS = PluginGroup(
    "tuner.exporters",
    "exporter",
    {
        "csv": "tuner.tables.trial_files:Csv",
        "inductor": "tuner.tables.inductor_lookup:InductorLookup",
        "optuna": "tuner.tables.optuna_study:OptunaStudies",
        "parquet": "tuner.tables.trial_files:Parquet",
        "sglang": "tuner.tables.library_tables:Sglang",
        "space": "tuner.tables.recorded_spaces:Recorded",
        "t4": "tuner.tables.t4:T4",
        "triton": "tuner.tables.promotion:TritonConfigs",
        "tuner": "tuner.tables.promotion:Tables",
        "vllm": "tuner.tables.library_tables:Vllm",
    },
)
_UNWRITABLE = "free some space or choose another folder with --output; results are kept"


@dataclass(frozen=True, slots=True)
class File:
    """One file to write."""

    #: Path below the output folder.
    name: str
    content: bytes
    #: The tasks whose results it contains.
    task_ids: tuple[int, ...] = ()


class Exporter(Protocol):
    """Converts results to files. Equal results give equal bytes."""

    def files(self, results: Results) -> Iterator[File]: ...


def available() -> dict[str, str]:
    """The place (`module:class`) of each exporter by name. Built-in names take precedence."""
    return EXPORTERS.places()


def load(name: str) -> Exporter:
    """The exporter of a name; raises `TunerError` for an unknown name."""
    make = cast("Callable[[], Exporter]", EXPORTERS.load(name))
    return make()


def export(
    store: Store,
    run_id: int,
    out_dir: str | Path,
    format: str = "tuner",
    kernels: Mapping[str, Kernel] | None = None,
    exporter: Exporter | None = None,
    sizes: Sizes | None = None,
) -> list[Path]:
    """Write a run's results in a format, record the export in the store, return the paths.

    kernels: declarations by name, for kernels that are not registered. exporter: that of the
    format, if it was changed. sizes: as for `Results`. Files are written only after all of them
    were made. A warning is logged for each table that no launch can hit.
    """
    results = Results(store, run_id, kernels, sizes)
    files = make_files(format, exporter, results)
    if format == "tuner":
        for table in results.tables:
            for problem in _obstacles(results, table):
                _log.warning("%s", problem)
    for file in files:
        _check_name(file.name, format)
    written = []
    for file in files:
        path = Path(out_dir) / file.name
        write_output(path, file.content, _UNWRITABLE)
        sha256 = hashlib.sha256(file.content).hexdigest()
        store.record_export(str(path), format, run_id, sha256, file.task_ids)
        written.append(path)
    return written


def make_files(format: str, exporter: Exporter | None, results: Results) -> list[File]:
    """The files of an exporter; raises the `TunerError` of an installed one that is at fault."""
    if EXPORTERS.is_built_in(format):
        return list((exporter or load(format)).files(results))
    try:
        with contain_foreign_code():
            files = list((exporter or load(format)).files(results))
    except TunerError:
        raise
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise EXPORTERS.unusable(format, f"fails: {reason}") from error
    for file in files:
        if not isinstance(file, File):
            raise EXPORTERS.unusable(format, f"gives {file!r:.80}, which is no File")
    return files


def _check_name(name: str, format: str) -> None:
    """Raise `TunerError` for a name that leads out of the output folder."""
    path = PurePath(name)
    if not name.isprintable() or path.is_absolute() or ".." in path.parts or not path.parts:
        raise TunerError(
            f"exporter {format}: {name!r:.200} is no name of a file in the output folder",
            "rename the kernel, or correct the exporter",
        )


def _obstacles(results: Results, table: Table) -> Iterator[str]:
    """Why no launch of an adopted kernel hits a table; launch code of other kernels is unknown.

    For a captured kernel, `tuner.apply` derives the workload from the whole call.
    """
    kernel = results.kernel(table.kernel)
    parts = getattr(kernel, "parts", None)
    if not isinstance(parts, AutotuneParts) or hasattr(kernel, "free"):
        return
    arguments = getattr(parts.tuner, "arguments", None)
    if not isinstance(arguments, Arguments):
        arguments = Arguments(parts.arg_names, parts.fn.fn, parts.tuner.keys)
    computed = {name for rules in (*parts.outer, *parts.inner) for name in rules}
    for entry in table.entries:
        if reason := arguments.obstacle(entry.key, computed):
            yield f"the table of kernel {table.kernel!r} {reason}; all launches miss it until then"
            return
