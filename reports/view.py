"""What subjects hand to the templates: sections of figures, tables, listings and paragraphs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from markupsafe import Markup
from plotly.utils import PlotlyJSONEncoder

from reports.source import RunData
from search_spaces.errors import TunerError

Cell = str | int | float | None
Item = TypeVar("Item")

#: Most tasks that a figure with one row per task shows; its data table has all of them.
MOST_ROWS = 24


@dataclass(frozen=True, slots=True)
class Table:
    """A plain table."""

    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    #: Which rows are left out; empty where the table is complete.
    note: str = ""

    @property
    def without_empty_columns(self) -> Table:
        """Without the columns in which no row has text."""
        kept = [at for at in range(len(self.headings)) if any(row[at] != "" for row in self.rows)]
        if len(kept) in (0, len(self.headings)):
            return self
        headings = tuple(self.headings[at] for at in kept)
        return Table(headings, tuple(tuple(row[at] for at in kept) for row in self.rows), self.note)

    @classmethod
    def of(cls, headings: Sequence[str], rows: Iterable[Sequence[Cell]], limit: int = 200) -> Table:
        """The first `limit` rows, with a note when there are more."""
        all_rows = tuple(tuple(row) for row in rows)
        total = len(all_rows)
        note = f"The first {limit} of {total} rows." if total > limit else ""
        return cls(tuple(headings), all_rows[:limit], note)


@dataclass(frozen=True, slots=True)
class FigureView:
    """A figure in the form that the page shows."""

    #: Its anchor, unique in the page.
    name: str
    #: The Plotly figure as data, without its template.
    figure: Mapping[str, Any]
    #: One sentence that states what the figure shows.
    caption: str
    #: The data of the figure, for readers who cannot see it.
    table: Table

    @property
    def height(self) -> int:
        """Height in pixels."""
        return int(self.figure["layout"]["height"])


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the page."""

    #: Its anchor, unique in the page.
    name: str
    #: Its heading.
    title: str
    #: File name of its template in `reports/templates`.
    template: str
    #: The variables of the template.
    context: dict[str, Any] = field(default_factory=dict)
    #: All of its figures.
    figures: Sequence[FigureView] = ()
    #: Whether it is folded until a reader opens it.
    folded: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        title: str,
        *,
        paragraphs: Sequence[str] = (),
        figures: Sequence[FigureView] = (),
        tables: Mapping[str, Table] | None = None,
    ) -> Section:
        """A section without a template: paragraphs, then figures, then tables by heading.

        The anchors of the figures get the section's name as a prefix. All text is escaped.
        """
        context = {"paragraphs": tuple(paragraphs), "tables": tuple((tables or {}).items())}
        views = tuple(replace(view, name=f"{name}-{view.name}") for view in figures)
        return cls(name, title, "parts.html.j2", context, views)


#: Makes the section of a run; None where the run has nothing to show in it.
SectionBuilder: TypeAlias = Callable[[RunData], Section | None]


@dataclass(frozen=True, slots=True)
class SectionSpec:
    """How a section of the page is built, and where it stands."""

    build: SectionBuilder
    #: Name of the section that it follows; empty for the end of the page.
    after: str = ""


# -- figures ---------------------------------------------------------------------------------------
@cache
def read_plotly() -> str:
    """The source text of the part of plotly.js that pages carry, of `scripts/build_plotly.sh`."""
    return (files("reports") / "assets" / "plotly.min.js").read_text(encoding="utf-8")


@cache
def version_and_traces() -> tuple[str, frozenset[str]]:
    """The version of plotly.js, and the types of traces that the bundle draws, from its header."""
    header = r"^\* plotly\.js \(([a-z ]+)\) v([0-9.]+)$"
    found = re.search(header, read_plotly()[:400], re.MULTILINE)
    assert found is not None, "the bundle of plotly.js has no header"
    return found[2], frozenset(found[1].split())


def figure_view(name: str, figure: Any, caption: str, table: Table) -> FigureView:
    """Convert a Plotly figure for the page. The page's theme supplies template and options.

    Raises `TunerError` for a trace that the page's part of plotly.js cannot draw.
    """
    # `figure.to_dict()` would copy every number, and look for arrays to encode.
    plain = {"data": figure._data, "layout": figure._layout}
    content = json.loads(json.dumps(plain, cls=PlotlyJSONEncoder))
    _, known = version_and_traces()
    if unknown := {trace.get("type", "scatter") for trace in content["data"]} - known:
        raise TunerError(
            f"the report draws no {', '.join(sorted(unknown))} traces",
            f"its figures may contain {', '.join(sorted(known))}",
        )
    content["layout"].pop("template", None)
    return FigureView(name, content, caption, table)


def foremost(items: Sequence[Item], weight: Callable[[Item], float]) -> tuple[list[Item], str]:
    """The heaviest items that fit into a figure, in their order, and a note on how many there are.

    The note is empty where all items fit.
    """
    if len(items) <= MOST_ROWS:
        return list(items), ""
    ranked = sorted(range(len(items)), key=lambda place: -weight(items[place]))
    kept = sorted(ranked[:MOST_ROWS])
    return [items[place] for place in kept], f" Shown: {MOST_ROWS} of {len(items)} tasks."


# -- cells and listings ----------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ListingCell:
    """A text, with the page that it leads to or the verdict whose colour it has."""

    text: object
    href: str = ""
    tone: str = ""
    #: Smaller lines below the text.
    lines: tuple[str, ...] = ()
    #: What the text says, in words.
    meaning: str = ""
    #: The value by which its column is sorted, where the text is not; empty sorts last.
    sort: str | None = None


@dataclass(frozen=True, slots=True)
class ListingRow:
    """The cells of a row, one per heading."""

    cells: Sequence[ListingCell]
    #: Its anchor in the page; empty for none.
    anchor: str = ""


def list_section(
    name: str,
    title: str,
    headings: Sequence[str] = (),
    rows: Iterable[ListingRow] = (),
    *,
    paragraphs: Sequence[str] = (),
    links: Sequence[tuple[str, str]] = (),
    menus: Sequence[tuple[str, str, str]] = (),
    options: Mapping[str, str] = MappingProxyType({}),
) -> Section:
    """A section of a form, paragraphs, one listing and links (address, text) below it.

    menus: (name in the query, label, chosen value). options: the labels of their values. All text
    is escaped.
    """
    context = {
        "name": name,
        "headings": headings,
        "rows": list(rows),
        "paragraphs": paragraphs,
        "links": links,
        "menus": menus,
        "options": options,
    }
    return Section(name, title, "listing.html.j2", context)


# -- JSON ------------------------------------------------------------------------------------------
def script_json(value: object) -> Markup:
    """JSON that is safe inside a `<script>` element, whatever text it contains."""
    text = _write_json(value)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _write_json(value: object) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return _write_json(json.loads(json.dumps(value), parse_constant=lambda _: None))
