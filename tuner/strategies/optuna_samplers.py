"""Optuna as the suggester, in memory: TPE, GP, CMA-ES, random and grid by name.

Powers of two are integer exponents and conditional parameters are always suggested, then dropped
where inactive, so that every sampler sees one static space. Configs that are infeasible or failed
are told as violated constraints with a penalty, because samplers ignore failed trials.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from search_spaces.params import Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Status, Value, config_key
from search_spaces.space import BoundSpace

if TYPE_CHECKING:
    import optuna

_TRIES = 200
_PENALTY = math.log(2.0)
#: Samplers that use constraints; the others see the penalty alone.
_CONSTRAINED = ("tpe", "gp")


class OptunaStrategy:
    """Suggests by an Optuna sampler; `options` go to the sampler's constructor.

    random and grid repeat from their seed and never suggest a config twice by themselves.
    """

    def __init__(
        self, space: BoundSpace, seed: int, *, name: str, options: Mapping[str, Any] | None = None
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.name = name
        self.replays = name in ("random", "grid")
        self._space = space
        self._rng = random.Random(seed)
        self._distributions = {p.name: _distribution(p) for p in space.parameters}
        self._study = optuna.create_study(
            sampler=_sampler(name, seed, self._distributions, dict(options or {}))
        )
        self._open: dict[str, optuna.trial.Trial] = {}
        self._asked: set[str] = set()
        self._worst: float | None = None
        self._left: list[Config] | None = None

    def ask(self, n: int) -> list[Config]:
        configs: list[Config] = []
        while len(configs) < n:
            config = self._suggest()
            if config is None:
                break
            configs.append(config)
        return configs

    def tell(self, config: Config, score: float | None, status: Status) -> None:
        violated = score is None or status is not Status.CORRECT
        if score is not None and not violated:
            self._worst = score if self._worst is None else max(self._worst, score)
        value = self._penalty() if score is None or violated else score
        trial = self._open.pop(config_key(config), None)
        if trial is not None:
            self._constrain(trial, violated=violated)
            self._close(trial, value)
        elif not self.replays:
            self._add(config, value, violated=violated)

    def _close(self, trial: optuna.trial.Trial, value: float | None) -> None:
        """Tell a value, or None for a suggestion that was not used."""
        from optuna.trial import TrialState

        if self.name == "random":  # which learns nothing, and to be told takes as long as to ask
            return
        try:
            if value is None:
                self._study.tell(trial, state=TrialState.FAIL)
            else:
                self._study.tell(trial, value)
        except RuntimeError as error:
            # A grid that is used up stops its study, which outside `optimize` is an error.
            if self.name != "grid" or "Study.stop" not in f"{error}":
                raise
            self._list_unseen()

    def _constrain(self, trial: optuna.trial.Trial, *, violated: bool) -> None:
        if self.name in _CONSTRAINED:
            trial.set_constraint("runs", 1.0 if violated else -1.0)

    def _penalty(self) -> float:
        return (self._worst or 0.0) + _PENALTY

    def _suggest(self) -> Config | None:
        """The next feasible config; after many misses, any feasible one not suggested yet."""
        for _ in range(_TRIES):
            if self._left is not None:
                break
            trial = self._study.ask(self._distributions)
            config = self._space.complete(_decode(self._space, trial.params))
            key = config_key(config)
            if key in self._open or (self.replays and key in self._asked):
                self._close(trial, None)
            elif self._space.feasible(config):
                self._open[key] = trial
                self._asked.add(key)
                return config
            else:
                self._constrain(trial, violated=True)
                self._close(trial, self._penalty())
        return self._sample_unseen()

    def _sample_unseen(self) -> Config | None:
        if self._left is None:
            self._list_unseen()
        while self._left:
            config = self._left.pop()
            if config_key(config) not in self._asked:
                self._asked.add(config_key(config))
                return config
        return None

    def _list_unseen(self) -> None:
        self._left = [c for c in self._space.enumerate() if config_key(c) not in self._asked]
        self._rng.shuffle(self._left)

    def _add(self, config: Config, value: float, *, violated: bool) -> None:
        import optuna

        self._study.add_trial(
            optuna.trial.create_trial(
                params=_encode(self._space, config),
                distributions=self._distributions,
                value=value,
                constraints={"runs": 1.0 if violated else -1.0}
                if self.name in _CONSTRAINED
                else None,
            )
        )


def _distribution(parameter: Parameter) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import CategoricalDistribution, IntDistribution

    if isinstance(parameter, PowerOfTwo):
        values = parameter.values()
        return IntDistribution(int(parameter.encode(values[0])), int(parameter.encode(values[-1])))
    if isinstance(parameter, Integer):
        return IntDistribution(parameter.low, parameter.high, step=parameter.step)
    return CategoricalDistribution(tuple(range(len(parameter.values()))))


def _decode(space: BoundSpace, params: Mapping[str, Any]) -> dict[str, Value]:
    return {p.name: _value(p, params[p.name]) for p in space.parameters}


def _value(parameter: Parameter, raw: int) -> Value:
    if isinstance(parameter, PowerOfTwo):
        return parameter.decode(raw)
    return raw if isinstance(parameter, Integer) else parameter.values()[raw]


def _encode(space: BoundSpace, config: Config) -> dict[str, int]:
    return {p.name: _raw(p, config.get(p.name, p.default)) for p in space.parameters}


def _raw(parameter: Parameter, value: Any) -> int:
    if isinstance(parameter, PowerOfTwo):
        return int(parameter.encode(value))
    if isinstance(parameter, Integer):
        return int(value)
    # Not `index(value)`: among choices, True is not 1.
    return next(
        i for i, v in enumerate(parameter.values()) if v == value and type(v) is type(value)
    )


def _sampler(
    name: str, seed: int, distributions: Mapping[str, Any], options: dict[str, Any]
) -> optuna.samplers.BaseSampler:
    import optuna

    if name == "grid":
        grid = {key: _grid_values(dist) for key, dist in distributions.items()}
        return optuna.samplers.GridSampler(grid, seed=seed, **options)
    if name == "cmaes":
        options.setdefault("warn_independent_sampling", False)
    samplers: dict[str, Any] = {
        "tpe": optuna.samplers.TPESampler,
        "gp": optuna.samplers.GPSampler,
        "cmaes": optuna.samplers.CmaEsSampler,
        "random": optuna.samplers.RandomSampler,
    }
    sampler: optuna.samplers.BaseSampler = samplers[name](seed=seed, **options)
    return sampler


def _grid_values(distribution: Any) -> list[Any]:
    choices = getattr(distribution, "choices", None)
    if choices is not None:
        return list(choices)
    return list(range(distribution.low, distribution.high + 1, distribution.step))
