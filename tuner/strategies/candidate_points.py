"""The configs of a bound space as points of a unit cube: the input of a model.

Notation: x (m, d) holds one row per point, in [0, 1]. Its columns are those of the parameters, then
the features of the space, scaled from their least to their greatest value so far.

    power of two     one column, by the exponent
    integer          one column, by the value
    two values       one column, 0 or 1
    3 to 16 choices  one column per value, 1 for the value that the config has
    more choices     one column, by the place in the list
    inactive         0.5 in every column; the parameter that switches it off tells the two apart
"""

from __future__ import annotations

import random

import numpy as np

from search_spaces.params import Choice, Parameter, Restricted
from search_spaces.records import Config, Value, config_key
from search_spaces.space import BoundSpace
from tuner.strategies.gaussian_process import Floats

#: Configs, before constraints, up to which a space is listed; a larger one is sampled.
_LISTED = 60_000
#: Most points of a model: all configs of a smaller space, a sample of a larger one.
MAX_POINTS = 3_000
#: Configs drawn at a time.
_CHUNK = 100
#: Most values without an order that have a coordinate, and so a length scale, each.
_MOST_APART = 16


class CandidatePoints:
    """Numbered configs and their coordinates.

    space: the space of the configs. seed: of the sample, where the space is too large to list.
    limit: configs above which a space is sampled. A sampled space grows by `add`.
    """

    def __init__(self, space: BoundSpace, seed: int = 0, limit: int = MAX_POINTS) -> None:
        self.space = space
        #: The config of every point, by number.
        self.configs: list[Config] = []
        self._number: dict[str, int] = {}
        #: By parameter: the coordinates of its values.
        self._codes = {p.name: _code(p) for p in space.parameters if len(p.values()) > 1}
        self._rows: list[list[float]] = []
        self._features: list[tuple[float, ...]] = []
        self._x: Floats | None = None
        self._neighbours: dict[int, list[int]] = {}
        #: `complete`: the points are all feasible configs of the space.
        found, self.complete = _draw(space, random.Random(seed), limit)
        for config in found:
            self._append(config)

    def __len__(self) -> int:
        return len(self.configs)

    @property
    def x(self) -> Floats:
        """Coordinates of all points: (m, d)."""
        if self._x is None:
            width = len(self._rows[0]) if self._rows else 0
            x = np.array(self._rows, dtype=float).reshape(len(self._rows), width)
            self._x = np.hstack([x, self._scaled_features()])
        return self._x

    def _scaled_features(self) -> Floats:
        found = np.array(self._features, dtype=float).reshape(
            len(self._rows), -1 if self._rows else 0
        )
        if not found.size:
            return found
        low, span = found.min(axis=0), np.ptp(found, axis=0)
        return np.asarray((found - low) / np.where(span > 0, span, 1.0))

    def add(self, config: Config) -> int | None:
        """The number of a config, new where it was not among the points; None if infeasible."""
        number = self._number.get(config_key(config))
        if number is None and self.space.feasible(config):
            number = self._append(config)
        return number

    def find(self, config: Config) -> int | None:
        """The number of a config, or None if it is not among the points."""
        return self._number.get(config_key(config))

    def neighbours(self, number: int) -> list[int]:
        """The points one parameter step away; those of a sampled space are added to it."""
        if number not in self._neighbours:
            near = (self.add(config) for config in self.space.neighbours(self.configs[number]))
            self._neighbours[number] = [n for n in near if n is not None]
        return self._neighbours[number]

    def _append(self, config: Config) -> int:
        number = self._number.setdefault(config_key(config), len(self.configs))
        if number == len(self.configs):
            self.configs.append(dict(config))
            self._rows.append([
                each
                for name, codes in self._codes.items()
                for each in codes[_add_type(config[name]) if name in config else None]
            ])  # fmt: skip
            self._features.append(self.space.features(config))
            self._x = None
        return number


def _code(parameter: Parameter) -> dict[tuple[type, Value] | None, list[float]]:
    """The coordinates of each value of a parameter, and of none. Values without an order have one
    each; of more than 16, the order in the list counts."""
    values = parameter.values()
    base = parameter.base if isinstance(parameter, Restricted) else parameter
    if not isinstance(base, Choice) or len(values) == 2:
        codes = [parameter.encode(value) for value in values]
    elif len(values) <= _MOST_APART:
        apart = np.eye(len(values)).tolist()
        return {None: [0.5] * len(values)} | dict(zip(map(_add_type, values), apart, strict=True))
    else:
        codes = list(range(len(values)))
    low, high = codes[0], codes[-1]
    found = {
        _add_type(each): [(code - low) / (high - low)]
        for each, code in zip(values, codes, strict=True)
    }
    return {None: [0.5]} | found


def _add_type(value: Value) -> tuple[type, Value]:
    """As `same_value` tells values apart."""
    return type(value), value


def _draw(space: BoundSpace, rng: random.Random, limit: int) -> tuple[list[Config], bool]:
    """Up to `limit` distinct configs, and whether they are all there are."""
    if space.cardinality() <= _LISTED:
        everything = list(space.enumerate())
        if len(everything) <= limit:
            return everything, True
        return rng.sample(everything, limit), False
    found: dict[str, Config] = {}
    while len(found) < limit:
        before = len(found)
        found.update({config_key(c): c for c in space.sample(rng, _CHUNK)})
        # Feasible configs are rare: every further chunk would cost as much as this one did.
        if len(found) - before < _CHUNK // 2:
            break
    return list(found.values())[:limit], False
