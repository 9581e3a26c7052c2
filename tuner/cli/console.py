"""Output of commands: data to stdout, everything else to stderr, no control characters."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypeVar

import typer

from results_db.masking import masked_within
from tuner.base.inert_text import inert
from tuner.views.column import Column, Listing, columns_of, plain
from tuner.views.rich_table import render_listing, stack_rows

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

R = TypeVar("R")
#: Wider than every line.
_ANY_WIDTH = 10**6


class Format(StrEnum):
    """The format of a listing."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MD = "md"


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
        file=stream, markup=False, highlight=False, width=None if stream.isatty() else _ANY_WIDTH
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
    records: Sequence[R],
    columns: Sequence[Column[R] | str],
    style: Format = Format.TABLE,
    *,
    empty: str = "nothing to list",
    filled: bool = False,
) -> None:
    """Write a listing to stdout; for an empty table, print `empty` to stderr instead.

    columns: a name stands for the attribute or item of that name. filled: people see only columns
    with some value.
    """
    found: list[Column[R]] = [Column(e) if isinstance(e, str) else e for e in columns]
    listing = Listing(found, records)
    if filled and style in READABLE:
        listing = Listing(listing.for_people(filled=True), records)
    if style is Format.JSON:
        print(listing.to_json())
    elif style is Format.CSV:
        print(listing.to_csv(), end="")
    elif style is Format.MD:
        print(listing.to_markdown())
    elif records and sys.stdout.isatty():
        _draw(render_listing(listing, console().width))
    elif records:
        print(listing.to_text())
    else:
        note(empty)


def emit_record(record: Mapping[str, object], style: Format) -> None:
    """Write one record to stdout: an object in JSON, elsewhere a row of name and value for each.

    In a table, listings stand below the other values, and texts of several lines follow as they
    are.
    """
    if style is Format.JSON:
        print(json.dumps({name: plain(value) for name, value in record.items()}, indent=2))
        return
    filled = {name: value for name, value in record.items() if not _is_empty(value)}
    if style is not Format.TABLE:
        rows = [{"what": name, "value": _flatten(value, style)} for name, value in filled.items()]
        emit(rows, ("what", "value"), style)
        return
    below = [
        name for name, value in filled.items() if isinstance(value, Listing) or _is_long(value)
    ]
    facts = columns_of(*(name for name in filled if name not in below))
    _draw(stack_rows(Listing(facts, [filled])))
    for name in below:
        print(f"\n{name.replace('_', ' ')}:")
        value = filled[name]
        if isinstance(value, Listing):
            emit(value.records, value.columns)
        else:
            print("\n".join(inert(line) for line in str(value).splitlines()))


def _draw(parts: Iterable[RenderableType]) -> None:
    """Print lines without the blanks that end them."""
    screen = console()
    with screen.capture() as drawn:
        for part in parts:
            screen.print(part)
    print(re.sub(r" +((?:\x1b\[\d*m)*)$", r"\1", drawn.get(), flags=re.MULTILINE), end="")


def _is_empty(value: object) -> bool:
    return value in (None, "", {}) or (isinstance(value, Listing) and not value.records)


def _is_long(value: object) -> bool:
    return isinstance(value, Listing) or (isinstance(value, str) and len(value.splitlines()) > 1)


def _flatten(value: object, style: Format) -> object:
    """A value for one cell: JSON in place of listings and mappings."""
    if isinstance(value, Listing) and style in READABLE:
        value = value.readable_rows()
    flat = plain(value)
    return json.dumps(flat) if isinstance(flat, list | dict) else flat


_FAULTS = (OSError, ValueError)


class Lenient:
    """A text stream that drops what it cannot write.

    All else is delegated to the wrapped stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(*_FAULTS):
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with suppress(*_FAULTS):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def secure() -> None:
    """Open the standard streams that are closed, and let no write to stderr raise.

    A character that the encoding of a stream lacks is written as an escape.

    Otherwise the next file that is opened, such as the database, would get the closed descriptor
    and receive what a library writes to stderr.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _open_nothing(number)
            mode = "w" if number else "r"
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    for stream in (sys.stdout, sys.stderr):
        _escape_foreign(stream)
    sys.stderr = Lenient(sys.stderr)


def _escape_foreign(stream: TextIO) -> None:
    if isinstance(stream, io.TextIOWrapper):
        kept = stream.errors == "surrogateescape" and stream.encoding.casefold() == "utf-8"
        stream.reconfigure(errors=None if kept else "backslashreplace")


def _open_nothing(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)
        os.dup2(opened, number)
        if opened != number:
            os.close(opened)
        os.set_inheritable(number, True)


def separate_stdout() -> None:
    """Let stderr have what C code prints to descriptor 1; Python's stdout gets a copy of it."""
    sys.stdout.flush()
    shown = sys.stdout
    sys.stdout = os.fdopen(os.dup(1), "w", encoding=shown.encoding, errors=shown.errors)
    os.dup2(2, 1)


def discard_stdout() -> None:
    """Redirect stdout to nothing, so that flushing it at exit does not fail."""
    opened = os.open(os.devnull, os.O_WRONLY)
    os.dup2(opened, sys.stdout.fileno())
    os.close(opened)


@contextmanager
def final_output() -> Iterator[None]:
    """Print the outcome of a finished run; a fault of stdout does not change the exit code.

    A reader that has left is not reported; any other fault is, on stderr.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        discard_stdout()
        if not isinstance(error, BrokenPipeError):
            print(f"stdout cannot be written: {error.strerror or error}", file=sys.stderr)
