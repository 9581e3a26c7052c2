"""The strategy `bayes` on spaces recorded on an H200, and with invalid results."""

from __future__ import annotations

import heapq
import math
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenario import seeds, toy_space

from search_spaces.params import Choice, PowerOfTwo
from search_spaces.recorded.recorded_kernel import RecordedKernel, RecordedSpace
from search_spaces.records import Device, Status, Workload, config_key
from search_spaces.space import SearchSpace
from tuner import strategies
from tuner.strategies.candidate_points import CandidatePoints
from tuner.strategies.expected_gain import ExpectedGain

MATMUL = Path(__file__).parents[2] / "benchmarks/spaces/h200/matmul_4096_bf16.space.json"


@pytest.fixture(scope="module")
def matmul():
    """The 336 configs that load by pointers, with their recorded times."""
    recorded = RecordedSpace.load(MATMUL)
    kernel = RecordedKernel(recorded)
    bound = kernel.space(recorded.workload).bind(recorded.workload, kernel.device)
    return recorded, bound.restrict({"loads": ["pointer"]})


def in_flight(recorded, strategy, count, seed, at_once=15):
    """Suggestions with many pending; results come in the order in which jittered builds end."""
    rng = random.Random(seed)
    heap, suggested, now = [], [], 0.0
    while len(suggested) < count or heap:
        while len(heap) < at_once and len(suggested) < count:
            (config,) = strategy.ask(1)
            suggested.append(config_key(config))
            takes = recorded[config].build_s * rng.uniform(0.7, 1.4)
            heapq.heappush(heap, (now + takes, len(suggested), config))
        now, _, config = heapq.heappop(heap)
        strategy.tell(config, math.log(recorded[config].median_us), Status.CORRECT)
    return suggested


@pytest.mark.parametrize("seed", seeds(4))
def test_the_best_of_336_is_found_within_90_builds_with_15_in_flight(matmul, seed):
    recorded, space = matmul
    strategy = strategies.create("bayes", space, seed)
    suggested = in_flight(recorded, strategy, 90, seed)
    assert len(set(suggested)) == 90
    times = {config_key(c): recorded[c].median_us for c in space.enumerate()}
    assert min(times[key] for key in suggested) <= 1.005 * min(times.values())


def test_every_config_is_suggested_once():
    space = toy_space()
    strategy = strategies.create("bayes", space, 2)
    seen = []
    while suggested := strategy.ask(3):
        for config in suggested:
            assert space.feasible(config)
            seen.append(config_key(config))
            strategy.tell(config, float(len(seen) % 7), Status.CORRECT)
    assert len(seen) == len(set(seen)) == space.size()


def test_a_config_started_elsewhere_is_not_suggested():
    space = toy_space()
    strategy = strategies.create("bayes", space, 0)
    other = list(space.enumerate())[3]
    strategy.start(other)
    suggested = {config_key(c) for c in strategy.ask(1000)}
    assert config_key(other) not in suggested
    assert len(suggested) == space.size() - 1


SCORES = st.one_of(
    st.none(),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 700.0, -700.0, 1e300]),
    st.floats(-5, 5),
)


@settings(max_examples=25)
@given(st.lists(st.tuples(SCORES, st.sampled_from(list(Status))), min_size=1, max_size=40))
def test_invalid_results_do_not_end_or_repeat_the_suggestions(results):
    space = toy_space()
    strategy = strategies.create("bayes", space, 1)
    seen = set()
    for score, status in results:
        suggested = strategy.ask(1)
        if not suggested:
            assert len(seen) == space.size()
            break
        assert config_key(suggested[0]) not in seen
        seen.add(config_key(suggested[0]))
        strategy.tell(suggested[0], score, status)
        strategy.tell(suggested[0], score, status)
    gain = ExpectedGain(space, surrogate=strategy.surrogate).expected_gain()
    assert gain >= 0.0
    assert not math.isnan(gain)


@pytest.mark.parametrize("result", [(None, Status.COMPILE), (3.0, Status.CORRECT)])
def test_a_space_where_all_fail_or_all_are_equal_is_exhausted(result):
    space = toy_space()
    strategy = strategies.create("bayes", space, 4)
    count = 0
    while suggested := strategy.ask(1):
        strategy.tell(suggested[0], *result)
        count += 1
    assert count == space.size()


def test_a_space_of_one_config():
    space = toy_space().restrict({"block": [64], "stages": [2], "order": ["row"]})
    strategy = strategies.create("bayes", space, 0)
    gain = ExpectedGain(space, surrogate=strategy.surrogate)
    assert gain.expected_gain() == math.inf
    (only,) = strategy.ask(5)
    strategy.tell(only, 1.0, Status.CORRECT)
    assert strategy.ask(1) == []
    assert gain.expected_gain() == 0.0
    assert gain.chances([only]) == [0.0]


@pytest.mark.parametrize("seed", seeds(7))
def test_failures_do_not_deter_from_their_neighbours(seed):
    """One value of a parameter always fails; the times depend on the other parameters."""
    space = SearchSpace([PowerOfTwo("a", 1, 512), PowerOfTwo("b", 1, 512), Choice("c", (0, 1))])
    bound = space.bind(Workload.of(n=1), Device("cpu", "x", "cpu"))
    strategy = strategies.create("bayes", bound, seed)
    tried = []
    while {"a": 64, "b": 4, "c": 0} not in tried:
        (config,) = strategy.ask(1)
        tried.append(config)
        off = abs(math.log2(config["a"]) - 6) + abs(math.log2(config["b"]) - 2)
        fails = config["c"] == 1
        status = Status.RUNTIME if fails else Status.CORRECT
        strategy.tell(config, None if fails else 1 + off / 10, status)
    assert len(tried) <= 40
    # After the first sample the model avoids the failing half.
    assert sum(c["c"] == 1 for c in tried[15:]) <= 2


def test_a_space_too_large_to_list_is_sampled_and_extended():
    space = SearchSpace([PowerOfTwo(name, 1, 256) for name in "abcdef"])
    bound = space.bind(Workload.of(n=1), Device("cpu", "x", "cpu"))
    points = CandidatePoints(bound, seed=1, limit=150)
    assert len(points) == 150
    assert not points.complete
    before = len(points)
    near = points.neighbours(0)
    assert len(points) > before
    assert all(bound.feasible(points.configs[n]) for n in near)
    strategy = strategies.create("bayes", bound, 1)
    seen = set()
    for _ in range(60):
        (config,) = strategy.ask(1)
        seen.add(config_key(config))
        strategy.tell(config, sum(math.log2(v) for v in config.values()) / 10, Status.CORRECT)
    assert len(seen) == 60


def test_the_expected_gain_falls_as_the_best_is_found(matmul):
    recorded, space = matmul
    gain = ExpectedGain(space)
    assert gain.expected_gain() == math.inf
    configs = list(space.enumerate())
    random.Random(0).shuffle(configs)
    best = min(configs, key=lambda c: recorded[c].median_us)
    rest = [c for c in configs if c is not best]
    for config in rest[:40]:
        gain.tell(config, math.log(recorded[config].median_us), Status.CORRECT)
    early = gain.expected_gain()
    for config in [*rest[40:300], best]:
        gain.tell(config, math.log(recorded[config].median_us), Status.CORRECT)
    assert gain.expected_gain() < min(early, 0.005)
    for config in rest[300:]:
        gain.tell(config, math.log(recorded[config].median_us), Status.CORRECT)
    assert gain.expected_gain() == 0.0


def test_a_pending_config_that_may_win_is_awaited_and_others_are_surplus():
    space = SearchSpace([PowerOfTwo("a", 1, 1 << 15), PowerOfTwo("b", 1, 1 << 15)]).bind(
        Workload.of(n=1), Device("simulated", "toy", "simulated")
    )
    gain = ExpectedGain(space)
    configs = list(space.enumerate())
    low, high = configs[0], configs[-1]
    for config in configs[::7]:
        if config not in (low, high):
            score = math.log2(config["a"]) + math.log2(config["b"])
            gain.tell(config, score / 20, Status.CORRECT)
    for config in (low, high):
        gain.start(config)
    assert gain.surplus([low, high], 1e-4) == [high]
    assert gain.surplus([], 1e-4) == []
    assert gain.surplus([low, high], 1.0) == [high, low]
    before = gain.expected_gain()
    gain.withdraw([low])
    assert gain.expected_gain() > before  # it may be suggested again, and would win


def test_features_of_a_space_are_further_columns():
    calls = []

    def features(config, workload, device):
        calls.append(config)
        return config["a"] * config["b"], 7.0

    parameters = [PowerOfTwo("a", 1, 8), PowerOfTwo("b", 1, 8)]
    device = Device("simulated", "toy", "simulated")
    plain = SearchSpace(parameters).bind(Workload.of(n=1), device)
    space = SearchSpace(parameters, features=features).bind(Workload.of(n=1), device)
    x = CandidatePoints(space.restrict({"b": [2, 4]})).x
    assert x.shape == (8, CandidatePoints(plain).x.shape[1] + 2)
    products = [config["a"] * config["b"] for config in calls]
    assert x[:, -2].tolist() == [(p - 2) / 30 for p in products]
    assert set(x[:, -1]) == {0.0}  # a constant feature


@pytest.mark.parametrize(("count", "columns"), [(2, 1), (3, 3), (16, 16), (17, 1), (1000, 1)])
def test_few_values_without_an_order_have_a_coordinate_each(count, columns):
    values = [str(number) for number in range(count)]
    device = Device("simulated", "toy", "simulated")
    x = CandidatePoints(SearchSpace([Choice("a", values)]).bind(Workload.of(n=1), device)).x
    assert x.shape == (count, columns)
    assert len({tuple(row) for row in x}) == count
