"""`tuner doctor --tables FOLDER`: what tables are worth on this device, and the cost of tuning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from search_spaces.errors import TunerError
from tuner.base.inert_text import inert
from tuner.cli.console import Format, emit, note
from tuner.runtime import DeviceFacts, Table, TableError, is_for_device, read, staleness
from tuner.tables import list_coverage_lines
from tuner.tables.results import device_facts
from tuner.tables.table_check import table_files
from workers import backend_kinds

#: Trials of a search with budget `auto` that ends early, about.
_TRIALS = 60
_COLUMNS = ("kernel", "made on", "here", "entries", "gain there", "minutes to tune", "note")


def examine_tables(folder: Path, device: str | None, style: Format) -> None:
    """One row per table; exits with 1 where one cannot be used here or is malformed."""
    here = DeviceFacts(device) if device else _find_accelerator()
    paths = list(table_files([folder]))
    if not paths:
        raise TunerError(f"{folder}: there are no tables", "write them with `tuner export`")
    rows = [_row(path, here) for path in paths]
    emit(rows, _COLUMNS, style)
    for line in list_coverage_lines(paths):
        note(inert(line))
    lost = [row for row in rows if row["here"] not in ("used", "used as the nearest sibling's")]
    if lost:
        note(
            f"{len(lost)} of {len(rows)} tables are not used here: tune their kernels, or measure "
            "whether their configs still win with `tuner upgrade-check --any-device --retune`"
        )
        raise typer.Exit(1)


def _find_accelerator() -> DeviceFacts | None:
    """The first accelerator of this machine."""
    specs = [spec for spec in map(backend_kinds.spec, backend_kinds.names()) if spec.accelerator]
    found = (device for spec in specs if spec.timed for device in spec.find_devices())
    return next(map(device_facts, found), None)


def _row(path: Path, here: DeviceFacts | None) -> Mapping[str, object]:
    try:
        table = read(path)
    except TableError as error:
        return {"kernel": path.name, "here": "malformed", "note": f"{error}"}
    state, why = _judge(table, here)
    spec = backend_kinds.spec_of_stored(table.device.kind)
    seconds = len(table.entries) * (_TRIALS * spec.seconds_per_trial + spec.seconds_of_finals)
    return {
        "kernel": table.kernel,
        "made on": table.device.name,
        "here": state,
        "entries": len(table.entries),
        "gain there": _gain([entry.speedup_over_default for entry in table.entries]),
        "minutes to tune": round(seconds / 60, 1),
        "note": why or None,
    }


def _judge(table: Table, here: DeviceFacts | None) -> tuple[str, str]:
    """Whether launches on this device use the table, and what else is to be said."""
    reason = staleness(table)
    if is_for_device(table, here):
        return ("stale", reason) if reason else ("used", "")
    if here is None:
        return "no device here", ""
    if math.isinf(here.distance_to_sibling(table.device)):
        return "another device", "no config is known to run here"
    if reason:
        return "stale", reason
    return (
        "used as the nearest sibling's",
        "with TUNER_DEVICE=nearest; its times are those of the other card",
    )


def _gain(speedups: Sequence[float | None]) -> float | None:
    """The geometric mean of default time over table time, on the card of the table."""
    known = [math.log(each) for each in speedups if each]
    return round(math.exp(sum(known) / len(known)), 3) if known else None
