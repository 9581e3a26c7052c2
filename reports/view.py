"""What sections hand to the templates: figures with their caption and data, and tables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from markupsafe import Markup

from reports.figures.theme import CONFIG

Cell = str | int | float | None
Item = TypeVar("Item")

#: rows of a figure with one row per task; its data table has them all.
MOST_ROWS = 24


@dataclass(frozen=True, slots=True)
class Table:
    """Headings and rows of a figure's data; `note` says what was left out."""

    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    @classmethod
    def of(cls, headings: Sequence[str], rows: Iterable[Sequence[Cell]], limit: int = 200) -> Table:
        """The first `limit` rows, with a note when there are more."""
        every = tuple(tuple(row) for row in rows)
        note = f"The first {limit} of {len(every)} rows." if len(every) > limit else ""
        return cls(tuple(headings), every[:limit], note)


@dataclass(frozen=True, slots=True)
class FigureView:
    """A figure ready to be shown: its anchor, JSON, pixels of height, takeaway and data."""

    name: str
    json: Markup
    height: int
    caption: str
    table: Table


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the page. template: file name; context: what it is given."""

    name: str
    title: str
    template: str
    context: dict[str, Any] = field(default_factory=dict)


def foremost(items: Sequence[Item], weight: Callable[[Item], float]) -> tuple[list[Item], str]:
    """The items of most weight that a figure has room for, in order; a remark if some are not."""
    if len(items) <= MOST_ROWS:
        return list(items), ""
    ranked = sorted(range(len(items)), key=lambda place: -weight(items[place]))
    kept = sorted(ranked[:MOST_ROWS])
    return [items[place] for place in kept], f" Shown: {MOST_ROWS} of {len(items)} tasks."


def figure_view(name: str, figure: Any, caption: str, table: Table) -> FigureView:
    """Freeze a `plotly` figure; its template is left to the page's theme."""
    content = json.loads(figure.to_json(engine="json"))
    content["layout"].pop("template", None)
    return FigureView(
        name=name,
        json=script_json({**content, "config": CONFIG}),
        height=content["layout"]["height"],
        caption=caption,
        table=table,
    )


def script_json(value: object) -> Markup:
    """JSON that is safe inside a `<script>` element whatever texts it holds."""
    text = json.dumps(_without_nan(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _without_nan(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value
