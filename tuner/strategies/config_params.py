"""Configs as parameters of an Optuna trial, and back.

A power of two is an integer exponent, an integer is itself, and any other value is the index of a
categorical choice. Conditional parameters are always suggested, and dropped where inactive, so that
every sampler sees one static space.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from search_spaces.params import Integer, Parameter, PowerOfTwo, same_value
from search_spaces.records import Config, Value
from search_spaces.space import BoundSpace

#: The user attribute of a failed trial that says nothing about its config.
WITHDRAWN = "withdrawn"


class ConfigParams:
    """A bound space in the trials of a study; inactive parameters take their default."""

    def __init__(self, space: BoundSpace) -> None:
        self.space = space
        #: One distribution per parameter of a trial.
        self.distributions: dict[str, BaseDistribution] = {
            p.name: _distribution(p) for p in space.parameters
        }

    def config(self, params: Mapping[str, Any]) -> Config | None:
        """The config of a trial, which may be infeasible; None if parameters are missing."""
        if not self.distributions.keys() <= params.keys():
            return None
        return self.space.complete(
            {p.name: _value(p, params[p.name]) for p in self.space.parameters}
        )

    def params(self, config: Config) -> dict[str, Any] | None:
        """The parameters of a trial for a config; None where a value is out of range."""
        found = {}
        for parameter in self.space.parameters:
            value = config.get(parameter.name, parameter.default)
            if not parameter.contains(value):
                return None
            found[parameter.name] = _raw(parameter, value)
        return found


class ConfigSampler(BaseSampler):
    """A sampler of whole configs. It draws all other parameters of a trial at random."""

    def __init__(self, space: BoundSpace, seed: int) -> None:
        self._params = ConfigParams(space)
        self._independent = RandomSampler(seed)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self._params.distributions

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        return self._independent.sample_independent(study, trial, param_name, param_distribution)


def _distribution(parameter: Parameter) -> BaseDistribution:
    if isinstance(parameter, PowerOfTwo):
        values = parameter.values()
        return IntDistribution(int(parameter.encode(values[0])), int(parameter.encode(values[-1])))
    if isinstance(parameter, Integer):
        # The last value, because Optuna warns of a `high` that the step does not reach.
        high = range(parameter.low, parameter.high + 1, parameter.step)[-1]
        return IntDistribution(parameter.low, high, step=parameter.step)
    return CategoricalDistribution(tuple(range(len(parameter.values()))))


def _value(parameter: Parameter, raw: int) -> Value:
    if isinstance(parameter, PowerOfTwo):
        return parameter.decode(raw)
    return raw if isinstance(parameter, Integer) else parameter.values()[raw]


def _raw(parameter: Parameter, value: Value) -> int:
    if isinstance(parameter, PowerOfTwo | Integer):
        return int(parameter.encode(value))
    # Not `index(value)`: among choices, True is not 1.
    return next(i for i, v in enumerate(parameter.values()) if same_value(v, value))
