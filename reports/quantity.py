"""Format numbers and names for readers. All functions accept hostile and missing values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from html import escape

from tuner.base.log_ratio import LogRatio

NOTHING = "—"
_CONTROL = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]"
)


def finite(value: float | None) -> float | None:
    """The value as a float if it is finite and not negative, else None."""
    if value is None or not math.isfinite(value) or value < 0:
        return None
    return float(value)


def clean(text: str) -> str:
    """Text without terminal colours, control characters, direction marks and lone surrogates."""
    if text.isascii() and text.isprintable():
        return text
    return _CONTROL.sub("", text).encode("utf-8", "replace").decode()


def plot_text(text: str, limit: int = 60) -> str:
    """Text for a Plotly label: tags are escaped, and a long text is cut in the middle."""
    text = clean(text)
    if len(text) > limit:
        half = (limit - 1) // 2
        text = f"{text[:half]}…{text[-half:]}"
    return escape(text, quote=False)


def plain(value: float | None, digits: int = 3) -> str:
    """A number to `digits` significant digits, thousands separated, never in exponents."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    places = min(max(digits - 1 - math.floor(math.log10(abs(value))), 0), 6)
    return f"{value:,.{places}f}"


def micros(value: float | None) -> str:
    """A time in microseconds, without the unit."""
    return plain(value, 4)


def duration(value: float | None) -> str:
    """A time in microseconds in the unit that fits: `850.0 ns`, `4.690 µs`, `16.45 ms`"""
    if value is None or not math.isfinite(value):
        return NOTHING
    for unit, scale in (("ns", 1e3), ("µs", 1.0), ("ms", 1e-3)):
        shown = float(f"{value * scale:.4g}")
        if abs(shown) < 1000:
            return f"{plain(shown, 4)} {unit}"
    return f"{plain(value / 1e6, 4)} s"


def rate(value: float | None, unit: str) -> str:
    """A number per second with the prefix that fits: `7.94 GB/s`, `412 TFLOP/s`"""
    if value is None or not math.isfinite(value):
        return NOTHING
    power = next((p for p in range(4) if value / 1e3**p < 999.5), 4)
    return f"{plain(float(f'{value / 1e3**power:.3g}'))} {('', 'k', 'M', 'G', 'T')[power]}{unit}/s"


def times(over: LogRatio | None) -> str:
    """`1.18x`, and `1.18x?` where it is undecided"""
    return NOTHING if over is None else f"{factor(over.ratio)}{over.doubt}"


def factor(value: float | None) -> str:
    """A factor with two decimals, without decimals from 100 on."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:.2f}x" if value < 100 else f"{value:,.0f}x"


def span(over: LogRatio | None) -> str:
    """The interval of a ratio; empty text where unknown."""
    if over is None or over.interval is None:
        return ""
    low, high = over.interval
    digits = 2 if high - low >= 0.02 else 3
    return f"{low:.{digits}f} to {high:.{digits}f}"


def percent(value: float | None, digits: int = 0) -> str:
    return NOTHING if value is None or not math.isfinite(value) else f"{value:.{digits}%}"


def seconds(value: float | None) -> str:
    """`0.42 s`, `12.3 s`, `4 min 10 s`, `2 h 05 min`"""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value < 60:
        return f"{plain(value)} s"
    if value < 3600:
        return f"{int(value // 60)} min {int(value % 60):02d} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60):02d} min"


def size(value: float | None) -> str:
    """Bytes as B, KiB, MiB or GiB."""
    if value is None or not math.isfinite(value):
        return NOTHING
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:,.0f} GiB" if value >= 999.5 else f"{value:.3g} GiB"


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 trial`, `12 trials`"""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def pairs(config: Mapping[str, object] | None) -> str:
    """A config or workload as `BLOCK_M=128 num_warps=8`."""
    return " ".join(f"{name}={value}" for name, value in sorted((config or {}).items()))


def join_words(words: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`"""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"
