"""The adapter between the engine and Optuna: every sampler as a `Strategy`.

The study lives in memory. A config that fails becomes a completed trial with a violated constraint
and a penalty as its value, because Optuna's samplers ignore failed trials.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import optuna
from optuna.samplers import BaseSampler, CmaEsSampler, GridSampler, RandomSampler
from optuna.trial import Trial, TrialState

from search_spaces.records import Config, Status, config_key
from search_spaces.space import BoundSpace
from tuner.base.tracing import trace_calls
from tuner.strategies.config_params import WITHDRAWN, ConfigParams
from tuner.strategies.strategy import time_score

if TYPE_CHECKING:
    from tuner.strategies.surrogate import Surrogate

#: The constraint of a finished trial: above 0 for a config that does not run correctly.
CONSTRAINT = "fails"
#: Unusable suggestions in a row after which any feasible config is taken.
_TRIES = 200
#: How much slower than the slowest result a failure is taken to be: ln(2), twice the time.
_PENALTY = 0.6931471805599453
#: Shorter calls are in no trace.
_LEAST_S = 0.001


class StudyStrategy:
    """Suggests the configs of a bound space by an Optuna sampler.

    study: the in-memory study; its values are ln(time in us), to be minimised. A sampler may have
    two attributes that Optuna does not know. `replays`: its suggestions depend on the seed alone.
    `exhausted`: its latest suggestion repeats a config, because no other is left.
    """

    def __init__(self, space: BoundSpace, seed: int, sampler: BaseSampler, *, name: str) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.name = name
        self.sampler = sampler
        self.study = optuna.create_study(sampler=sampler)
        self.replays: bool = isinstance(sampler, RandomSampler | GridSampler) or getattr(
            sampler, "replays", False
        )
        #: A grid counts the trials that are left; other samplers that replay ignore results.
        self._informed = not self.replays or isinstance(sampler, GridSampler)
        #: CMA-ES warns of constraints, which it does not use; the penalty has to do.
        self._constrained = not isinstance(sampler, CmaEsSampler)
        self._space = space
        self._params = ConfigParams(space)
        self._rng = random.Random(seed)
        self._running: dict[str, Trial] = {}
        self._suggested: set[str] = set()
        self._slowest: float | None = None
        self._unseen: list[Config] | None = None

    @property
    def surrogate(self) -> Surrogate | None:
        """The sampler's model of the space, for the stopping rule; None where it has none."""
        found: Surrogate | None = getattr(self.sampler, "surrogate", None)
        return found

    @trace_calls("ask", "strategy", least_s=_LEAST_S)
    def ask(self, n: int) -> list[Config]:
        configs: list[Config] = []
        while len(configs) < n:
            config = self._suggest()
            if config is None:
                break
            configs.append(config)
        return configs

    @trace_calls("tell", "strategy", least_s=_LEAST_S)
    def tell(self, config: Config, score: float | None, status: Status) -> None:
        score = time_score(score, status)
        if score is not None:
            self._slowest = score if self._slowest is None else max(self._slowest, score)
        trial = self._running.pop(config_key(config), None)
        if trial is not None:
            self._finish(trial, score)
        elif not self.replays:
            self._add(config, score)

    def start(self, config: Config) -> None:
        """A config that was not suggested is being evaluated: a running trial."""
        params = self._params.params(config)
        if self.replays or params is None or config_key(config) in self._running:
            return
        self.study.enqueue_trial(params)
        self._running[config_key(config)] = self.study.ask(self._params.distributions)

    def withdraw(self, config: Config) -> None:
        """A running trial ends without a result."""
        trial = self._running.pop(config_key(config), None)
        if trial is not None:
            self._discard(trial)

    def _suggest(self) -> Config | None:
        """The next feasible config; after many misses, any feasible one not suggested yet."""
        for _ in range(_TRIES):
            if self._unseen is not None:
                break
            trial = self.study.ask(self._params.distributions)
            config = self._params.config(trial.params)
            assert config is not None
            key = config_key(config)
            if getattr(self.sampler, "exhausted", False):
                self._discard(trial)
                return None
            if key in self._running or (self.replays and key in self._suggested):
                self._discard(trial)
            elif self._space.feasible(config):
                self._running[key] = trial
                self._suggested.add(key)
                return config
            else:
                self._finish(trial, None)
        return self._take_unseen()

    def _finish(self, trial: Trial, score: float | None) -> None:
        """End a trial with its score, or as a failed config."""
        if self._informed:
            for name, value in self._constraints(score).items():
                trial.set_constraint(name, value)
            self._tell(trial, TrialState.COMPLETE, self._penalty() if score is None else score)

    def _discard(self, trial: Trial) -> None:
        """End a trial that says nothing about its config."""
        if self._informed:
            trial.set_user_attr(WITHDRAWN, True)
            self._tell(trial, TrialState.FAIL)

    def _tell(self, trial: Trial, state: TrialState, value: float | None = None) -> None:
        try:
            self.study.tell(trial, value, state)
        except RuntimeError as error:
            # A grid that is used up stops its study, which is an error outside `optimize`.
            if not isinstance(self.sampler, GridSampler) or "Study.stop" not in f"{error}":
                raise
            self._list_unseen()

    def _add(self, config: Config, score: float | None) -> None:
        """A finished trial of a config that was not suggested."""
        params = self._params.params(config)
        if params is None:
            return
        self.study.add_trial(
            optuna.trial.create_trial(
                params=params,
                distributions=self._params.distributions,
                value=self._penalty() if score is None else score,
                constraints=self._constraints(score),
            )
        )

    def _constraints(self, score: float | None) -> dict[str, float]:
        return {CONSTRAINT: 1.0 if score is None else -1.0} if self._constrained else {}

    def _penalty(self) -> float:
        return (self._slowest or 0.0) + _PENALTY

    def _take_unseen(self) -> Config | None:
        if self._unseen is None:
            self._list_unseen()
        while self._unseen:
            config = self._unseen.pop()
            if config_key(config) not in self._suggested:
                self._suggested.add(config_key(config))
                return config
        return None

    def _list_unseen(self) -> None:
        self._unseen = [c for c in self._space.enumerate() if config_key(c) not in self._suggested]
        self._rng.shuffle(self._unseen)
