"""Columns with a unit in their name, as readers see them: a heading without it, units that fit.

A row keeps its numbers for programs: `median_us` is 46900.0 in JSON, and `46.90 ms` under the
heading `median` in a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from reports.quantity import duration, percent, plain, rate, seconds, size

_Show: TypeAlias = Callable[[float], str]


def format_us(time_us: float | None, *ends_us: float | None) -> str | None:
    """A time in microseconds in the unit that fits, with the ends of its interval in that unit.

    `70.00 us`, `16.45 ms [16.40, 16.51]`; None without a time.
    """
    if time_us is None:
        return None
    shown = _show_us(time_us)
    if not ends_us or None in ends_us:
        return shown
    low, high = (plain((end or 0.0) * _PER_US[shown.split()[-1]], 4) for end in ends_us)
    return f"{shown} [{low}, {high}]"


def make_heading(column: str) -> str:
    """A column's name in words, without its unit."""
    if column in _HEADINGS:
        return _HEADINGS[column]
    ending = _find_ending(column)
    return column.removesuffix(ending if ending in _UNITS else "").replace("_", " ")


def in_unit(column: str, value: Any) -> Any:
    """A number of a column that has a unit as a text in the unit that fits; others unchanged."""
    show = _WHOLE.get(column) or _UNITS.get(_find_ending(column))
    if show is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return show(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {in_unit(column, item)}" for name, item in value.items())
    return value


def _find_ending(column: str) -> str:
    """The unit that ends the name; empty without one."""
    return max((each for each in _UNITS if column.endswith(each)), key=len, default="")


def _show_us(time_us: float) -> str:
    return duration(time_us).replace("µ", "u")


def _times(factor: float, show: Callable[..., str], *more: str) -> _Show:
    return lambda value: show(value * factor, *more)


#: Units of time per microsecond.
_PER_US = {"ns": 1e3, "us": 1.0, "ms": 1e-3, "s": 1e-6}
#: The units that end a name.
_UNITS: Mapping[str, _Show] = MappingProxyType(
    {
        "_us": _show_us,
        "_s": seconds,
        "_w": "{:.0f} W".format,
        "_gib": _times(2.0**30, size),
        "_kib": _times(2.0**10, size),
        "_bytes": size,
        "_tb_s": _times(1e12, rate, "B"),
        "_tflop_s": _times(1e12, rate, "FLOP"),
    }
)
#: Names that are a unit altogether or have one to themselves.
_WHOLE: Mapping[str, _Show] = MappingProxyType(
    {
        "minutes": _times(60.0, seconds),
        "gflops": lambda value: rate(value * 1e9, "FLOP").removesuffix("/s"),
        "mib": _times(2.0**20, size),
        "gb_per_s": _times(1e9, rate, "B"),
        "tflop_per_s": _times(1e12, rate, "FLOP"),
        "share": percent,
        "copy_share": percent,
    }
)
_HEADINGS: Mapping[str, str] = MappingProxyType(
    {
        "minutes": "estimate",
        "gflops": "operations",
        "mib": "data",
        "gb_per_s": "bandwidth",
        "tflop_per_s": "operations",
        "table_us": "time in table",
        "best_us": "best trial",
        "error": "relative error",
    }
)
