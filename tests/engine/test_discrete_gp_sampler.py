"""The sampler of our own in studies as Optuna's users write them."""

from __future__ import annotations

import math
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import optuna
import pytest
from installed_plugins import install_plugins
from optuna.trial import TrialState
from scenario import toy_fault, toy_space, toy_us

from search_spaces.errors import TunerError
from search_spaces.params import Choice, Integer
from search_spaces.records import Device, Status, Workload, config_key
from search_spaces.space import SearchSpace
from tuner import strategies
from tuner.strategies.config_params import ConfigParams
from tuner.strategies.discrete_gp_sampler import DiscreteGPSampler
from tuner.strategies.expected_gain import ExpectedGain
from tuner.strategies.study_strategy import StudyStrategy


@pytest.fixture(autouse=True)
def quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def study_of(sampler, direction="minimize"):
    return optuna.create_study(sampler=sampler, direction=direction)


def run(study, count, sign=1):
    """The parameters of all trials, after `count` more were asked and told."""
    params = ConfigParams(toy_space())
    for _ in range(count):
        trial = study.ask(params.distributions)
        config = params.config(trial.params)
        value = None if toy_fault(config) else sign * math.log(toy_us(config))
        study.tell(trial, value, TrialState.FAIL if value is None else TrialState.COMPLETE)
    return [trial.params for trial in study.trials]


def test_it_finds_a_better_config_than_random_draws_do():
    def best(make):
        studies = [study_of(make(seed)) for seed in range(3)]
        return sum(run(study, 40) and study.best_value for study in studies)

    ours = best(lambda seed: DiscreteGPSampler(toy_space(), seed=seed, n_startup_trials=8))
    assert ours < best(lambda seed: optuna.samplers.RandomSampler(seed=seed))


def test_maximising_the_negative_suggests_the_same():
    found = [
        run(study_of(DiscreteGPSampler(toy_space(), seed=2, n_startup_trials=5), name), 20, sign)
        for name, sign in (("minimize", 1), ("maximize", -1))
    ]
    assert found[0] == found[1]


def test_running_trials_are_not_suggested_again():
    study = study_of(DiscreteGPSampler(toy_space(), seed=0))
    params = ConfigParams(toy_space())
    asked = [study.ask(params.distributions) for _ in range(20)]
    assert len({config_key(params.config(trial.params)) for trial in asked}) == 20
    assert all(toy_space().feasible(params.config(trial.params)) for trial in asked)


def test_a_space_is_tried_once_and_then_the_study_stops():
    space = toy_space()
    params = ConfigParams(space)
    seen = []

    def objective(trial):
        for name, each in params.distributions.items():
            if isinstance(each, optuna.distributions.IntDistribution):
                trial.suggest_int(name, each.low, each.high)
            else:
                trial.suggest_categorical(name, each.choices)
        config = params.config(trial.params)
        seen.append(config_key(config))
        return math.log(toy_us(config))

    study = study_of(DiscreteGPSampler(space, seed=1))
    study.optimize(objective, n_trials=10 * space.size())
    assert len(set(seen)) == space.size()
    assert len(seen) <= space.size() + 1


def test_trials_that_violate_a_constraint_or_fail_are_avoided():
    """Half of the space does not work, in three ways; its values look the best."""
    modes = Choice("mode", ("good", "bad"))
    space = SearchSpace([Integer("x", 0, 15), Integer("y", 0, 15), modes])
    bound = space.bind(Workload.of(), Device("cpu", "none", "cpu"))

    def objective(trial):
        x, y = trial.suggest_int("x", 0, 15), trial.suggest_int("y", 0, 15)
        if trial.suggest_categorical("mode", (0, 1)) == modes.values().index("bad"):
            if x % 3 == 0:
                raise RuntimeError("does not run")
            if x % 3 == 1:
                raise optuna.TrialPruned
            trial.set_constraint("c", 1.0)
            return -100.0
        trial.set_constraint("c", -1.0)
        return abs(x - 11) + abs(y - 4)

    study = study_of(DiscreteGPSampler(bound, seed=3, n_startup_trials=10))
    study.optimize(objective, n_trials=45, catch=(RuntimeError,))
    late = [trial for trial in study.trials[25:] if trial.params["mode"] == 1]
    assert len(late) <= 6, "as many as random draws, which would be ten"
    assert study.best_value <= 1


def test_results_of_another_process_are_learnt(tmp_path):
    """Two samplers share a study in a file; neither repeats the other's trials."""
    params = ConfigParams(toy_space())
    url = f"sqlite:///{tmp_path / 'study.db'}"
    studies = [
        optuna.create_study(
            study_name="shared",
            storage=url,
            sampler=DiscreteGPSampler(toy_space(), seed=seed, n_startup_trials=4),
            load_if_exists=True,
        )
        for seed in (0, 1)
    ]
    seen = []
    for at in range(12):
        study = studies[at % 2]
        trial = study.ask(params.distributions)
        config = params.config(trial.params)
        seen.append(config_key(config))
        study.tell(trial, math.log(toy_us(config)))
    assert len(set(seen)) == 12
    for study in studies:
        study._storage.remove_session()
        study._storage._backend.engine.dispose()


def test_threads_may_share_a_sampler():
    study = study_of(DiscreteGPSampler(toy_space(), seed=0, n_startup_trials=4))
    params = ConfigParams(toy_space())

    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(lambda _: _one(study, params), range(32)))
    assert len(set(done)) == 32


def _one(study, params):
    trial = study.ask(params.distributions)
    config = params.config(trial.params)
    study.tell(trial, math.log(toy_us(config)))
    return config_key(config)


def test_a_pickled_sampler_goes_on_as_the_original_does():
    space = SearchSpace([Integer("x", 0, 15), Choice("mode", ("good", "bad"))])
    bound = space.bind(Workload.of(), Device("cpu", "none", "cpu"))
    distributions = ConfigParams(bound).distributions

    def run_some(study):
        for _ in range(6):
            trial = study.ask(distributions)
            study.tell(trial, abs(trial.params["x"] - 9) + trial.params["mode"])
        return [trial.params for trial in study.trials]

    study = study_of(DiscreteGPSampler(bound, seed=4, n_startup_trials=4))
    run_some(study)
    copy = pickle.loads(pickle.dumps(study))
    assert run_some(study) == run_some(copy)


def test_several_objectives_are_refused():
    study = optuna.create_study(directions=["minimize"] * 2, sampler=DiscreteGPSampler(toy_space()))
    with pytest.raises(ValueError, match="multi-objective"):
        study.ask(ConfigParams(toy_space()).distributions)


@pytest.mark.parametrize("name", ["bayes", "tpe"])
def test_a_strategys_study_holds_every_result(name):
    space = toy_space()
    strategy = strategies.create(name, space, 0)
    params = ConfigParams(space)
    scores = {}
    for _ in range(15):
        (config,) = strategy.ask(1)
        fault = toy_fault(config)
        score = None if fault else math.log(toy_us(config))
        strategy.tell(config, score, fault or Status.CORRECT)
        scores[config_key(config)] = score
    for trial in strategy.study.trials:
        if trial.state is TrialState.COMPLETE:
            score = scores.get(config_key(params.config(trial.params)))
            assert (trial.constraints["fails"] > 0) is (score is None)
            assert score is None or trial.value == score
    assert strategy.study.best_value == min(score for score in scores.values() if score is not None)


def test_a_withdrawn_config_may_be_suggested_again():
    space = toy_space()
    strategy = strategies.create("bayes", space, 0)
    asked = strategy.ask(space.size())
    assert strategy.ask(1) == []
    strategy.withdraw(asked[3])
    assert strategy.ask(2) == [asked[3]]


def test_an_entry_point_may_return_an_optuna_sampler(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "quasi_strategy.py").write_text(
        "import optuna\n\n\n"
        "def make(space, seed, *, startup=1):\n"
        "    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup)\n"
    )
    install_plugins(tmp_path, "quasi", "tuner.strategies", {"quasi": "quasi_strategy:make"})
    space = toy_space()
    strategy = strategies.create("quasi", space, 3, {"startup": 3})
    assert isinstance(strategy.strategy, StudyStrategy)
    assert strategy.name == "quasi"
    for _ in range(10):
        (config,) = strategy.ask(1)
        assert space.feasible(config)
        strategy.tell(config, math.log(toy_us(config)), Status.CORRECT)
    with pytest.raises(TunerError, match="stratup"):
        strategies.create("quasi", space, 3, {"stratup": 3})


@pytest.mark.parametrize("name", ["bayes", "random"])
def test_the_stopping_rule_sees_the_model_of_a_packages_strategy(monkeypatch, tmp_path, name):
    """The model is the strategy's own: it has what the strategy was told, once."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / f"own_{name}.py").write_text(
        "from tuner.strategies import create\n\n\n"
        f"def make(space, seed):\n    return create({name!r}, space, seed)\n"
    )
    install_plugins(tmp_path, f"own-{name}", "tuner.strategies", {"owned": f"own_{name}:make"})
    space = toy_space()
    strategy = strategies.create("owned", space, 3)
    assert (strategy.surrogate is None) is (name == "random")
    gain = ExpectedGain(space, surrogate=strategy.surrogate)
    assert gain.shared is (name == "bayes")
    assert gain.expected_gain() == math.inf
    for _ in range(12):
        (config,) = strategy.ask(1)
        gain.start(config)
        score = math.log(toy_us(config))
        strategy.tell(config, score, Status.CORRECT)
        gain.tell(config, score, Status.CORRECT)
    assert math.isfinite(gain.expected_gain())
