"""The result of an acceptance test, and the table of all results."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field

_WORDS = {True: "pass", False: "FAIL", None: "-"}
_WIDTHS = {"test": 24, "what": 48, "bound": 24, "measured": 34, "verdict": 7, "note": 58}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    bound: str
    measured: str
    #: Whether the bound holds. None where nothing was judged; `note` then gives the reason.
    ok: bool | None
    note: str = ""


@dataclass(slots=True)
class Result:
    """The rows of one test and the raw summaries behind them, in JSON types throughout."""

    rows: list[Row] = field(default_factory=list)
    data: dict = field(default_factory=dict)

    def add(self, what: str, bound: str, measured: str, ok: bool | None, note: str = "") -> None:
        self.rows.append(Row(what, bound, measured, None if ok is None else bool(ok), note))

    def skip(self, what: str, why: str) -> None:
        self.add(what, "", "not measured", None, why)


def table(rows: Iterable[tuple[str, Row]]) -> str:
    """The rows with the ids and titles of their tests; cells are wrapped and never truncated."""
    lines = [_line(dict(zip(_WIDTHS, _WIDTHS, strict=True))), "  ".join("-" * w for w in _widths())]
    for name, row in rows:
        cells = {
            "test": name,
            "what": row.what,
            "bound": row.bound,
            "measured": row.measured,
            "verdict": _WORDS[row.ok],
            "note": row.note,
        }
        lines.append(_line(cells))
    return "\n".join(lines)


def percent(share: float, digits: int = 1) -> str:
    return "none" if math.isnan(share) else f"{100 * share:.{digits}f} %"


def _widths() -> list[int]:
    return list(_WIDTHS.values())


def _line(cells: dict[str, str]) -> str:
    columns = [textwrap.wrap(cells[n], width) or [""] for n, width in _WIDTHS.items()]
    height = max(map(len, columns))
    rows = []
    for at in range(height):
        parts = [
            (column[at] if at < len(column) else "").ljust(width)
            for column, width in zip(columns, _widths(), strict=True)
        ]
        rows.append("  ".join(parts).rstrip())
    return "\n".join(rows)
