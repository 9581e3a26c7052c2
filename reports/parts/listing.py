"""A listing of rows with links, for pages that are served."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from reports.parts.view import Section


@dataclass(frozen=True, slots=True)
class ListingCell:
    """A text, with the page that it leads to or the verdict whose colour it has."""

    text: object
    href: str = ""
    tone: str = ""
    #: Smaller lines below the text.
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListingRow:
    """The cells of a row, one per heading."""

    cells: Sequence[ListingCell]
    #: Its anchor in the page; empty for none.
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Picker:
    """A form that asks for the runs to compare."""

    #: (name in the query, label, value) of each field.
    fields: Sequence[tuple[str, str, str]]
    #: (value, label) of the runs that it offers.
    known: Sequence[tuple[str, str]] = field(default=())


def list_section(
    name: str,
    title: str,
    headings: Sequence[str] = (),
    rows: Iterable[ListingRow] = (),
    *,
    paragraphs: Sequence[str] = (),
    links: Sequence[tuple[str, str]] = (),
    picker: Picker | None = None,
) -> Section:
    """A section of paragraphs, one listing and links (address, text) below it.

    All text is escaped.
    """
    context = {
        "name": name,
        "headings": headings,
        "rows": list(rows),
        "paragraphs": paragraphs,
        "links": links,
        "choices": picker.fields if picker else (),
        "known": picker.known if picker else (),
    }
    return Section(name, title, "listing.html.j2", context)
