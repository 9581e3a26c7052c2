"""Exporters by name. Each says what files a run becomes; writing them is done in one place."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from tuner.tables.reach import unreachable
from tuner.tables.results import Results, ResultStore
from tuner.tables.text import write_atomically

_log = logging.getLogger("tuner.tables")
GROUP = "tuner.exporters"
_BUILT_IN = {
    "csv": "tuner.tables.frames:Csv",
    "parquet": "tuner.tables.frames:Parquet",
    "space": "tuner.tables.recorded:Recorded",
    "t4": "tuner.tables.t4:T4",
    "triton": "tuner.tables.formats:TritonConfigs",
    "tuner": "tuner.tables.formats:Tables",
}


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
    found = {point.name: point.value for point in entry_points(group=GROUP)}
    return dict(sorted((found | _BUILT_IN).items()))


def load(name: str) -> Exporter:
    """The exporter of that name; raises `TunerError` when there is none."""
    known = available()
    if name not in known:
        near = get_close_matches(name, known, n=1)
        raise TunerError(
            f"no exporter is called {name!r}" + (f"; did you mean {near[0]}?" if near else ""),
            f"known: {', '.join(known)}; more come from entry points of {GROUP}",
        )
    module, _, attribute = known[name].partition(":")
    try:
        make: Callable[[], Exporter] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise TunerError(
            f"exporter {name!r} cannot be loaded from {known[name]} ({error})",
            "install what it needs, or remove its entry point",
        ) from error
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
        write_atomically(path, file.content)
        sha256 = hashlib.sha256(file.content).hexdigest()
        store.record_export(str(path), format, run_id, sha256, file.task_ids)
        written.append(path)
    return written
