"""Exporters by name. Each says what files a run becomes; writing them is done in one place."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from search_spaces.atomic_file import write_output
from search_spaces.kernel import Kernel
from search_spaces.plugins import PluginGroup
from tuner.tables.reach import unreachable
from tuner.tables.results import Results, ResultStore

_log = logging.getLogger("tuner.tables")
EXPORTERS = PluginGroup(
    "tuner.exporters",
    "exporter",
    {
        "csv": "tuner.tables.frames:Csv",
        "optuna": "tuner.tables.optuna_study:OptunaStudies",
        "parquet": "tuner.tables.frames:Parquet",
        "space": "tuner.tables.recorded:Recorded",
        "t4": "tuner.tables.t4:T4",
        "triton": "tuner.tables.formats:TritonConfigs",
        "tuner": "tuner.tables.formats:Tables",
    },
)
_UNWRITABLE = "free some space or choose another folder with --output; results are kept"


@dataclass(frozen=True, slots=True)
class File:
    """One file to write: its name below the output folder, and the tasks it was made from."""

    name: str
    content: bytes
    task_ids: tuple[int, ...] = ()


class Exporter(Protocol):
    """Turns results into files. The same results give the same bytes."""

    def files(self, results: Results) -> Iterator[File]: ...


def available() -> dict[str, str]:
    """Names and where each exporter lives; entry points do not replace built-in names."""
    return EXPORTERS.places()


def load(name: str) -> Exporter:
    """The exporter of that name; raises `TunerError` when there is none."""
    make = cast("Callable[[], Exporter]", EXPORTERS.load(name))
    return make()


def export(
    store: ResultStore,
    run_id: int,
    out_dir: str | Path,
    format: str = "tuner",
    kernels: Mapping[str, Kernel] | None = None,
) -> list[Path]:
    """Write a run's results in a format and note it in the store; returns the paths written.

    kernels: declarations by name, of kernels that the registry does not know. Nothing is written
    unless every file of the format could be made. Tables that launches cannot hit are logged.
    """
    exporter = load(format)
    results = Results(store, run_id, kernels)
    files = list(exporter.files(results))
    if format == "tuner":
        for problem in unreachable(results):
            _log.warning("tuner: %s", problem)
    written = []
    for file in files:
        path = Path(out_dir) / file.name
        write_output(path, file.content, _UNWRITABLE)
        sha256 = hashlib.sha256(file.content).hexdigest()
        store.record_export(str(path), format, run_id, sha256, file.task_ids)
        written.append(path)
    return written
