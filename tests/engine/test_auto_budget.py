"""Budget `auto`, warm starts and the order of measuring, on the search itself."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import replace

import pytest
from scenario import DEVICE, TOOLS, seeds, spec, toy_fault, toy_us

from results_db.stored_records import TrialRecord
from search_spaces.params import PowerOfTwo
from search_spaces.records import Status, Workload, config_key
from search_spaces.space import SearchSpace
from tuner import strategies
from tuner.engine import TaskBudget
from tuner.engine.search import Search, winners_near
from tuner.engine.stopping_rule import MINIMUM, UNTIMED
from tuner.engine.task_spec import TaskSpec
from tuner.engine.trial_table import TrialState
from tuner.settings.sections import Budget
from workers.job_records import Artifact, KernelRef, StaticFacts

AUTO = TaskBudget(gain=0.005)


def bowl_space():
    """1,000 configs; the fastest are around a = b = c = 16."""
    parameters = [PowerOfTwo(name, 1, 512) for name in "abc"]
    return SearchSpace(parameters).bind(Workload.of(n=1024), DEVICE)


def bowl_us(config):
    return 50 * math.exp(sum((math.log2(v) - 4) ** 2 for v in config.values()) / 20)


def bowl(strategy="bayes", seed=0, budget=AUTO, **more):
    space = bowl_space()
    return Search(
        TaskSpec(
            task_id=more.pop("task_id", 1),
            label="bowl",
            kernel=KernelRef("bowl"),
            workload=more.pop("workload", Workload.of(n=1024)),
            device=DEVICE,
            space=space,
            strategy=strategies.create(strategy, space, seed),
            default={"a": 1, "b": 1, "c": 512},
            budget=budget,
            **more,
        )
    )


def record(trial, us, status=Status.CORRECT):
    return TrialRecord(f"{trial.number}", trial.number, trial.config, status, median_us=us)


def play(search, us, *, at_once=15, seed=0, dropped=None):
    """Run to the end with results in a random order.

    Returns the trials in the order asked, dropped ones excluded.
    """
    rng = random.Random(seed)
    flying, asked = [], []
    while True:
        while len(flying) < at_once and (trial := search.asker.next_trial(0.0)) is not None:
            flying.append(trial)
            asked.append(trial)
        if not flying:
            return asked
        trial = flying.pop(rng.randrange(len(flying)))
        if trial.state is TrialState.DROPPED:
            asked.remove(trial)
            if dropped is not None:
                dropped.append(trial)
            continue
        time_us = us(trial.config)
        status = Status.CORRECT if time_us else Status.RUNTIME
        search.finish(trial, record(trial, time_us, status))


def play_in_time(search, us, build_s, *, at_once=15, tick_s=0.1):
    """Run to the end with builds of these durations.

    Returns the time of the last result and the trials in the order asked.
    """
    now, last, building, asked = 0.0, 0.0, [], []
    while not search.asker.exhausted:
        while len(building) < at_once and (trial := search.asker.next_trial(now)) is not None:
            search.trials.start_build(trial)
            heapq.heappush(building, (now + build_s(trial.config), trial.number, trial))
            asked.append(trial)
        if search.asker.exhausted:
            break
        if building[0][0] > now + tick_s:
            now += tick_s
            continue
        now, _, trial = heapq.heappop(building)
        if trial.state is not TrialState.DROPPED:
            found = record(trial, us(trial.config))
            search.finish(trial, replace(found, build_s=build_s(trial.config)))
            last = now
    return last, asked


@pytest.mark.parametrize(
    "strategy", ["bayes", "tpe", pytest.param("random", marks=pytest.mark.full)]
)
def test_auto_ends_after_the_minimum_and_before_the_space_is_exhausted(strategy):
    search = bowl(strategy)
    asked = play(search, bowl_us)
    assert MINIMUM <= len(asked) < (1000 if strategy == "random" else 600)
    assert search.asker.exhausted
    keys = [config_key(t.config) for t in asked]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("seed", seeds(3))
def test_auto_with_bayes_ends_with_the_best(seed):
    search = bowl(seed=seed)
    asked = play(search, bowl_us, seed=seed)
    assert search.incumbent.config == {"a": 16, "b": 16, "c": 16}
    assert len(asked) < 200


def test_a_smaller_gain_asks_for_more():
    few = play(bowl(budget=TaskBudget(gain=0.2)), bowl_us)
    many = play(bowl(budget=TaskBudget(gain=0.0005)), bowl_us)
    assert len(few) < len(many)


def test_other_limits_hold_together_with_auto():
    assert len(play(bowl(budget=TaskBudget(trials=35, gain=1e-9)), bowl_us)) == 35
    assert len(play(bowl(budget=TaskBudget(trials=7, gain=0.005)), bowl_us)) == 7


def test_auto_ends_where_nothing_can_be_timed():
    asked = play(bowl(), lambda config: None)
    assert len(asked) == UNTIMED


def test_a_space_smaller_than_the_minimum_is_tried_whole():
    task = spec(strategy="bayes", budget=AUTO)
    small = task.space.restrict({"order": ["row"], "stages": [1]})
    strategy = strategies.create("bayes", small, 0)
    default = next(iter(small.enumerate()))
    search = Search(replace(task, space=small, strategy=strategy, default=default))
    assert len(play(search, toy_us)) == small.size()


def test_equal_times_end_soon():
    assert MINIMUM <= len(play(bowl(), lambda config: 50.0)) <= MINIMUM + 60


def test_polish_tries_only_neighbours_of_the_incumbent():
    search = bowl(budget=TaskBudget(gain=0.05))
    asked = play(search, bowl_us, at_once=1)
    polished = [t for t in asked if t.strategy == "polish"]
    space, best, incumbents = search.spec.space, None, {}
    for trial in asked:
        incumbents[trial.number] = best
        if best is None or trial.score < best.score:
            best = trial
    for trial in polished:
        near = space.neighbours(incumbents[trial.number].config)
        assert config_key(trial.config) in {config_key(c) for c in near}


def test_a_resumed_search_ends_too():
    first = bowl()
    records = []
    for _ in range(20):
        trial = first.asker.next_trial(0.0)
        first.finish(trial, record(trial, bowl_us(trial.config)))
        records.append(trial.record)
    again = bowl(finished=tuple(records))
    play(again, bowl_us)
    assert again.asker.exhausted
    assert len(again.trials) >= MINIMUM


def test_failed_trials_do_not_mislead_the_search():
    search = Search(spec(strategy="bayes", budget=AUTO))
    play(search, lambda config: None if toy_fault(config) else toy_us(config))
    assert search.incumbent is not None
    right = [c for c in search.spec.space.enumerate() if not toy_fault(c)]
    assert toy_us(search.incumbent.config) <= 1.005 * min(map(toy_us, right))


@pytest.mark.parametrize("seed", seeds(3))
def test_builds_that_are_not_worth_waiting_for_are_dropped_at_the_end(seed):
    search = bowl(seed=seed)
    dropped = []
    play(search, bowl_us, seed=seed, dropped=dropped)
    assert search.asker.exhausted
    assert search.incumbent.config == {"a": 16, "b": 16, "c": 16}
    assert dropped
    assert not {trial.number for trial in dropped} & {t.number for t in search.trials.values()}
    assert all(trial.state is TrialState.DONE for trial in search.trials.values())


def test_a_search_with_a_fixed_budget_drops_no_build():
    assert len(play(bowl(budget=TaskBudget(trials=60)), bowl_us)) == 60


def test_likely_winners_are_built_at_their_check_size_while_the_last_results_are_awaited():
    search = bowl(budget=TaskBudget(trials=8), check_size=Workload.of(n=1000))
    flying = [search.asker.next_trial(0.0) for _ in range(8)]
    for trial in flying[:6]:
        assert search.checks_to_build() == []
        search.finish(trial, record(trial, bowl_us(trial.config)))
    assert search.asker.next_trial(0.0) is None
    first = search.checks_to_build()
    assert first == search.ranking.trials()[:3]
    first[0].check_artifact = Artifact(first[0].config, "simulated", TOOLS, "check")
    assert search.checks_to_build() == first[1:]
    for trial in flying[6:]:
        search.finish(trial, record(trial, bowl_us(trial.config)))
    assert search.checks_to_build() == []  # the finals take over


# -- warm starts -----------------------------------------------------------------------------------
def test_warm_configs_come_after_the_default_in_their_order():
    search = bowl()
    warm = [{"a": 2, "b": 4, "c": 8}, {"a": 3, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 512}]
    search.asker.add_winners([*warm, {"a": 64, "b": 64, "c": 64}])
    asked = [search.asker.next_trial(0.0) for _ in range(3)]
    assert [t.strategy for t in asked] == ["default", "warm", "warm"]
    assert [t.config for t in asked[1:]] == [warm[0], {"a": 64, "b": 64, "c": 64}]
    more = {config_key(search.asker.next_trial(0.0).config) for _ in range(40)}
    assert not more & {config_key(t.config) for t in asked}


def test_winners_of_the_nearest_workloads_are_warm_starts():
    done = []
    for task_id, (n, a) in enumerate([(64, 1), (2048, 2), (1 << 20, 4), (512, 8)], start=2):
        search = bowl(task_id=task_id, workload=Workload.of(n=n), budget=TaskBudget(trials=1))
        trial = search.asker.next_trial(0.0)
        object.__setattr__(trial, "config", {"a": a, "b": 1, "c": 1})
        search.finish(trial, record(trial, 10.0))
        assert search.asker.next_trial(0.0) is None
        done.append(search)
    unfinished = bowl(task_id=9)
    opening = bowl().spec
    winners = winners_near(opening, [*done, unfinished])
    assert [c["a"] for c in winners] == [2, 8, 1]


# -- the order of measuring ------------------------------------------------------------------------
def test_trials_that_spill_heavily_wait_behind_all_others():
    search = bowl("random")
    spills = [0, 4096, 128, 0, 512]
    for bytes_ in spills:
        trial = search.asker.next_trial(0.0)
        facts = StaticFacts(spill_bytes=bytes_)
        built = Artifact(trial.config, "simulated", TOOLS, f"{trial.number}", facts)
        search.trials.take_build(trial, built)
    assert [t.number for t in search.order_ready()] == [0, 2, 3, 1, 4]
    assert search.trials.count(TrialState.READY) == len(spills)


# -- settings --------------------------------------------------------------------------------------
def test_auto_is_written_alone_or_with_limits():
    alone = Budget.model_validate("auto")
    assert (alone.expected_gain, alone.trials_at_most) == (0.005, None)
    capped = Budget.model_validate({"trials": "auto", "gain": 0.02, "max_trials": 300})
    assert (capped.expected_gain, capped.trials_at_most) == (0.02, 300)
    fixed = Budget.model_validate({"trials": 50, "max_trials": 10, "gain": 0.1})
    assert (fixed.expected_gain, fixed.trials_at_most) == (None, 50)


@pytest.mark.parametrize("wrong", [{"trials": "aut"}, {"gain": 0}, {"gain": 1.0}, "many"])
def test_other_words_are_refused(wrong):
    with pytest.raises(ValueError, match=r"Input should be|validation error"):
        Budget.model_validate(wrong)


@pytest.mark.parametrize("seed", seeds(3))
def test_late_builds_that_gain_little_are_dropped(seed):
    def build_s(config):
        return 60.0 if config["a"] == config["b"] >= 128 else 0.4 + 0.001 * config["c"]

    search = bowl(seed=seed)
    last_s, asked = play_in_time(search, bowl_us, build_s)
    assert search.incumbent.config == {"a": 16, "b": 16, "c": 16}
    slow = [trial for trial in asked if build_s(trial.config) == 60.0]
    assert slow
    assert all(trial.state is TrialState.DROPPED for trial in slow)
    assert last_s < 60.0


def test_a_late_build_that_may_win_is_not_dropped():
    """The fastest config takes long to build, and its neighbours show that it is fast."""

    def build_s(config):
        return 5.0 if config == {"a": 16, "b": 16, "c": 16} else 0.4

    def us(config):
        return bowl_us(config) - (10.0 if config == {"a": 16, "b": 16, "c": 16} else 0.0)

    search = bowl(seed=1)
    last_s, asked = play_in_time(search, us, build_s)
    begun = [trial for trial in asked if build_s(trial.config) == 5.0]
    assert search.incumbent.config == {"a": 16, "b": 16, "c": 16}
    assert last_s >= 5.0
    assert begun[-1].state is TrialState.DONE
