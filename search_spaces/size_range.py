"""Ranges of a size that a table is to serve, and the sizes at which the farm looks.

A range is one or more pieces: `1..8192`, `64..8192 step 64`, or single sizes with weights, such as
a histogram of what a server has seen. The farm searches both ends and the middle, and then bisects:
`list_places` gives every size at which it may look, each with the two sizes between which it lies.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from search_spaces.dims import MAX_SIZE
from search_spaces.records import Value, Workload

_PIECE = re.compile(r"\s*(\d+)\s*(?:\.\.\s*(\d+)\s*(?:step\s+(\d+)\s*)?)?$")
#: Sizes that are nearer to each other than this, in octaves, have no size between them.
_NARROW = 0.25
#: Sizes of at most this ratio have a size between them that no block divides, if it is not small.
_NEAR, _SMALL = 3, 32
#: The most sizes that a histogram may have.
MAX_SIZES = 100_000


@dataclass(frozen=True, slots=True)
class _Piece:
    """The sizes `low`, `low + step`, ... up to `high`; `weight` is the share of their launches."""

    low: int
    high: int
    step: int = 1
    weight: float | None = None

    def __str__(self) -> str:
        text = f"{self.low}" if self.low == self.high else f"{self.low}..{self.high}"
        return text if self.step == 1 else f"{text} step {self.step}"

    def __contains__(self, size: int) -> bool:
        return self.low <= size <= self.high and not (size - self.low) % self.step

    def measure(self, most: int) -> float:
        """The octaves of its sizes up to `most`; a size counts as far as the next one."""
        if most < self.low:
            return 0.0
        last = min(self.high, most - (most - self.low) % self.step)
        return math.log2((last + self.step) / self.low)

    @property
    def share(self) -> float:
        """Its weight; by default its octaves, so that all sizes count alike on a log scale."""
        return self.measure(self.high) if self.weight is None else self.weight

    def snap(self, size: float) -> int:
        """The nearest of its sizes."""
        steps = round((size - self.low) / self.step)
        return self.low + self.step * max(0, min(steps, (self.high - self.low) // self.step))

    def draw(self, source: random.Random) -> int:
        return self.snap(self.low * (self.high / self.low) ** source.random())


class Range:
    """The sizes of one dim that a table is to serve: `Range(1, 8192)`, `Range(64, 8192, step=64)`.

    `Range.parse("1..64, 64..8192 step 64")` joins pieces; `Range.of_sizes({16: 0.9, 512: 0.1})`
    weighs single sizes. Raises ValueError for what is no range of sizes from 1 to 2^31 - 1.
    """

    __slots__ = ("_pieces",)

    def __init__(self, low: int, high: int, *, step: int = 1) -> None:
        self._pieces: tuple[_Piece, ...] = (_check(_Piece(low, high, step)),)

    @classmethod
    def of_pieces(cls, pieces: Sequence[_Piece]) -> Range:
        found = object.__new__(cls)
        if not pieces:
            raise ValueError("a range without a size")
        ordered = sorted(map(_check, pieces), key=lambda each: (each.low, each.high))
        found._pieces = tuple(ordered)
        return found

    @classmethod
    def of_sizes(cls, weights: Mapping[int, float]) -> Range:
        """Single sizes, each with its weight, such as its number of launches."""
        if len(weights) > MAX_SIZES:
            raise ValueError(f"{len(weights)} sizes; a histogram has at most {MAX_SIZES}")
        for size, weight in weights.items():
            if isinstance(weight, bool) or not isinstance(weight, int | float):
                raise ValueError(f"the weight of {size} is {weight!r}, not a number")
            if not 0 < weight < math.inf:
                raise ValueError(f"the weight of {size} is {weight!r}, not above 0")
        return cls.of_pieces([_Piece(size, size, 1, weight) for size, weight in weights.items()])

    @classmethod
    def parse(cls, text: str) -> Range:
        """A range from `1..8192`, `64..8192 step 64`, or several of these and sizes with commas."""
        return cls.of_pieces([_parse(part) for part in text.split(",")])

    @classmethod
    def from_json(cls, data: Iterable[Sequence[Any]]) -> Range:
        """The range that `to_json` wrote."""
        try:
            return cls.of_pieces([_Piece(*each) for each in data])
        except TypeError:
            raise ValueError(f"{data!r} is no list of [low, high, step]") from None

    def to_json(self) -> list[list[Any]]:
        """The pieces as `[low, high, step]` or `[low, high, step, weight]`."""
        return [
            [p.low, p.high, p.step, *([] if p.weight is None else [p.weight])] for p in self._pieces
        ]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> Any:
        """So that pydantic reads what `to_json` wrote."""
        from pydantic_core import core_schema

        def read(value: Any) -> Range:
            return value if isinstance(value, Range) else cls.from_json(value)

        return core_schema.no_info_plain_validator_function(read)

    @property
    def low(self) -> int:
        return self._pieces[0].low

    @property
    def high(self) -> int:
        return max(piece.high for piece in self._pieces)

    def __contains__(self, size: object) -> bool:
        return type(size) is int and any(size in piece for piece in self._pieces)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Range) and self._pieces == other._pieces

    def __hash__(self) -> int:
        return hash(self._pieces)

    def __str__(self) -> str:
        if len(self._pieces) > 4:
            return f"{len(self._pieces)} sizes of {self.low}..{self.high}"
        return ", ".join(map(str, self._pieces))

    def __repr__(self) -> str:
        return f"Range({self})"

    def snap(self, size: float) -> int:
        """The member that is nearest to a size, on a log scale."""
        found = (piece.snap(size) for piece in self._pieces)
        return min(found, key=lambda each: (abs(math.log2(each / size)), each))

    def weigh(self, low: int, high: int) -> float:
        """The share of the launches with sizes from `low` to `high`, both included."""
        shares = [piece.share for piece in self._pieces]
        part = sum(
            share * (piece.measure(high) - piece.measure(low - 1)) / piece.measure(piece.high)
            for piece, share in zip(self._pieces, shares, strict=True)
        )
        return part / sum(shares)

    def find_heaviest(self, low: float, high: float) -> int | None:
        """The single size with the largest weight strictly between two; None without weights."""
        inside = [p for p in self._pieces if p.weight is not None and low < p.low < high]
        return max(inside, key=lambda p: (p.weight, -p.low)).low if inside else None

    def draw(self, count: int, seed: int) -> list[int]:
        """Random members by their weights, which may repeat; by default evenly on a log scale."""
        source = random.Random(seed)
        shares = [piece.share for piece in self._pieces]
        return [piece.draw(source) for piece in source.choices(self._pieces, shares, k=count)]


@dataclass(frozen=True, slots=True)
class RangePlace:
    """The place of a task in a range: its workload is one of the sizes at which the farm looks."""

    #: The ranges by dim. The farm bisects the last one; of the others it takes fixed sizes.
    ranges: tuple[tuple[str, Range], ...]
    #: The loss that is accepted, as a share of the time.
    gain: float
    #: The most sizes that are searched, those held out apart.
    searches: int
    #: The searched sizes between which this one lies; None for the ends and the middle.
    between: tuple[int, int] | None = None
    #: Whether the size is never used for choosing, and shows the loss of what was chosen.
    held_out: bool = False

    @property
    def dim(self) -> str:
        return self.ranges[-1][0]

    @property
    def sizes(self) -> Range:
        return self.ranges[-1][1]

    def rest_of(self, workload: Workload) -> frozenset[tuple[str, Value]]:
        """The other dims of a workload; tasks that share them search one range together."""
        return frozenset((name, workload[name]) for name in workload if name != self.dim)

    def describe_part(self, workload: Workload, low: int, high: int) -> str:
        """A workload with the sizes that its config serves: `M=28 (17..32) N=4096`."""
        size = f"{self.dim}={workload.size(self.dim)}"
        words = workload.key.split(" ")
        return " ".join(f"{size} ({low}..{high})" if word == size else word for word in words)

    def to_json(self) -> dict[str, Any]:
        return {
            "ranges": {name: each.to_json() for name, each in self.ranges},
            "gain": self.gain,
            "searches": self.searches,
            "between": self.between,
            "held_out": self.held_out,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RangePlace:
        between = data["between"]
        return cls(
            tuple((name, Range.from_json(each)) for name, each in data["ranges"].items()),
            data["gain"],
            data["searches"],
            None if between is None else (between[0], between[1]),
            data["held_out"],
        )


def list_places(sizes: Range) -> dict[int, tuple[int, int] | None]:
    """Every size at which the farm may look, each with the two between which it lies.

    The ends and the middle come first and lie between none.
    """
    found: dict[int, tuple[int, int] | None] = {sizes.low: None, sizes.high: None}
    middle = find_middle(sizes, sizes.low, sizes.high)
    if middle is None:
        return found
    found[middle] = None
    waiting = [(sizes.low, middle), (middle, sizes.high)]
    while waiting:
        low, high = waiting.pop(0)
        between = find_middle(sizes, low, high) if math.log2(high / low) > _NARROW else None
        if between is not None:
            found[between] = low, high
            waiting += [(low, between), (between, high)]
    return found


def find_middle(sizes: Range, low: int, high: int) -> int | None:
    """The member in the middle of two on a log scale.

    It has at most four significant bits where the range has such a size strictly between, as sizes
    that people choose; between near ones it is one less, since most sizes of a range are odd to
    every block, and a launch that has to mask is often won by another config. Of sizes with weights
    it is the heaviest one in the middle half.
    """
    exact = math.sqrt(low * high)
    quarter = (high / low) ** 0.25
    if heaviest := sizes.find_heaviest(low * quarter, high / quarter):
        return heaviest
    rounded = _round(sizes, exact)
    odd = [sizes.snap(rounded - 1)] if high <= _NEAR * low and rounded > _SMALL else []
    near = (*odd, rounded, sizes.snap(exact), *_step_inside(sizes, low, high))
    return next((size for size in near if low < size < high), None)


def list_fixed_sizes(sizes: Range) -> list[int]:
    """Members a factor of four apart, both ends included: for a dim that is not bisected."""
    steps = max(1, round(math.log2(sizes.high / sizes.low) / 2))
    ratio = sizes.high / sizes.low
    inner = {_round(sizes, sizes.low * ratio ** (step / steps)) for step in range(1, steps)}
    return sorted({sizes.low, *inner, sizes.high})


def _round(sizes: Range, exact: float) -> int:
    unit = 2 ** max(0, int(math.log2(exact)) - 3)
    return sizes.snap(round(exact / unit) * unit)


def _step_inside(sizes: Range, low: int, high: int) -> Iterator[int]:
    for piece in sizes._pieces:
        for size in (piece.low, piece.high, piece.snap(low + piece.step), piece.snap(high - 1)):
            if low < size < high:
                yield size


def _parse(text: str) -> _Piece:
    match = _PIECE.match(text)
    if match is None:
        raise ValueError(f"{text.strip()!r} is no range; write 1..8192 or 64..8192 step 64")
    low, high, step = match.groups()
    return _Piece(int(low), int(high or low), int(step or 1))


def _check(piece: _Piece) -> _Piece:
    for name in ("low", "high", "step"):
        value = getattr(piece, name)
        if type(value) is not int or not 1 <= value <= MAX_SIZE:
            raise ValueError(f"{value!r} is no size; sizes are whole numbers from 1 to {MAX_SIZE}")
    if piece.low > piece.high:
        raise ValueError(f"{piece} is empty: {piece.low} is above {piece.high}")
    return replace(piece, high=piece.high - (piece.high - piece.low) % piece.step)
