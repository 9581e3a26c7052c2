"""An Optuna sampler that suggests every feasible config once: strategy `exhaustive`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from search_spaces.records import Config
from search_spaces.space import BoundSpace
from tuner.strategies.config_params import ConfigParams


class ListedSampler(BaseSampler):
    """All configs of a space, in the space's own order.

    shuffle: an order by the seed instead. It spreads early results over the space, but lists the
    whole space first. Optuna's `BruteForceSampler` knows no constraints before a trial has run and
    rebuilds its tree of trials for every parameter of a suggestion.
    """

    replays = True

    def __init__(self, space: BoundSpace, seed: int = 0, *, shuffle: bool = False) -> None:
        self.exhausted = False
        self._params = ConfigParams(space)
        self._configs = _shuffle(space, seed) if shuffle else iter(space.enumerate())
        self._independent = RandomSampler(seed)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self._params.distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        config = next(self._configs, None)
        self.exhausted = config is None
        return {} if config is None else self._params.params(config) or {}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        return self._independent.sample_independent(study, trial, param_name, param_distribution)


def _shuffle(space: BoundSpace, seed: int) -> Iterator[Config]:
    listed = list(space.enumerate())
    random.Random(seed).shuffle(listed)
    yield from listed
