"""Columns of listings, each defined once for people and for programs, and listings as texts.

A program reads the value of a column under its name: `median_us` is 46900.0 in JSON and CSV.
People read a text under its heading: `46.90 ms` under `median`.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from results_db.spreadsheet import inert_cell
from search_spaces.records import canonical_json
from tuner.base.inert_text import inert
from tuner.base.log_ratio import LogRatio, describe_same, split_ratio
from tuner.views.units import in_unit, make_heading

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """One column of a listing of records."""

    #: The name for programs. It may end with a unit, as in `median_us`.
    name: str
    #: The value of a record; by default its attribute or item of that name.
    value: Callable[[R], object] | None = None
    #: What people see of a record; by default the value, in the unit that fits.
    show: Callable[[R], object] | None = None
    #: The name for people; empty: that for programs, None: people do not see the column.
    heading: str | None = ""
    #: People see columns of a higher rank behind the others.
    rank: int = 0
    #: The verdict or state of a record whose colour the cell has; by default that of `verdict`.
    tone: Callable[[R], object] | None = None

    @property
    def label(self) -> str:
        """The name for people."""
        return self.heading or self.name

    @property
    def title(self) -> str:
        """The heading that people see."""
        return make_heading(self.label)

    def read(self, record: R) -> Any:
        """The value of a record."""
        if self.value is not None:
            return self.value(record)
        return record.get(self.name) if isinstance(record, Mapping) else getattr(record, self.name)

    def present(self, record: R) -> object:
        """What people see of a record."""
        if self.show is not None:
            return self.show(record)
        return in_unit(self.name, self.read(record))

    def find_tone(self, record: R) -> str:
        """The word whose colour the cell of a record has; empty for none."""
        own = self.read if self.name == "verdict" else None
        tone = self.tone or own
        return "" if tone is None else f"{tone(record) or ''}"


def columns_of(*names: str) -> tuple[Column[Any], ...]:
    """The columns that show attributes or items of these names as they are."""
    return tuple(Column(name) for name in names)


def estimate_columns(
    names: tuple[str, str, str],
    ratio: Callable[[R], LogRatio | None],
    spec: str = "",
    *,
    show: Callable[[R], object] | None = None,
    heading: str | None = "",
    tone: Callable[[R], object] | None = None,
) -> tuple[Column[R], Column[R], Column[R]]:
    """A ratio and the ends of its interval, which programs read as three columns.

    names: of the three. spec: the format for people; with a `%` all are relative changes, the ratio
    less 1. show: what people see instead.
    """

    def part(at: int) -> Callable[[R], float | None]:
        return lambda record: _split(ratio(record), spec)[at]

    show = show or (lambda record: format_estimate(spec, *_split(ratio(record), spec)))
    main, low, high = (Column(name, part(at), heading=None) for at, name in enumerate(names))
    return replace(main, show=show, heading=heading, tone=tone), low, high


def verdict_column(
    verdict: Callable[[R], object], ratio: Callable[[R], LogRatio | None]
) -> Column[R]:
    """A verdict on a ratio; people read `same within 1.9 %` where its times are alike."""

    def show(record: R) -> object:
        found = ratio(record)
        return describe_same(found.alike) if found and found.alike else verdict(record)

    def choose_tone(record: R) -> object:
        return f"{show(record) or ''}".partition(" ")[0]

    return Column("verdict", verdict, show, tone=choose_tone)


def describe_change(ratio: LogRatio | None) -> str | None:
    """`+3.1% [+2.2%, +4.0%]`: by how much a time is longer."""
    return format_estimate("+.1%", *_split(ratio, "%"))


def _split(ratio: LogRatio | None, spec: str) -> tuple[float | None, float | None, float | None]:
    value, low, high = split_ratio(ratio)
    if "%" not in spec or value is None:
        return value, low, high
    return value - 1, None if low is None else low - 1, None if high is None else high - 1


@dataclass(frozen=True, slots=True)
class Listing(Generic[R]):
    """Records with the columns that show them."""

    columns: Sequence[Column[R]]
    records: Sequence[R]

    def for_people(self, *, filled: bool = False) -> list[Column[R]]:
        """The columns that people see. filled: only those with some value."""
        seen = [column for column in self.columns if column.heading is not None]
        seen.sort(key=lambda column: column.rank)
        return [column for column in seen if not filled or self.is_filled(column)] or seen[:1]

    def is_filled(self, column: Column[R]) -> bool:
        """Whether people see a value of the column in some record."""
        return any(column.present(record) not in (None, "") for record in self.records)

    def is_number(self, column: Column[R]) -> bool:
        """Whether people see numbers without a unit in the column, which stand at its right."""
        values = map(column.present, self.records)
        return all(isinstance(value, int | float | None) for value in values)

    def rows(self) -> list[dict[str, object]]:
        """The values by name, as JSON has them."""
        return [{each.name: plain(each.read(row)) for each in self.columns} for row in self.records]

    def readable_rows(self) -> list[dict[str, object]]:
        """What people see, by the names that they see."""
        seen = self.for_people()
        return [{each.label: each.present(row) for each in seen} for row in self.records]

    def to_json(self) -> str:
        """An array of objects."""
        return json.dumps(self.rows(), indent=2)

    def to_csv(self) -> str:
        """A header and one line for each record; mappings are JSON, and no text is a formula."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(inert_cell(column.name) for column in self.columns)
        for row in self.rows():
            writer.writerow(["" if each is None else _csv_cell(each) for each in row.values()])
        return buffer.getvalue()

    def to_text(self) -> str:
        """Aligned columns of what people see, one line for each record."""
        from rich.cells import cell_len

        seen = self.for_people()
        rows = [[cell(column.present(record)) for column in seen] for record in self.records]
        columns = zip(*[[column.title for column in seen], *rows], strict=True)
        aligned = []
        for column, texts in zip(seen, columns, strict=True):
            width, right = max(map(cell_len, texts)), self.is_number(column)
            blanks = (" " * (width - cell_len(text)) for text in texts)
            pairs = zip(blanks, texts, strict=True)
            aligned.append([blank + text if right else text + blank for blank, text in pairs])
        return "\n".join("  ".join(line).rstrip() for line in zip(*aligned, strict=True))

    def to_markdown(self) -> str:
        """A table of what people see."""
        seen = self.for_people()
        heads = [[column.title for column in seen], ["---"] * len(seen)]
        rows = [[_quote(cell(column.present(row))) for column in seen] for row in self.records]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in (*heads, *rows))


def cell(value: object) -> str:
    """A value as people see it, in one line without control characters."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
    if isinstance(value, Mapping):
        parts = [f"{key}={item}" for key, item in value.items()]
        return inert((", " if any(" " in each for each in parts) else " ").join(parts))
    return inert(value)


def format_estimate(
    spec: str, value: float | None, low: float | None = None, high: float | None = None
) -> str | None:
    """A number with its interval where that is known: `1.052 [1.018, 1.088]` by `.3f`."""
    if value is None:
        return None
    ends = "" if low is None or high is None else f" [{low:{spec}}, {high:{spec}}]"
    return f"{value:{spec}}{ends}"


def sort_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as listings show it, its parameters by name."""
    return dict(sorted(config.items()))


def plain(value: object) -> object:
    """A value as JSON can have it."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, Listing):
        return value.rows()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value)


def _csv_cell(value: object) -> object:
    return inert_cell(inert(canonical_json(value) if isinstance(value, dict) else value))


def _quote(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", text)
