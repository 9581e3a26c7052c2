"""The built-in strategies: one function per name, which makes its Optuna sampler."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from search_spaces.records import Config
from search_spaces.space import BoundSpace
from tuner.strategies.blas_threads import one_torch_thread
from tuner.strategies.config_params import ConfigParams, ConfigSampler


# -- an Optuna sampler that suggests every feasible config once: strategy `exhaustive` -------------
class ListedSampler(ConfigSampler):
    """All configs of a space, in the space's own order.

    shuffle: an order by the seed instead. It spreads early results over the space, but lists the
    whole space first. Optuna's `BruteForceSampler` knows no constraints before a trial has run and
    rebuilds its tree of trials for every parameter of a suggestion.
    """

    replays = True

    def __init__(self, space: BoundSpace, seed: int = 0, *, shuffle: bool = False) -> None:
        super().__init__(space, seed)
        self.exhausted = False
        self._configs = _shuffle(space, seed) if shuffle else iter(space.enumerate())

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        config = next(self._configs, None)
        self.exhausted = config is None
        return {} if config is None else self._params.params(config) or {}


def _shuffle(space: BoundSpace, seed: int) -> Iterator[Config]:
    listed = list(space.enumerate())
    Random(seed).shuffle(listed)
    yield from listed


# -- the built-in strategies -----------------------------------------------------------------------
def bayes(space: BoundSpace, seed: int, *, initial: int = 15) -> BaseSampler:
    """A Gaussian process over the listed space. initial: configs spread over the space first."""
    from tuner.strategies.discrete_gp_sampler import LOG_TIME_SCALE, DiscreteGPSampler

    if initial < 1:
        raise TypeError(f"initial={initial} must be positive")
    return DiscreteGPSampler(space, seed=seed, n_startup_trials=initial, scale=LOG_TIME_SCALE)


def exhaustive(space: BoundSpace, seed: int, *, shuffle: bool = False) -> BaseSampler:
    """Every feasible config once."""
    return ListedSampler(space, seed, shuffle=shuffle)


def tpe(space: BoundSpace, seed: int, **options: Any) -> BaseSampler:
    """Optuna's tree-structured Parzen estimator."""
    return optuna.samplers.TPESampler(seed=seed, **options)


def gp(space: BoundSpace, seed: int, **options: Any) -> BaseSampler:
    """Optuna's Gaussian process, which computes with torch."""
    return _OneThreadGPSampler(seed=seed, **options)


class _OneThreadGPSampler(optuna.samplers.GPSampler):
    """Optuna's sampler with one thread around each suggestion."""

    def sample_relative(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        with one_torch_thread():
            return super().sample_relative(*args, **kwargs)


def cmaes(space: BoundSpace, seed: int, **options: Any) -> BaseSampler:
    """The covariance matrix adaptation evolution strategy."""
    return optuna.samplers.CmaEsSampler(
        seed=seed, **{"warn_independent_sampling": False, **options}
    )


def random(space: BoundSpace, seed: int, **options: Any) -> BaseSampler:
    """Uniform draws."""
    return optuna.samplers.RandomSampler(seed=seed, **options)


def grid(space: BoundSpace, seed: int, **options: Any) -> BaseSampler:
    """Every point of the grid of parameter values, in an order by the seed."""
    values: dict[str, list[Any]] = {}
    for name, distribution in ConfigParams(space).distributions.items():
        if isinstance(distribution, CategoricalDistribution):
            values[name] = list(distribution.choices)
        elif isinstance(distribution, IntDistribution):
            values[name] = list(range(distribution.low, distribution.high + 1, distribution.step))
    return optuna.samplers.GridSampler(values, seed=seed, **options)
