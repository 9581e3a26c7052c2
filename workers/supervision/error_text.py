"""Errors as one line of text."""

from __future__ import annotations

_LIMIT = 300


def one_line(text: str, limit: int = _LIMIT) -> str:
    """The text with single spaces, cut to `limit` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[: limit - 3]}..."


def times(count: int) -> str:
    """`twice`, `3 times`."""
    return "twice" if count == 2 else f"{count} times"
