"""Output of commands: data to stdout, everything else to stderr, no control characters."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from results_db.masking import masked_within
from results_db.spreadsheet import inert_cell
from tuner.base.inert_text import inert
from tuner.base.log_ratio import Verdict
from tuner.cli.column_units import make_heading, with_units
from tuner.cli.text_table import TextTable

if TYPE_CHECKING:
    from rich.console import Console


class Format(StrEnum):
    """The format of a listing."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MD = "md"


VERDICT_COLOURS = {Verdict.FASTER: "green", Verdict.SLOWER: "red"}
#: The style of the column `verdict`.
VERDICT_STYLES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "verdict": lambda row: VERDICT_COLOURS.get(row["verdict"], "")
}
#: Formats whose texts are for people.
READABLE = (Format.TABLE, Format.MD)
FormatOption = Annotated[
    Format, typer.Option("--format", "-f", help="How to write the listing to stdout.")
]


def console(*, stderr: bool = False) -> Console:
    """A console that honours NO_COLOR; outside a terminal it wraps no lines."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        file=stream, markup=False, highlight=False, width=None if stream.isatty() else 1000
    )


def note(text: object) -> None:
    """Print one line to stderr; passwords of URLs in it are hidden."""
    _say(inert(masked_within(f"{text}")))


def fail(message: object, hint: object = "") -> None:
    """Print the two lines of an error to stderr; passwords of URLs in the first are hidden."""
    _say(f"error: {inert(masked_within(f'{message}'))}")
    if hint:
        _say(f"hint: {inert(hint)}")


def say(text: object) -> None:
    """Print one line of a result to stdout."""
    _say(inert(text), stderr=False)


def _say(line: str, *, stderr: bool = True) -> None:
    """Print a line; a terminal would split a word at its edge, so the line ends there."""
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        width = console(stderr=stderr).width
        wrapped = textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
        line = "\n".join(wrapped)
    print(line, file=stream)


def emit(
    rows: Sequence[Mapping[str, object]],
    columns: Sequence[str],
    style: Format = Format.TABLE,
    *,
    empty: str = "nothing to list",
    details: Sequence[str] = (),
    shared: Sequence[str] = (),
    styles: Mapping[str, Callable[[Mapping[str, Any]], str]] | None = None,
) -> None:
    """Write a listing to stdout; for an empty table, print `empty` to stderr instead.

    On a terminal, `details` stand below their row, and columns of `shared` above all rows
    where all have one value; elsewhere they are columns, one line per row. styles: the style of a
    column's cell by its row, such as `green`. For readers, numbers of columns that end with a unit
    are in the unit that fits.
    """
    if style in READABLE:
        rows = [with_units(row) for row in rows]
    if style is Format.JSON:
        picked = [{name: _plain(row.get(name)) for name in columns} for row in rows]
        print(json.dumps(picked, indent=2))
    elif style is Format.CSV:
        print(_csv(rows, columns), end="")
    elif style is Format.MD:
        print(_markdown(rows, columns))
    elif rows:
        screen, width = console(), None
        if sys.stdout.isatty():
            width = screen.width
        else:
            details = shared = ()
        listing = TextTable(rows, columns, cell, details, shared, styles or {})
        for line in listing.make_lines(screen, width):
            screen.print(line, soft_wrap=True)
    else:
        note(empty)


#: Columns of tasks and trials that stand below each row.
BELOW = ("trials", "config", "message", "note")


def emit_record(
    record: Mapping[str, object],
    style: Format,
    *,
    columns: Sequence[str] | None = None,
    styles: Mapping[str, Callable[[Mapping[str, Any]], str]] | None = None,
) -> None:
    """Write one record to stdout: an object in JSON, elsewhere a row of name and value for each.

    In a table, values that are lists of rows are listings below the others, and texts of several
    lines follow as they are. columns: of the listings, all by default. styles: as of `emit`.
    """
    if style is Format.JSON:
        print(json.dumps({name: _plain(value) for name, value in record.items()}, indent=2))
        return
    filled = {name: value for name, value in record.items() if value not in (None, "", {}, [])}
    if style is not Format.TABLE:
        rows = [{"what": name, "value": _flatten(value)} for name, value in filled.items()]
        emit(rows, ("what", "value"), style)
        return
    below = [name for name, value in filled.items() if isinstance(value, list) or _is_long(value)]
    screen = console()
    facts = TextTable([with_units(filled)], [name for name in filled if name not in below], cell)
    for line in facts.stack_lines(screen, screen.width):
        screen.print(line, soft_wrap=True)
    for name in below:
        print(f"\n{name.replace('_', ' ')}:")
        value = filled[name]
        if isinstance(value, list):
            shown = columns or list(value[0])
            emit(value, shown, details=BELOW, shared=("device",), styles=styles)
        else:
            print("\n".join(inert(line) for line in str(value).splitlines()))


def _is_long(value: object) -> bool:
    return isinstance(value, str) and len(value.splitlines()) > 1


def _flatten(value: object) -> object:
    """A value for one cell: JSON in place of lists and mappings."""
    plain = _plain(value)
    return json.dumps(plain) if isinstance(plain, list | dict) else plain


def cell(value: object) -> str:
    """A value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
    if isinstance(value, Mapping):
        parts = [f"{key}={item}" for key, item in value.items()]
        return inert((", " if any(" " in each for each in parts) else " ").join(parts))
    return inert(value)


def format_estimate(
    spec: str, value: float | None, low: float | None = None, high: float | None = None
) -> str | None:
    """A number with its interval where that is known: `1.052 [1.018, 1.088]` by `.3f`."""
    if value is None:
        return None
    ends = "" if low is None or high is None else f" [{low:{spec}}, {high:{spec}}]"
    return f"{value:{spec}}{ends}"


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)


def _csv(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(inert_cell(name) for name in columns)
    for row in rows:
        plain = (_plain(row.get(name)) for name in columns)
        writer.writerow(["" if item is None else inert_cell(inert(item)) for item in plain])
    return buffer.getvalue()


def _markdown(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> str:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |"

    def quote(value: object) -> str:
        return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", cell(value))

    head = [line([make_heading(name) for name in columns]), line(["---"] * len(columns))]
    return "\n".join([*head, *(line([quote(row.get(name)) for name in columns]) for row in rows)])
