"""A result as an HTML table for notebooks. It takes the page's colours, so it suits dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING

from search_spaces.inert_text import inert

if TYPE_CHECKING:
    from tuner.api.result import Interval, TuneResult

_TABLE = "border-collapse:collapse;color:inherit;background:transparent;font-size:0.95em"
_CELL = (
    "text-align:left;vertical-align:top;padding:0.2em 0.8em 0.2em 0;color:inherit;"
    "background:transparent;border:none;border-top:1px solid rgba(128,128,128,0.4)"
)
#: Most tied configs that the table lists.
_TIES = 4


def table(result: TuneResult) -> str:
    """The result as one `<table>`; all text in it is escaped."""
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL}">{_text(name)}</th>'
        f'<td style="{_CELL}">{_text(value)}</td></tr>'
        for name, value in _rows(result)
        if value
    )
    caption = f"{result.kernel} {result.workload.key}"
    return (
        f'<table style="{_TABLE}"><caption style="text-align:left;font-weight:bold;color:inherit">'
        f"{_text(caption)}</caption><tbody>{rows}</tbody></table>"
    )


def _rows(result: TuneResult) -> Iterator[tuple[str, str]]:
    yield "verdict", f"{_ICONS.get(result.verdict, '?')} {result.verdict}"
    yield "config that ships", _pairs(result.ships)
    yield "time", _time(result.median_us, result.interval_us)
    yield "over the default config", _ratio(result.speedup, result.speedup_interval)
    for each in result.comparisons.values():
        against = _ratio(each.ratio, each.interval)
        time = f" ({_time(each.median_us, None)})" if each.median_us is not None else ""
        yield f"over {each.name}", f"{against}{time}" if against else each.message or each.status
    yield "reason", result.reason
    if len(result.tie_set) > 1:
        shown = "; ".join(_pairs(config) for config in result.tie_set[:_TIES])
        more = len(result.tie_set) - _TIES
        yield "tie set", f"{shown}; and {more} more" if more > 0 else shown
    yield (
        "device",
        ", ".join(
            f"{value}" if name == "name" else f"{name} {value}"
            for name, value in result.device_facts.items()
        ),
    )
    yield "seconds", ", ".join(f"{name} {value:.1f}" for name, value in result.stage_s.items())
    yield "note", result.note


#: A sign for each verdict, so that it is readable without colour.
_ICONS = {"faster": "▲", "slower": "▼", "same": "=", "undecided": "?"}


def _pairs(config: Mapping[str, object] | None) -> str:
    return " ".join(f"{name}={value}" for name, value in (config or {}).items())


def _time(value: float | None, interval: Interval | None) -> str:
    if value is None:
        return ""
    text = f"{value:,.4g} µs" if value < 1e4 else f"{value:,.0f} µs"
    if interval is None or not all(map(math.isfinite, interval)):
        return text
    return f"{text}, 95 % interval {interval[0]:,.5g} to {interval[1]:,.5g}"


def _ratio(value: float | None, interval: Interval | None) -> str:
    if value is None:
        return ""
    if interval is None or not all(map(math.isfinite, interval)):
        return f"{value:.2f}x"
    return f"{value:.2f}x, 95 % interval {interval[0]:.3f} to {interval[1]:.3f}"


def _text(value: object) -> str:
    return escape(inert(value))
