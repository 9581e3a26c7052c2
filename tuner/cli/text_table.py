"""Tables of text that are right at the width of the screen.

No word is split: columns that are too wide are wrapped between words, the widest first. Where even
that does not fit, each row becomes lines of name and value. On a screen, details of a row stand
below it, indented, what all rows share stands once above them, and columns without a value are left
out.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from tuner.cli.column_units import make_heading

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Row: TypeAlias = Mapping[str, Any]
#: The mean length of a row without line breaks over the width up to which a table is readable.
_FOLDING = 1.75
#: Cells of columns that are no wider than this are not wrapped.
_WHOLE = 10
_GAP = "  "
_INDENT = "    "
#: Blanks at which no line ends: those before the unit of a number, and in an interval.
_KEPT = re.compile(r"(?<=\d) (?=(?:[num]?s|[KMGT]iB|[kGMT]?(?:B/s|FLOP(?:/s)?))(?:\s|$))|"
                   r"(?<=[\d%],) (?=[-+.\d]+%?\])")  # fmt: skip
#: Stands for such a blank while lines are made.
_GLUE = "\ue000"
#: The style of headings and labels.
_HEAD = "bold"


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows with the columns that are shown, and how."""

    rows: Sequence[Row]
    columns: Sequence[str]
    #: A value as text.
    cell: Callable[[object], str]
    #: Columns that stand on lines of their own below each row.
    details: Sequence[str] = ()
    #: Columns that stand above all rows where all of them have one value.
    shared: Sequence[str] = ()
    #: The style of a column's cell, by its row, such as `green`; empty for none.
    styles: Mapping[str, Callable[[Row], str]] = field(default_factory=dict)

    def make_lines(self, screen: Console, width: int | None) -> list[Text]:
        """The lines at a width, None for any; names and values where the width is too small."""
        above = self._list_shared()
        below = [name for name in self.details if name in self.columns]
        main = [name for name in self.columns if name not in above and name not in below]
        if width is not None:
            main = list(filled_columns(main, self.rows)) or main[:1]
        cells = [[self._make_cell(row, name) for name in main] for row in self.rows]
        heads = [_make_text(make_heading(name), _HEAD) for name in main]
        widths = _choose_widths([heads, *cells], width)
        if widths is None:
            return list(self.stack_lines(screen, width or 0))
        right = [self._is_number(name) for name in main]
        said = [
            _make_text(f"{make_heading(name)}: {self.cell(self.rows[0][name])}") for name in above
        ]
        lines = [line for text in said for line in _wrap(screen, text, width or text.cell_len)]
        lines += _lay_out(screen, heads, widths, right)
        for row, texts in zip(self.rows, cells, strict=True):
            lines += _lay_out(screen, texts, widths, right)
            for name in below:
                if row.get(name) not in (None, ""):
                    lines += self._make_detail(screen, row, name, width)
        return lines

    def _list_shared(self) -> list[str]:
        """Shared columns, where there is a value that all rows have."""
        found = []
        for name in self.shared:
            values = {self.cell(row.get(name)) for row in self.rows}
            if name in self.columns and len(values) == 1 and len(self.rows) > 1:
                found.append(name)
        return found

    def _make_detail(self, screen: Console, row: Row, name: str, width: int | None) -> list[Text]:
        text = _join(_make_text(f"{make_heading(name)}: ", "dim"), self._make_cell(row, name))
        room = max(20, width - len(_INDENT)) if width else text.cell_len
        return [_join(_make_text(_INDENT), line) for line in _wrap(screen, text, room)]

    def stack_lines(self, screen: Console, width: int) -> Iterator[Text]:
        """One line per column that has a value, with an empty line between rows."""
        left = max(len(name) for name in self.columns) + len(_GAP)
        for number, row in enumerate(self.rows):
            if number:
                yield _make_text("")
            for name in self.columns:
                if row.get(name) in (None, ""):
                    continue
                lines = _wrap(screen, self._make_cell(row, name), max(8, width - left))
                for at, line in enumerate(lines):
                    label = "" if at else make_heading(name)
                    yield _join(_make_text(label.ljust(left), _HEAD), line)

    def _make_cell(self, row: Row, name: str) -> Text:
        style = self.styles.get(name)
        text = _KEPT.sub(_GLUE, self.cell(row.get(name)))
        return _make_text(text, style(row) if style else "")

    def _is_number(self, name: str) -> bool:
        return all(isinstance(row.get(name), int | float | None) for row in self.rows)


def filled_columns(columns: Sequence[str], rows: Sequence[Row]) -> Iterator[str]:
    """The columns with a value in some row; empty ones would waste the width of the screen."""
    return (name for name in columns if any(row.get(name) not in (None, "") for row in rows))


def _make_text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style)


def _join(*parts: Text) -> Text:
    """One text, in which each part keeps its style."""
    found = _make_text("")
    for part in parts:
        found.append_text(part)
    return found


def _wrap(screen: Console, text: Text, width: int) -> list[Text]:
    """The lines of a text; only a word that is longer than the width is split."""
    lines = list(text.wrap(screen, width, overflow="fold")) if text.cell_len > width else [text]
    for line in lines:
        line.rstrip()
        line.plain = line.plain.replace(_GLUE, " ")
    return lines


def _choose_widths(rows: Sequence[Sequence[Text]], width: int | None) -> list[int] | None:
    """The width of each column; None where the table is not readable at this one.

    Where columns have to be wrapped, the widest ones are.
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(text.cell_len for text in column) for column in columns]
    if width is None:
        return widths
    least = [max(map(_find_least_width, column)) for column in columns]
    room = width - len(_GAP) * (len(columns) - 1)
    mean = sum(text.cell_len for row in rows for text in row) / len(rows)
    if sum(least) > room or mean > _FOLDING * room:
        return None
    while sum(widths) > room:
        widest = max(range(len(widths)), key=lambda at: (widths[at] > least[at], widths[at]))
        widths[widest] -= 1
    return widths


def _find_least_width(text: Text) -> int:
    """The width of the longest word; all of a short cell, where it is no heading."""
    from rich.cells import cell_len

    if text.cell_len <= _WHOLE and text.style != _HEAD:
        return text.cell_len
    return max(map(cell_len, text.plain.split()), default=0)


def _lay_out(
    screen: Console, texts: Sequence[Text], widths: Sequence[int], right: Sequence[bool]
) -> list[Text]:
    """The lines of one row."""
    columns = [_wrap(screen, text, width) for text, width in zip(texts, widths, strict=True)]
    lines = []
    for parts in itertools.zip_longest(*columns):
        line = _make_text("")
        for place, (part, width, is_right) in enumerate(zip(parts, widths, right, strict=True)):
            shown = _make_text("") if part is None else part.copy()
            shown.align("right" if is_right else "left", width)
            line.append(_GAP if place else "").append_text(shown)
        line.rstrip()
        lines.append(line)
    return lines
