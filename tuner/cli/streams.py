"""Standard streams whose faults end no command, such as a closed pipe or a full disk."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

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
