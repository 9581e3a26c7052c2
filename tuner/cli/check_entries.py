"""`tuner check --level build|measure`: tables after a new Triton, driver or card."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from results_db.stored_records import RunStatus
from search_spaces.errors import TunerError
from tuner.cli.command_context import configured_kernels
from tuner.cli.console import Format, emit, note
from tuner.cli.stop_signals import interruptible
from tuner.views.column import Column, sort_config
from tuner.views.progress_display import show_progress

if TYPE_CHECKING:
    from tuner.compare import EntryOutcome, Refused, Retuned, TableHere
    from tuner.settings.sections import Settings

_COLUMNS: tuple[Column[EntryOutcome], ...] = (
    Column("table", lambda each: f"{each.path}", heading=None),
    Column("kernel"),
    Column("workload", lambda each: each.workload.key),
    Column("device", heading=None),
    Column("result"),
    Column("config", lambda each: sort_config(each.entry.config), heading=None),
    Column("change", rank=1),
    Column("median_us", rank=1),
    Column("table_us", lambda each: each.entry.median_us, rank=1),
    Column("low_us", heading=None),
    Column("high_us", heading=None),
    Column("gain", rank=1),
    Column("better", lambda each: each.better and sort_config(each.better), rank=1),
    Column("toolchain", lambda each: each.toolchain and asdict(each.toolchain), heading=None),
    *(Column(name, heading=None) for name in ("finding", "built", "measured", "device_s")),
    *(Column(name, heading=None) for name in ("search_trials", "search_device_s")),
)


def check_entries(
    settings: Settings,
    base: Path,
    paths: Sequence[Path],
    config: Path | None,
    kernel: Sequence[str],
    *,
    retune: bool,
    trials: int | None,
    runners_up: int,
    any_device: bool,
    build_only: bool,
    quiet: bool,
    style: Format,
) -> None:
    """Check tables after a new Triton, driver or card, and find the entries to tune again.

    For each entry, the winner, its runners-up and the default config are built. They are measured
    side by side where a binary, the driver or the card has changed. Exits with 1 if a winner
    flipped, is slower, wrong, or no longer builds, and for a table that cannot be read or whose
    kernel is gone.
    """
    from tuner.compare import CheckOptions, tables_here
    from tuner.compare import check_entries as check_all

    own = configured_kernels(settings, base, kernel)
    tables, refused = tables_here(
        settings, base, paths, own, any_device=any_device, build_only=build_only
    )
    _note_refused(tables, refused)
    options = CheckOptions(runners_up=runners_up, build_only=build_only)
    outcomes: list[EntryOutcome] = []
    written: list[Retuned] = []
    interrupted = False
    try:
        with show_progress(not quiet) as on_progress:
            outcomes.extend(check_all(settings, tables, options, on_progress))
        if retune:
            written, interrupted = _retune(settings, base, tables, outcomes, trials, quiet=quiet)
    finally:
        _emit(outcomes, written, style)
    _note_summary(outcomes, build_only=build_only)
    _note_written(written)
    lost = sum(item.lost for item in outcomes)
    if lost and not written and not build_only:
        command = _command(paths, kernel, config, any_device=any_device)
        note(f"{lost} entries lost their winner; tune them again with `{command}`")
    if interrupted:
        raise typer.Exit(130)
    if any(item.finding for item in refused) or _findings(outcomes, written):
        raise typer.Exit(1)


def _note_refused(tables: Sequence[TableHere], refused: Sequence[Refused]) -> None:
    for item in refused:
        note(f"not checked: {item.path}: {item.reason}")
    if not tables and not any(item.finding for item in refused):
        raise TunerError(
            "none of the tables can be checked here",
            "run it where their device is, or with --any-device or --level build",
        )


def _retune(
    settings: Settings,
    base: Path,
    tables: Sequence[TableHere],
    outcomes: Sequence[EntryOutcome],
    trials: int | None,
    *,
    quiet: bool,
) -> tuple[list[Retuned], bool]:
    """The tables, and whether the campaign was interrupted."""
    from tuner.campaign import Control
    from tuner.compare import retune

    control = Control()
    with interruptible(control), show_progress(not quiet) as show:
        run, written = retune(
            settings, base, tables, outcomes, trials=trials, control=control, on_progress=show
        )
    if run is not None:
        note(run.summary)
        if run.fault is not None:
            note(f"run {run.run_id}: {run.fault.reason}; {run.fault.remedy}")
    return written, run is not None and run.status == RunStatus.INTERRUPTED


def _emit(outcomes: Sequence[EntryOutcome], written: Sequence[Retuned], style: Format) -> None:
    tuned = {item.path for item in written if item.tuned}
    retuned: Column[EntryOutcome] = Column(
        "retuned", lambda each: each.path in tuned and each.lost, heading=None
    )
    emit(outcomes, (*_COLUMNS, retuned, Column("note", rank=2)), style, filled=True)


def _note_summary(outcomes: Sequence[EntryOutcome], *, build_only: bool) -> None:
    """Print what became of the entries, and what the check cost and saved."""
    if not outcomes:
        return
    counts = Counter(f"{item.result}" for item in outcomes)
    note(f"{len(outcomes)} entries: {', '.join(f'{n} {word}' for word, n in counts.items())}")
    if build_only:
        return
    still = sum(item.result == "same" and not item.measured for item in outcomes)
    if still:
        note(f"{still} needed no measurement: their binaries have not changed")
    measured = sum(item.measured for item in outcomes)
    note(f"{measured} configs measured, {sum(o.device_s for o in outcomes):.2f} s of device time")
    known = [item for item in outcomes if item.search_trials]
    if known:
        trials = sum(item.search_trials or 0 for item in known)
        seconds = sum(item.search_device_s or 0.0 for item in known)
        own = sum(item.measured for item in known)
        note(
            f"saved: the searches behind {len(known)} entries measured {trials} configs in "
            f"{seconds:.2f} s of device time; this check measured {own} "
            f"({1 - min(1.0, own / trials):.0%} saved)"
        )
    if len(known) < len(outcomes):
        note(
            f"saved: unknown for {len(outcomes) - len(known)} entries, whose searches are not in "
            "the database"
        )


def _note_written(written: Sequence[Retuned]) -> None:
    for item in written:
        if item.reason:
            note(f"not written: {item.path}: {item.reason}")
        elif item.wrote is not None:
            note(f"wrote {item.wrote}: {item.tuned} entries tuned again")


def _command(
    paths: Sequence[Path], kernels: Sequence[str], config: Path | None, *, any_device: bool
) -> str:
    """The command that tunes what was found."""
    words = ["tuner", "check", *map(str, paths), "--retune"]
    for kernel in kernels:
        words += ["--kernel", kernel]
    words += ["--config", f"{config}"] if config else []
    return shlex.join([*words, "--any-device"] if any_device else words)


def _findings(outcomes: Sequence[EntryOutcome], written: Sequence[Retuned]) -> bool:
    """Whether a finding remains: one that no new winner settles."""
    settled = {item.path for item in written if not item.reason}
    return any(item.finding and not (item.lost and item.path in settled) for item in outcomes)
