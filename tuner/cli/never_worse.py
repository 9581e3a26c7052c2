"""`tuner export --never-worse`: measure between the rows of a table before it is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from search_spaces.errors import TunerError
from search_spaces.size_range import Range
from tuner.cli.console import note
from tuner.cli.variant_options import step_progress
from tuner.settings.sections import CoverageConfig

if TYPE_CHECKING:
    from search_spaces.kernel import Kernel
    from search_spaces.records import Config
    from tuner.integrations import Adapter
    from tuner.settings.sections import Settings
    from tuner.tables.library_tables import LibraryTable, LibraryTables


def guarded_exporter(
    kind: str,
    settings: Settings,
    base: Path,
    kernels: Mapping[str, Kernel],
    package: Path | None,
    sizes: int,
) -> LibraryTables:
    """The exporter of a library's format, which compares each table with the library's choice."""
    from tuner.tables.exporters import load
    from tuner.tables.library_tables import LibraryTables

    exporter = load(kind)
    if not isinstance(exporter, LibraryTables):
        raise TunerError(
            f"--never-worse: the format {kind} has no lookup by size",
            "it is for the formats of libraries: vllm, sglang",
        )
    folder = _package(exporter.library, package)
    exporter.adjust = _adjustment(settings, base, kernels, folder, sizes)
    return exporter


def _package(library: str, given: Path | None) -> Path | None:
    if given is not None:
        if not given.is_dir():
            raise TunerError(
                f"--package {given}: no such folder",
                f"name the installed package, as .../site-packages/{library}",
            )
        return given
    found = find_spec(library)
    places = (found.submodule_search_locations if found else None) or []
    if not places:
        note(
            f"{library} is not installed here: comparing with its default configs; --package names "
            "the folder of an installed package"
        )
    return Path(places[0]) if places else None


def _adjustment(
    settings: Settings,
    base: Path,
    kernels: Mapping[str, Kernel],
    package: Path | None,
    count: int,
) -> Callable[[LibraryTable], LibraryTable]:
    from tuner.compare.row_comparison import RowComparison, parts_of
    from tuner.integrations.never_worse import choose_sizes, never_worse

    specs = {name: kernel.spec for name, kernel in kernels.items()}

    def adjust(table: LibraryTable) -> LibraryTable:
        adapter, key, rows = table.adapter, table.key, table.rows
        today, source = _today(table, package)
        tasks = [
            (task.key.kernel, task.key.workload) for row in table.tasks.values() for _, task in row
        ]
        parts = parts_of(adapter, tasks, specs)
        place = table.place
        reach = place.sizes if place else Range(min(rows), max(rows))
        with step_progress(quiet=False) as on_progress:
            compare = RowComparison(settings, base, adapter, parts, table.device.kind, on_progress)
            found = never_worse(
                lambda size: rows[adapter.nearest(rows, size)],
                today,
                compare,
                choose_sizes(rows, reach, count),
                reach,
                place.gain if place else CoverageConfig().gain,
                lambda config: adapter.predict_launch(key, config),
            )
        note(
            f"{adapter.name} [{key}]: {found.compared} comparisons with {source}; "
            f"{len(found.worse)} sizes were slower; {len(found.rows)} rows in place of {len(rows)}"
        )
        if found.unknown:
            note(
                f"{adapter.name} [{key}]: {found.unknown} comparisons could not be measured; "
                "today's configs are kept there"
            )
        return replace(table, rows=found.rows)

    return adjust


def _today(table: LibraryTable, package: Path | None) -> tuple[Callable[[int], Config], str]:
    """The row or default config that the library launches today, and where it is from."""
    adapter: Adapter = table.adapter
    key, device = table.key, table.device
    path = package and adapter.find(package, key, device.name, table.triton, os.environ)
    if not path:
        return lambda size: adapter.default(key, size, device), "the library's default configs"
    rows = adapter.read(path.read_text(encoding="utf-8"), f"{path}").rows
    return lambda size: rows[adapter.nearest(rows, size)], f"{path}"
