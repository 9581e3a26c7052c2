"""Untrusted text on one line of a log or a message."""

from __future__ import annotations


def printable(value: object, limit: int = 120) -> str:
    """A value as one line that is safe to print: no control characters, at most `limit` long."""
    try:
        whole = str(value)
    except Exception:  # an integer with too many digits, or a foreign class
        whole = f"<{type(value).__name__}>"
    text = "".join(c if c.isprintable() else "?" for c in whole[: limit + 1])
    return text if len(text) <= limit else text[: limit - 1] + "…"
