"""Which code is a user's own, and where in it an exception was raised: for messages and reports."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path

#: The farm's packages, and others whose frames tell a kernel's author nothing.
OURS = ("search_spaces", "workers", "tuner", "reports", "results_db")
_INSTALLED = ("torch", "triton", "numpy", "ray")
HOME = Path(__file__).resolve().parents[1]
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
    top = installed_package(f"{file}")
    if top in (*_INSTALLED, *OURS):
        return False
    if any(file.is_relative_to(HOME / package) for package in OURS):
        return False
    return top is not None or not file.is_relative_to(_STDLIB)


@cache
def installed_package(file: str) -> str | None:
    """The top-level package or module of an installed file, by name; None for other files.

    Its folder is called `site-packages` or `dist-packages`, or holds a distribution that lists it,
    as after `pip install --target`. A project that is installed as a link stays the user's.
    """
    path = Path(file)
    pairs = [*zip(path.parents, (path, *path.parents), strict=False)]
    named = (inner for folder, inner in pairs if folder.name in _SITE)
    # From the root on, since packages hold copies of others.
    listed = (inner for folder, inner in reversed(pairs) if inner.name in _list_installed(folder))
    found = next(chain(named, listed), None)
    return found.name.partition(".")[0] if found else None


@cache
def _list_installed(folder: Path) -> frozenset[str]:
    """The files and folders that distributions in a folder list as theirs."""
    found: set[str] = set()
    with suppress(OSError):
        for record in folder.glob("*.dist-info/RECORD"):
            found.update(re.findall(r"^[^/,]+", record.read_text("utf-8", "replace"), re.MULTILINE))
    return frozenset(found)


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
