"""One contract for every strategy, over a real space."""

from __future__ import annotations

import math

import pytest
from scenario import toy_fault, toy_space, toy_us

from search_spaces.errors import TunerError
from search_spaces.params import Boolean, Choice, Integer, PowerOfTwo
from search_spaces.records import Device, Status, Workload, config_key
from search_spaces.space import SearchSpace
from tuner import strategies

ALL = ["bayes", "tpe", "gp", "cmaes", "random", "grid", "exhaustive"]


def answer(strategy, config):
    fault = toy_fault(config)
    score = None if fault else math.log(toy_us(config))
    strategy.tell(config, score, fault or Status.CORRECT)
    return score


class StrategyContract:
    """The promises the engine relies on; subclass it with `make(space, seed)` for a strategy."""

    def make(self, space, seed):
        raise NotImplementedError

    def test_suggestions_are_feasible(self):
        space = toy_space()
        strategy = self.make(space, 1)
        for _ in range(14):
            for config in strategy.ask(1):
                assert space.why_not(config) is None
                answer(strategy, config)

    def test_the_same_seed_gives_the_same_suggestions(self):
        def run():
            strategy = self.make(toy_space(), 7)
            configs = []
            for _ in range(12):
                (config,) = strategy.ask(1)
                answer(strategy, config)
                configs.append(config_key(config))
            return configs

        assert run() == run()

    def test_results_of_other_configs_are_accepted(self):
        space = toy_space()
        strategy = self.make(space, 3)
        for config in list(space.enumerate())[:10]:
            answer(strategy, config)
        assert len(strategy.ask(2)) == 2

    def test_a_strategy_that_replays_ignores_results(self):
        without, informed = self.make(toy_space(), 5), self.make(toy_space(), 5)
        if not without.replays:
            pytest.skip("learns from results")
        for _ in range(20):
            (a,), (b,) = without.ask(1), informed.ask(1)
            assert a == b
            answer(informed, b)

    def test_an_exhausted_strategy_suggests_nothing(self):
        space = toy_space().restrict({"block": [64], "order": ["row"]})
        strategy = self.make(space, 0)
        if not strategy.replays:
            pytest.skip("may repeat itself; the engine then takes an unseen config")
        seen = set()
        for _ in range(50):
            suggested = strategy.ask(1)
            if not suggested:
                break
            seen.add(config_key(suggested[0]))
            answer(strategy, suggested[0])
        assert len(seen) == space.size()


def contract(name):
    return type(
        f"Test{name.title()}",
        (StrategyContract,),
        {"make": lambda self, space, seed: strategies.create(name, space, seed)},
    )


for _name in ALL:
    globals()[f"Test{_name.title()}"] = contract(_name)


def test_learning_beats_random_draws_on_a_smooth_space():
    best = {}
    for name in ("tpe", "random"):
        found = []
        for seed in range(5):
            strategy = strategies.create(name, toy_space(), seed)
            seen = {}
            while len(seen) < 25:
                (config,) = strategy.ask(1)
                answer(strategy, config)
                seen[config_key(config)] = toy_us(config) if not toy_fault(config) else math.inf
            found.append(min(seen.values()))
        best[name] = sum(found)
    assert best["tpe"] <= best["random"]


def test_conditional_and_all_kinds_of_parameters():
    parameters = (
        PowerOfTwo("block", 16, 64),
        Integer("unroll", 1, 7, step=3),
        Boolean("split"),
        Choice("how", ("atomic", "tree"), when={"split": (True,)}),
    )
    space = SearchSpace(parameters).bind(Workload.of(n=1), Device("cpu", "x", "cpu:x86-64"))
    everything = {config_key(c) for c in space.enumerate()}
    for name in ALL:
        strategy = strategies.create(name, space, 0)
        for _ in range(20):
            for config in strategy.ask(1):
                assert config_key(config) in everything
                strategy.tell(config, 1.0, Status.CORRECT)


def test_errors_about_names_and_options_have_a_hint():
    with pytest.raises(TunerError) as unknown:
        strategies.create("tpee", toy_space())
    assert "tpe" in unknown.value.hint
    with pytest.raises(TunerError) as option:
        strategies.create("exhaustive", toy_space(), 0, {"shuffel": True})
    assert "shuffel" in str(option.value)


def test_the_gp_computes_with_one_thread_and_gives_the_others_back(monkeypatch):
    import torch
    from optuna.samplers import GPSampler

    seen = []
    sample = GPSampler.sample_relative

    def look(self, *args):
        seen.append(torch.get_num_threads())
        return sample(self, *args)

    monkeypatch.setattr(GPSampler, "sample_relative", look)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        strategy = strategies.create("gp", toy_space(), 1)
        answer(strategy, *strategy.ask(1))
        strategy.ask(1)
        assert (seen, torch.get_num_threads()) == ([1, 1], 3)
    finally:
        torch.set_num_threads(before)
