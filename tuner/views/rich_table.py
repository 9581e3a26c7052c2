"""Listings as tables of text that are right at the width of the screen, printed by Rich.

No word is split. Where a table is wider than the screen, the cells of the widest columns are
wrapped; where it is narrow, or no word fits, each row becomes lines of name and value. A screen
does not show columns without a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from tuner.base.log_ratio import Verdict
from tuner.views.column import Column, Listing, cell

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

#: The least width of a screen on which cells are wrapped, and that of cells that are.
_WIDE, _LONG = 100, 11
_GAP = 2
_COLOURS: Mapping[str, str] = MappingProxyType({Verdict.FASTER: "green", Verdict.SLOWER: "red"})


def render_listing(listing: Listing[Any], width: int) -> Iterator[RenderableType]:
    """The table of a listing at the width of a screen, or its rows."""
    from rich.table import Table

    columns = listing.for_people(filled=True)
    cells = [[_cell_of(column, record) for record in listing.records] for column in columns]
    heads = [_make_text(column.title, "bold") for column in columns]
    widths = _choose_widths([[head, *each] for head, each in zip(heads, cells, strict=True)], width)
    if widths is None:
        yield from stack_rows(listing)
        return
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="")
    for column, head, chosen in zip(columns, heads, widths, strict=True):
        side: Literal["left", "right"] = "right" if listing.is_number(column) else "left"
        table.add_column(head, width=chosen, justify=side, overflow="fold")
    for row in zip(*cells, strict=True):
        table.add_row(*row)
    yield table


def stack_rows(listing: Listing[Any]) -> Iterator[RenderableType]:
    """One line per column that has a value, with an empty line between rows."""
    from rich.table import Table

    columns = listing.for_people()
    for number, record in enumerate(listing.records):
        if number:
            yield ""
        rows = Table.grid(padding=(0, _GAP, 0, 0))
        rows.add_column(width=max(len(column.title) for column in columns))
        rows.add_column(overflow="fold")
        for column in columns:
            if column.present(record) not in (None, ""):
                rows.add_row(_make_text(column.title, "bold"), _cell_of(column, record))
        yield rows


def _choose_widths(columns: Sequence[Sequence[Text]], width: int) -> list[int] | None:
    """The width of each column; None where the table does not fit."""
    widths = [max(text.cell_len for text in texts) for texts in columns]
    room = width - _GAP * (len(columns) - 1)
    least = [max(map(_find_least_width, texts)) for texts in columns]
    if sum(widths) > room and (width < _WIDE or sum(least) > room):
        return None
    while sum(widths) > room:
        widest = max(range(len(widths)), key=lambda at: (widths[at] > least[at], widths[at]))
        widths[widest] -= 1
    return widths


def _find_least_width(text: Text) -> int:
    from rich.cells import cell_len

    words = text.plain.split() if text.cell_len >= _LONG else [text.plain]
    return max(map(cell_len, words), default=0)


def _cell_of(column: Column[Any], record: object) -> Text:
    return _make_text(cell(column.present(record)), _COLOURS.get(column.find_tone(record), ""))


def _make_text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style)
