"""`tuner export`: write the winners of a run as tables or data, or check tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from search_spaces.errors import TunerError
from tuner.base.inert_text import inert
from tuner.cli.command_context import (
    ConfigOption,
    RunArgument,
    configured_kernels,
    flag,
    settings_of,
    store_of,
)
from tuner.cli.completion import complete_exporters
from tuner.cli.console import note
from tuner.views.runs import pick_run

if TYPE_CHECKING:
    from results_db.stored_records import TaskInfo
    from search_spaces.kernel import Kernel
    from tuner.settings.sections import Settings


def export(
    run: RunArgument = None,
    kind: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help="tuner, triton, vllm, sglang, inductor, t4, csv, parquet, optuna, space or the "
            "name of another exporter.",
            autocompletion=complete_exporters,
        ),
    ] = "tuner",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The folder to write to.")
    ] = None,
    check: Annotated[
        bool,
        flag(
            "--check",
            help="Write nothing; exit with 1 if the tables in the folder are malformed or stale, "
            "or, where RUN is given, differ from its results.",
        ),
    ] = False,
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
    if check and never_worse:
        raise TunerError("--check writes and measures nothing", "leave --never-worse out")
    if check:
        _check(settings, base, run, folder, kind)
        return
    with store_of(settings) as store:
        info = pick_run(store, run)
        kernels = own_kernels(settings, base, store.tasks(info.run_id))
        exporter = None
        if never_worse:
            from tuner.cli.never_worse import guarded_exporter

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


def _check(settings: Settings, base: Path, run: str | None, folder: Path, kind: str) -> None:
    from tuner import tables
    from tuner.tables.table_check import table_files

    if run is None:
        if not folder.is_file() and not any(folder.glob("*@*.json")):
            raise TunerError(f"{folder}: there are no tables", "write them with `tuner export`")
        findings = tables.check([folder], own_kernels(settings, base, None))
    else:
        with store_of(settings) as store:
            info = pick_run(store, run)
            kernels = own_kernels(settings, base, store.tasks(info.run_id))
            findings = tables.check_export(store, info.run_id, folder, kind, kernels)
    for finding in findings:
        print(inert(finding))
    for line in tables.list_coverage_lines(table_files([folder])):
        note(inert(line))
    if findings:
        raise typer.Exit(1)
    note(f"{folder}: up to date")


def own_kernels(
    settings: Settings, base: Path, tasks: Sequence[TaskInfo] | None
) -> dict[str, Kernel]:
    """The kernels of the configuration by name, imported only where a task needs one of them.

    A kernel that does not import is reported and left out; its tables then match exact keys only.
    """
    from search_spaces import registry

    if tasks is not None and {task.key.kernel for task in tasks} <= set(registry.available()):
        return {}
    return {name: found[-1] for name, found in configured_kernels(settings, base).items()}
