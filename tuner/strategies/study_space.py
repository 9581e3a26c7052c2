"""The space of a user's own Optuna study, as a bound space without constraints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from search_spaces.params import Choice, Parameter, When
from search_spaces.records import Config, Device, Value, Workload
from search_spaces.space import BoundSpace, SearchSpace

#: Values into which a range is divided that has more of them.
LEVELS = 64


@dataclass(frozen=True, slots=True)
class NumericRange:
    """A range of numbers as a parameter: all its values, or a grid of at most 64 of them.

    A value between two levels of the grid belongs to the range, too.
    """

    #: The name of the parameter.
    name: str
    #: The least value.
    low: float
    #: The greatest value.
    high: float
    #: Between neighbouring values; None for a continuous range.
    step: float | None
    #: Levels and coordinates are equally spaced in the logarithm.
    log: bool
    #: Values are integers.
    integer: bool
    #: The parameters of a study have no conditions.
    when: When | None = None

    @property
    def complete(self) -> bool:
        """The levels are all values of the range."""
        return self.step is not None and (self.high - self.low) / self.step < LEVELS

    @property
    def default(self) -> Value:
        return self.values()[0]

    def values(self) -> tuple[Value, ...]:
        if self.complete and self.step is not None:
            count = round((self.high - self.low) / self.step) + 1
            return tuple(self._value(self.low + at * self.step) for at in range(count))
        low, high = self.encode(self.low), self.encode(self.high)
        codes = [low + (high - low) * at / (LEVELS - 1) for at in range(LEVELS)]
        return tuple(dict.fromkeys(self.decode(code) for code in codes))

    def contains(self, value: Value) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and self.low <= _number(value) <= self.high

    def neighbours(self, value: Value) -> tuple[Value, ...]:
        levels = self.values()
        at = min(range(len(levels)), key=lambda i: abs(self.encode(levels[i]) - self.encode(value)))
        return levels[max(at - 1, 0) : at] + levels[at + 1 : at + 2]

    def encode(self, value: Value) -> float:
        return math.log(_number(value)) if self.log else _number(value)

    def decode(self, code: float) -> Value:
        number = math.exp(code) if self.log else code
        if self.step is not None:
            number = self.low + round((number - self.low) / self.step) * self.step
        return self._value(min(max(number, self.low), self.high))

    def _value(self, number: float) -> Value:
        return round(number) if self.integer else float(number)

    def describe(self) -> dict[str, object]:
        return {"kind": "numeric_range", "name": self.name, "low": self.low, "high": self.high}


class StudySpace:
    """The `TrialParams` of any study. A categorical choice is represented by its index."""

    def __init__(self, distributions: Mapping[str, BaseDistribution]) -> None:
        self.distributions = dict(distributions)
        parameters = [_parameter(name, each) for name, each in self.distributions.items()]
        self.space: BoundSpace = SearchSpace(parameters).bind(
            Workload.of(), Device("cpu", "none", "cpu")
        )
        #: The space has all configs of the study, so a study that tried them all may end.
        self.complete = all(getattr(parameter, "complete", True) for parameter in parameters)

    def config(self, params: Mapping[str, Any]) -> Config | None:
        if not self.distributions.keys() <= params.keys():
            return None
        return {
            name: int(each.to_internal_repr(params[name]))
            if isinstance(each, CategoricalDistribution)
            else params[name]
            for name, each in self.distributions.items()
        }

    def params(self, config: Config) -> dict[str, Any] | None:
        return {
            name: each.choices[int(_number(config[name]))]
            if isinstance(each, CategoricalDistribution)
            else config[name]
            for name, each in self.distributions.items()
        }


def _number(value: Value) -> float:
    assert isinstance(value, int | float)
    return value


def _parameter(name: str, distribution: BaseDistribution) -> Parameter:
    if isinstance(distribution, CategoricalDistribution):
        return Choice(name, tuple(range(len(distribution.choices))))
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    integer = isinstance(distribution, IntDistribution)
    return NumericRange(
        name,
        low=distribution.low,
        high=distribution.high,
        step=distribution.step,
        log=distribution.log,
        integer=integer,
    )
