"""What sections hand to the templates: figures with caption and data, tables, paragraphs."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from markupsafe import Markup
from plotly.utils import PlotlyJSONEncoder

from reports.plotly_bundle import version_and_traces
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
class TrialColumns:
    """The trials of one task as the page holds them: for its figures and for their table."""

    #: By name, as JSON-ready data.
    columns: Mapping[str, Any]
    #: The name of each array that the page makes from the data.
    names: Mapping[tuple[object, ...], str]


@dataclass(frozen=True, slots=True)
class FigureView:
    """A figure in the form that the page shows."""

    #: Its anchor, unique in the page.
    name: str
    #: The Plotly figure as data, without its template.
    figure: Mapping[str, Any]
    #: The same, with the columns of trials by their names.
    content: Mapping[str, Any]
    #: Whether the page holds it in the packed data of its task.
    packed: bool
    #: Height in pixels.
    height: int
    #: One sentence that states what the figure shows.
    caption: str
    #: The data of the figure, for readers who cannot see it.
    table: Table


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
        context = {
            "paragraphs": tuple(paragraphs),
            "figures": tuple(replace(view, name=f"{name}-{view.name}") for view in figures),
            "tables": tuple((tables or {}).items()),
        }
        return cls(name, title, "parts.html.j2", context)


def foremost(items: Sequence[Item], weight: Callable[[Item], float]) -> tuple[list[Item], str]:
    """The heaviest items that fit into a figure, in their order, and a note on how many there are.

    The note is empty where all items fit.
    """
    if len(items) <= MOST_ROWS:
        return list(items), ""
    ranked = sorted(range(len(items)), key=lambda place: -weight(items[place]))
    kept = sorted(ranked[:MOST_ROWS])
    return [items[place] for place in kept], f" Shown: {MOST_ROWS} of {len(items)} tasks."


def figure_view(
    name: str, figure: Any, caption: str, table: Table, trials: TrialColumns | None = None
) -> FigureView:
    """Convert a Plotly figure for the page. The page's theme supplies template and options.

    trials: of the figure's task, whose packed data holds the figure. Arrays that equal a column
    are left out of it.
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
    return FigureView(
        name=name,
        figure=content,
        content=_refer(content, trials) if trials else content,
        packed=trials is not None,
        height=content["layout"]["height"],
        caption=caption,
        table=table,
    )


def _refer(content: Mapping[str, Any], trials: TrialColumns) -> dict[str, Any]:
    """The figure with the name of a column instead of each array that equals it."""
    data = []
    for trace in content["data"]:
        arrays = {
            key: tuple(value)
            for key, value in trace.items()
            if isinstance(value, list) and list not in map(type, value)
        }
        names = {
            key: {"column": trials.names[array]}
            for key, array in arrays.items()
            if array in trials.names
        }
        data.append({**trace, **names})
    return {**content, "data": data}


def script_json(value: object) -> Markup:
    """JSON that is safe inside a `<script>` element, whatever text it contains."""
    text = _write_json(value)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def pack(value: object) -> str:
    """JSON as base64 of its deflated text, a fifth of its size; `report.js` reads it."""
    return base64.b64encode(zlib.compress(_write_json(value).encode(), 9)).decode()


def _write_json(value: object) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return _write_json(_without_nan(value))


def _without_nan(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value
