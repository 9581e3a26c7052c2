"""A result as an HTML table for notebooks. It takes the page's colours, so it suits dark pages."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from tuner.base.inert_text import inert

_TABLE = "border-collapse:collapse;color:inherit;background:transparent;font-size:0.95em"
_CELL = (
    "text-align:left;vertical-align:top;padding:0.2em 0.8em 0.2em 0;color:inherit;"
    "background:transparent;border:none;border-top:1px solid rgba(128,128,128,0.4)"
)


def table(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    """Names and values as one `<table>`, without empty values; all text in it is escaped."""
    body = "".join(
        f'<tr><th scope="row" style="{_CELL}">{_text(name)}</th>'
        f'<td style="{_CELL}">{_text(value)}</td></tr>'
        for name, value in rows
        if value
    )
    return (
        f'<table style="{_TABLE}"><caption style="text-align:left;font-weight:bold;color:inherit">'
        f"{_text(caption)}</caption><tbody>{body}</tbody></table>"
    )


def _text(value: object) -> str:
    return escape(inert(value))
