"""Where in a user's own code an exception was raised: for one-line messages and for reports."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

#: Packages whose frames tell a kernel's author nothing, wherever they are installed.
_OURS = ("search_spaces", "workers", "tuner", "reports", "results_db")
_INSTALLED = ("torch", "triton", "numpy", "ray")
_HOME = Path(__file__).resolve().parents[1]
_STDLIB = Path(sysconfig.get_path("stdlib")).resolve()
_SITE = ("site-packages", "dist-packages")


#: How a note that `within` leaves begins.
_WITHIN = "in "


@contextmanager
def within(part: str) -> Iterator[None]:
    """Note on an exception which part of a declaration raised it (`adopt(grid=...)`)."""
    try:
        yield
    except Exception as error:
        note(error, part)
        raise


def note(error: BaseException, part: str) -> None:
    """Note which part of a declaration raised an error, for its line."""
    error.add_note(f"{_WITHIN}{part}")


@cache
def is_own(filename: str) -> bool:
    """Whether a code object's file is the user's: neither ours, nor Python's, torch's or triton's.

    An installed kernel library counts as the user's. Code without a file (`<string>`) does not.
    """
    file = Path(filename)
    if not file.is_file():
        return False
    file = file.resolve()
    parts = file.parts
    site = next((at for at, part in enumerate(parts) if part in _SITE), None)
    if site is not None and parts[site + 1] in (*_INSTALLED, *_OURS):
        return False
    if any(file.is_relative_to(_HOME / package) for package in _OURS):
        return False
    return site is not None or not file.is_relative_to(_STDLIB)


def one_line(error: BaseException) -> str:
    """`ValueError: no such size (rope.py:12)`: with the innermost line of the user's own code."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    return f"{text}{place(error)}"


def place(error: BaseException) -> str:
    """` (rope.py:12)`: the innermost line of the user's own code; empty where there is none.

    Of the error or of the first of its causes that has one, with the part that `within` named.
    """
    parts = [note for note in getattr(error, "__notes__", ()) if note.startswith(_WITHIN)]
    return ", ".join([line(error), *parts[:1]]) if parts else line(error)


def line(error: BaseException) -> str:
    """The place without the part."""
    for one in _with_causes(error):
        found = ""
        for frame in traceback.extract_tb(one.__traceback__):
            if is_own(frame.filename):
                found = f" ({Path(frame.filename).name}:{frame.lineno})"
        if found:
            return found
    return ""


def trace(error: BaseException, limit: int) -> str:
    """The traceback of an error, `limit` characters at most, with the user's own frames only.

    All frames where none of them is the user's. Of a long text the middle is left out.
    """
    formatted = traceback.TracebackException.from_exception(error)
    if line(error):
        _reduce(formatted)
    return trim("".join(formatted.format()), limit)


def trim(text: str, limit: int) -> str:
    """The beginning and the end of a long text; compilers put the reason at either."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"


def _reduce(formatted: traceback.TracebackException | None) -> None:
    while formatted is not None:
        own = [frame for frame in formatted.stack if is_own(frame.filename)]
        formatted.stack = traceback.StackSummary.from_list(own)
        formatted = formatted.__cause__ or (
            None if formatted.__suppress_context__ else formatted.__context__
        )


def _with_causes(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in chain:
        chain.append(following)
        shown = None if following.__suppress_context__ else following.__context__
        following = following.__cause__ or shown
    return chain
