"""`tuner promote` and `tuner rollback`: publish results entry by entry, and take that back."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from results_db.promotion_records import PromotionOutcome
from search_spaces.errors import TunerError
from tuner.base.log_ratio import Verdict
from tuner.cli.command_context import (
    ConfigOption,
    RunArgument,
    configured_kernels,
    flag,
    list_run_kernels,
    open_store,
    settings_of,
    store_of,
)
from tuner.cli.console import Format, FormatOption, emit, note
from tuner.cli.programs import find_program
from tuner.cli.variant_options import QuietOption, remeasure
from tuner.views.column import Column, estimate_columns
from tuner.views.runs import pick_run

if TYPE_CHECKING:
    from results_db.promotion_records import PromotionRecord
    from tuner.tables.promotion import Gate

_ENTRIES: tuple[Column[PromotionRecord], ...] = (
    Column("path", heading=None),
    Column("kernel"),
    Column("workload"),
    Column("outcome", tone=lambda each: Verdict.FASTER if each.outcome == "promoted" else ""),
    Column("reason"),
    *estimate_columns(("ratio", "low", "high"), lambda each: each.log_ratio, heading=None),
    Column("config", lambda each: dict(sorted(each.config.items())), heading=None),
    Column("former", lambda each: each.former and dict(sorted(each.former.items())), heading=None),
)


def promote(
    to: Annotated[Path, typer.Option("--to", help="The folder of published tables.")],
    run: RunArgument = None,
    again: Annotated[
        bool,
        flag(
            "--remeasure",
            help="Measure the new and the published config in one pass on the device here.",
        ),
    ] = False,
    gate: Annotated[
        str,
        typer.Option(
            metavar="COMMAND",
            help="Publish only if this command, whose last line of output is a number, the smaller "
            "the better, is surely not slower with the new tables than with the published ones.",
            show_default=False,
        ),
    ] = "",
    dry_run: Annotated[bool, flag("--dry-run", help="Decide; write and store nothing.")] = False,
    config: ConfigOption = None,
    quiet: QuietOption = False,
    style: FormatOption = Format.TABLE,
) -> None:
    """Publish the results of a run, entry by entry.

    An entry of a published table is replaced only where the new config is faster beyond its
    interval, with equal code, device and toolchain; the parts of a range are replaced together, and
    new workloads are added. What was refused and why is listed and stored. `tuner rollback`
    takes it back. With `--gate`, all of this is published or nothing, and then the exit code is 1.
    """
    from tuner.tables.promotion import Promoter

    settings, base = settings_of(config)
    check = _make_gate(gate, to, quiet=quiet) if gate else None
    measure = partial(remeasure, settings, base, quiet=quiet)

    with store_of(settings) as store:
        info = pick_run(store, run)
        kernels = configured_kernels(settings, base, list_run_kernels(store, base))
        named = {name: found[-1] for name, found in kernels.items()}
        promoter = Promoter(store, info.run_id, to, named, measure if again else None, check)
        records = promoter.decide()[0] if dry_run else promoter.promote(_note_wait)
    emit(records, _ENTRIES, style)
    counts = Counter(record.outcome for record in records)
    note(f"run {info.run_id} to {to}: " + ", ".join(f"{n} {word}" for word, n in counts.items()))
    if promoter.gated:
        note(promoter.gated)
        if not counts[PromotionOutcome.PROMOTED]:
            raise typer.Exit(1)


def _make_gate(text: str, published: Path, *, quiet: bool) -> Gate:
    """What decides by a command."""
    from tuner.optimizing.program import Program, check_gate

    try:
        words = shlex.split(text) or [text]
    except ValueError as error:
        raise TunerError(f"--gate {text}: {error}", "quote it as a shell would read it") from None
    find_program(words[0])
    program = Program(words, os.environ, (lambda text: None) if quiet else note)
    return partial(check_gate, program, published.absolute())


def rollback(
    folder: Annotated[Path, typer.Argument(help="The folder of tables.", metavar="DIR")],
    config: ConfigOption = None,
    style: FormatOption = Format.TABLE,
) -> None:
    """Take back the last promotion into a folder: its tables are again what they were before."""
    from tuner.tables.promotion import roll_back

    with open_store(config) as store:
        done = roll_back(store, folder, _note_wait)
    emit([{"path": f"{path}", "done": what} for path, what in done], ("path", "done"), style)


def _note_wait() -> None:
    note("waiting for another promotion into this folder")
