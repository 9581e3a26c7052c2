"""File names from text: readable, ASCII, of bounded length, different for different text."""

from __future__ import annotations

import hashlib
import re

#: Longest slug, bytes. Two slugs, digests and suffixes fit into the 255 bytes of a file name.
MAX_SLUG = 80
_PLAIN = re.compile(r"[a-z0-9_][a-z0-9_.-]*")


def file_stem(text: str) -> str:
    """A kernel's name as part of a file name; tables are `KERNEL@DEVICE-....json`.

    A name of lower-case ASCII letters, digits, `_`, `.` and `-` is used unchanged. Every other name
    gets a digest of the whole name. That includes names with capitals, since some file systems
    ignore case.
    """
    if len(text) <= MAX_SLUG and _PLAIN.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{slug(text, MAX_SLUG - len(digest) - 1)}-{digest}"


def slug(text: str, limit: int = MAX_SLUG) -> str:
    """Text with each run of other characters as `_`, at most `limit` bytes. May not be unique."""
    return replace_unsafe(text).lstrip(".-")[:limit] or "_"


def replace_unsafe(text: str) -> str:
    """Text with each run of characters other than ASCII letters, digits and `_.-` as `_`."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text)
