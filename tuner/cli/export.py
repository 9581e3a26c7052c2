"""`tuner export`: write the winners of a run as tables or data, or check tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from search_spaces.errors import TunerError
from search_spaces.size_range import Range
from tuner.base.inert_text import inert
from tuner.cli.command_context import (
    ConfigOption,
    RunArgument,
    complete_exporters,
    configured_kernels,
    flag,
    list_run_kernels,
    settings_of,
    store_of,
)
from tuner.cli.console import note
from tuner.views.progress_display import show_progress
from tuner.views.runs import pick_run

if TYPE_CHECKING:
    from results_db import Store
    from results_db.stored_records import TaskInfo
    from search_spaces.kernel import Kernel
    from search_spaces.records import Config
    from tuner.integrations import Adapter
    from tuner.settings.sections import Settings
    from tuner.tables.library_tables import LibraryTable, LibraryTables


def export(
    run: RunArgument = None,
    kind: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help="The name of an exporter, as tuner, triton, vllm, csv; a wrong one lists all.",
            autocompletion=complete_exporters,
        ),
    ] = "tuner",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The folder to write to.")
    ] = None,
    never_worse: Annotated[
        bool,
        flag(
            "--never-worse",
            help="For vllm and sglang: compare the rows on this machine with what the library "
            "launches today, and keep that where ours is slower.",
        ),
    ] = False,
    package: Annotated[
        Path | None,
        typer.Option(
            help="For --never-worse: the folder of the installed library, "
            ".../site-packages/vllm; by default the one that Python finds.",
            show_default=False,
        ),
    ] = None,
    sizes: Annotated[
        int,
        typer.Option(min=1, max=100_000, help="For --never-worse: how many sizes to compare."),
    ] = 200,
    config: ConfigOption = None,
) -> None:
    """Write the winners of a run as tables that kernels load, or as data for other tools."""
    from tuner import tables

    settings, base = settings_of(config)
    folder = output or Path(settings.paths.tables)
    with store_of(settings) as store:
        info = pick_run(store, run, tunes=True)
        kernels = own_kernels(settings, base, store, store.tasks(info.run_id))
        exporter = None
        if never_worse:
            exporter = guarded_exporter(kind, settings, base, kernels, package, sizes)
        written = tables.export(store, info.run_id, folder, kind, kernels, exporter)
    for path in written:
        print(inert(path))
    for line in tables.list_coverage_lines(written):
        note(inert(line))
    if not written:
        raise TunerError(
            f"run {info.run_id} has nothing to export as {kind}",
            "only tasks with a confirmed winner go into tables; see `tuner status`",
        )


def own_kernels(
    settings: Settings, base: Path, store: Store, tasks: Sequence[TaskInfo] | None
) -> dict[str, Kernel]:
    """The kernels of configuration and runs by name, imported only where a task needs one of them.

    A kernel that does not import is reported and left out; its tables then match exact keys only.
    """
    from search_spaces import registry

    if tasks is not None and {task.key.kernel for task in tasks} <= set(registry.available()):
        return {}
    own = configured_kernels(settings, base, list_run_kernels(store, base))
    return {name: found[-1] for name, found in own.items()}


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
    from tuner.integrations.size_rows import choose_sizes, never_worse
    from tuner.settings.sections import CoverageConfig

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
        with show_progress(True) as on_progress:
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
