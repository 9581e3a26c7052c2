"""A roofline picture as SVG (Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 1100, 620
LEFT, RIGHT, TOP, BOTTOM = 70, 390, 40, 50
#: Lines of one column of the legend, and the width of a column.
LINES, COLUMN = 34, 190
#: Fills of the kernels in order; they repeat with another shape.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#666666")
STYLE = """<style>
text { font: 12px sans-serif; fill: #222 } .title { font-size: 15px; font-weight: bold }
.grid { stroke: #ddd } .roof { stroke: #222; stroke-width: 1.5; fill: none }
.page { fill: #fff }
</style>"""


@dataclass(frozen=True, slots=True)
class Point:
    """One workload."""

    #: The name in the legend.
    group: str
    #: What a pointer shows.
    label: str
    #: Operations per byte of the least traffic.
    intensity: float
    #: TFLOP/s reached.
    rate: float


@dataclass(frozen=True, slots=True)
class Axes:
    """Two logarithmic axes, from one power of ten to another."""

    #: Exponents of ten.
    x: tuple[int, int]
    y: tuple[int, int]

    def at(self, intensity: float, rate: float) -> tuple[float, float]:
        """The place of a point in the picture."""
        across = (math.log10(intensity) - self.x[0]) / (self.x[1] - self.x[0])
        up = (math.log10(rate) - self.y[0]) / (self.y[1] - self.y[0])
        x = LEFT + across * (WIDTH - LEFT - RIGHT)
        return round(x, 1), round(HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 1)


def picture(
    title: str,
    points: Sequence[Point],
    ceilings: tuple[float | None, Mapping[str, float]],
) -> str:
    """The SVG text: points over the ceilings.

    ceilings: bandwidth in TB/s (None: unknown, no roof is drawn) and peak rates in TFLOP/s by name.
    """
    bandwidth, rates = ceilings
    axes = Axes(
        _decades([point.intensity for point in points]),
        _decades([*(point.rate for point in points), *rates.values()]),
    )
    groups = sorted({point.group for point in points})
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        STYLE,
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="title" x="{LEFT}" y="24">{escape(title)}</text>',
        *_grid(axes),
        *(_roofs(axes, bandwidth, rates) if bandwidth else ()),
        *(_mark(axes, point, groups.index(point.group)) for point in points),
        *_legend(groups),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten around all values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _grid(axes: Axes) -> Iterator[str]:
    bottom, top = 10.0 ** axes.y[0], 10.0 ** axes.y[1]
    start, end = 10.0 ** axes.x[0], 10.0 ** axes.x[1]
    for exponent in range(axes.x[0], axes.x[1] + 1):
        x, low = axes.at(10.0**exponent, bottom)
        yield f'<line class="grid" x1="{x}" y1="{low}" x2="{x}" y2="{axes.at(start, top)[1]}"/>'
        yield f'<text x="{x}" y="{low + 16}" text-anchor="middle">{10.0**exponent:g}</text>'
    for exponent in range(axes.y[0], axes.y[1] + 1):
        x, y = axes.at(start, 10.0**exponent)
        yield f'<line class="grid" x1="{x}" y1="{y}" x2="{axes.at(end, bottom)[0]}" y2="{y}"/>'
        yield f'<text x="{x - 6}" y="{y + 4}" text-anchor="end">{10.0**exponent:g}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">operations per byte</text>'
    yield f'<text x="{LEFT - 50}" y="{TOP - 6}">TFLOP/s</text>'


def _roofs(axes: Axes, bandwidth: float, rates: Mapping[str, float]) -> Iterator[str]:
    """A roof per peak rate; all share the slope of the bandwidth."""
    start, end = 10.0 ** axes.x[0], 10.0 ** axes.x[1]
    for name, rate in rates.items():
        ridge = min(max(rate / bandwidth, start), end)
        foot = max(start, 10.0 ** axes.y[0] / bandwidth)
        corners = [(foot, foot * bandwidth), (ridge, min(rate, ridge * bandwidth))]
        if ridge < end:
            corners.append((end, rate))
            x, y = axes.at(end, rate)
            yield f'<text x="{x - 4}" y="{y - 4}" text-anchor="end">{name}: {rate:g}</text>'
        places = " ".join(f"{x},{y}" for x, y in (axes.at(*corner) for corner in corners))
        yield f'<polyline class="roof" points="{places}"/>'


def _mark(axes: Axes, point: Point, group: int) -> str:
    x, y = axes.at(point.intensity, point.rate)
    return f"{_shape(x, y, group)[:-2]}><title>{escape(point.label)}</title></{_tag(group)}>"


def _legend(groups: Sequence[str]) -> Iterator[str]:
    for place, name in enumerate(groups):
        x = WIDTH - RIGHT + 24 + place // LINES * COLUMN
        y = TOP + 16 * (place % LINES)
        yield _shape(x, y, place)
        yield f'<text x="{x + 12}" y="{y + 4}">{escape(name)}</text>'


def _tag(group: int) -> str:
    return ("circle", "rect", "polygon", "polygon")[group // len(COLOURS) % 4]


def _shape(x: float, y: float, group: int) -> str:
    """A circle, square, triangle or diamond; the shape changes when all colours are used."""
    fill = f'fill="{COLOURS[group % len(COLOURS)]}" fill-opacity="0.8"'
    kind = group // len(COLOURS) % 4
    if kind == 0:
        return f'<circle cx="{x}" cy="{y}" r="5" {fill}/>'
    if kind == 1:
        return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" {fill}/>'
    corners = ((0, -5), (-5, 4), (5, 4)) if kind == 2 else ((0, -6), (5, 0), (0, 6), (-5, 0))
    places = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{places}" {fill}/>'
