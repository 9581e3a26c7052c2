"""Output of commands: data to stdout, everything else to stderr, no control characters."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from results_db.masking import masked_within
from results_db.spreadsheet import inert_cell
from search_spaces.inert_text import inert

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


class Format(StrEnum):
    """The format of a listing."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MD = "md"


#: The width of a table without line breaks over that of the screen up to which it is readable.
_FOLDING = 1.75

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
    print(inert(masked_within(f"{text}")), file=sys.stderr)


def fail(message: object, hint: object = "") -> None:
    """Print the two lines of an error to stderr; passwords of URLs in the first are hidden."""
    print(f"error: {inert(masked_within(f'{message}'))}", file=sys.stderr)
    if hint:
        print(f"hint: {inert(hint)}", file=sys.stderr)


def emit(
    rows: Sequence[Mapping[str, object]],
    columns: Sequence[str],
    style: Format = Format.TABLE,
    *,
    empty: str = "nothing to list",
    stack: bool = False,
) -> None:
    """Write a listing to stdout; for an empty table, print `empty` to stderr instead.

    stack: on a terminal that is too narrow for the table, print each row as lines of name
    and value.
    """
    if style is Format.JSON:
        picked = [{name: _plain(row.get(name)) for name in columns} for row in rows]
        print(json.dumps(picked, indent=2))
    elif style is Format.CSV:
        print(_csv(rows, columns), end="")
    elif style is Format.MD:
        print(_markdown(rows, columns))
    elif rows:
        screen = console()
        with screen.capture() as captured:
            listing = table(rows, columns)
            if stack and not _fits(listing, screen):
                listing = _stack(rows, columns)
            screen.print(listing)
        print("\n".join(line.rstrip() for line in captured.get().splitlines()))
    else:
        note(empty)


def table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> RenderableType:
    """A borderless table; columns of numbers are flush right."""
    from rich.table import Table
    from rich.text import Text

    result = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        numeric = all(isinstance(row.get(name), int | float | None) for row in rows)
        result.add_column(
            Text(name.replace("_", " ")), justify="right" if numeric else "left", overflow="fold"
        )
    for row in rows:
        result.add_row(*(Text(cell(row.get(name))) for name in columns))
    return result


def _fits(listing: RenderableType, screen: Console) -> bool:
    """Whether the table is readable: no word is broken, and few cells take many lines."""
    from rich.measure import Measurement

    unlimited = screen.options.update(max_width=10_000)
    width = Measurement.get(screen, unlimited, listing)
    return width.minimum <= screen.width and width.maximum <= _FOLDING * screen.width


def _stack(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> RenderableType:
    """One line per column that has a value, with an empty line after each row."""
    from rich.table import Table
    from rich.text import Text

    result = Table.grid(padding=(0, 2))
    result.add_column(no_wrap=True)
    result.add_column(overflow="fold")
    for number, row in enumerate(rows):
        if number:
            result.add_row("", "")
        for name in columns:
            if row.get(name) not in (None, ""):
                label = Text(name.replace("_", " "), style="bold")
                result.add_row(label, Text(cell(row.get(name))))
    return result


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
        return inert(" ".join(f"{key}={item}" for key, item in value.items()))
    return inert(value)


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

    head = [line([name.replace("_", " ") for name in columns]), line(["---"] * len(columns))]
    return "\n".join([*head, *(line([quote(row.get(name)) for name in columns]) for row in rows)])
