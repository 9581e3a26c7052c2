"""File names made from text: readable, ASCII, bounded, and different for different text."""

from __future__ import annotations

import hashlib
import re

#: Longest slug, bytes. Two slugs, marks and suffixes stay below the 255 of usual file systems.
MAX_SLUG = 80
_PLAIN = re.compile(r"[a-z0-9_][a-z0-9_.-]*")


def file_stem(text: str) -> str:
    """A kernel's name as part of a file name; tables are `KERNEL@DEVICE-....json`.

    A name of lower-case ASCII letters, digits, `_`, `.` and `-` stays as it is. Any other gets a
    digest of the whole name, also one with capitals, since some file systems ignore case.
    """
    if len(text) <= MAX_SLUG and _PLAIN.fullmatch(text):
        return text
    mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{slug(text, MAX_SLUG - len(mark) - 1)}-{mark}"


def slug(text: str, limit: int = MAX_SLUG) -> str:
    """Text with every run of other characters as `_`, at most `limit` bytes; may not be unique."""
    return replaced(text).lstrip(".-")[:limit] or "_"


def replaced(text: str) -> str:
    """Text with every run of characters that are not ASCII letters, digits or `_.-` as `_`."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text)
