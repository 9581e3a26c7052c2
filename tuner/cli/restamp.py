"""`tuner restamp`: carry results and tables over an edit that changes no launch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.command_context import (
    ConfigOption,
    KernelsOption,
    configured_kernels,
    flag,
    settings_of,
)
from tuner.cli.console import Format, FormatOption, emit, note
from tuner.cli.variant_options import QuietOption
from tuner.views.progress_display import show_progress

if TYPE_CHECKING:
    from tuner.compare import Carried

_COLUMNS = ("of", "kernel", "workload", "result", "reason")


def restamp(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Tables, and folders of tables; without one, the results in the database.",
            metavar="[TABLES...]",
            show_default=False,
        ),
    ] = None,
    drop: Annotated[
        bool, flag("--drop", help="Take entries out of their tables that cannot be carried over.")
    ] = False,
    dry_run: Annotated[bool, flag("--dry-run", help="Compare, and write nothing.")] = False,
    kernel: KernelsOption = None,
    config: ConfigOption = None,
    quiet: QuietOption = False,
    style: FormatOption = Format.TABLE,
) -> None:
    """Carry results and tables over an edit of kernels that changes nothing they launch.

    Builds the configs of each result again, with the same Triton, and compares digests of machine
    code, grids and arguments with those that were stored. Where all are equal and the winner is
    still correct, results and tables get the identity of the present code. No device is needed;
    nothing is timed. Exits with 1 if something has to be measured again.
    """
    settings, base = settings_of(config)
    from tuner.compare import restamp_results, restamp_tables, tables_here

    own = configured_kernels(settings, base, kernel or ())
    refused = False
    with show_progress(not quiet) as on_progress:
        if paths:
            tables, others = tables_here(settings, base, paths, own, build_only=True)
            for item in others:
                note(f"not compared: {item.path}: {item.reason}")
                refused = True
            outcomes = list(
                restamp_tables(settings, tables, on_progress, drop=drop, dry_run=dry_run)
            )
        else:
            outcomes = list(restamp_results(settings, base, own, on_progress, dry_run=dry_run))
    emit([_row(item) for item in outcomes], _COLUMNS, style)
    again = sum(bool(item.reason) for item in outcomes)
    note(f"{len(outcomes) - again} carried over, {again} to be measured again")
    if again or refused:
        raise typer.Exit(1)


def _row(item: Carried) -> dict[str, object]:
    result = "measure again" if item.reason else "carried over"
    return {
        "of": item.of,
        "kernel": item.kernel,
        "workload": item.workload,
        "result": result,
        "reason": item.reason,
    }
