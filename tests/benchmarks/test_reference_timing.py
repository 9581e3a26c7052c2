"""The reference timing of `benchmarks/` on clocks with known truth."""

from __future__ import annotations

import math
import random

import pytest
import reference_timing as timing
from hypothesis import given, settings
from hypothesis import strategies as st


class Drifting:
    """A clock that drifts by 3 % and errs by 0.4 %; runs are names of true times."""

    def __init__(self, truth, seed):
        self.truth, self.random, self.runs = truth, random.Random(seed), 0

    def warm(self, run, seconds):
        pass

    def times(self, runs):
        return [self._time(name) for name in runs]

    def _time(self, name):
        self.runs += 1
        drift = 1 + 0.03 * math.sin(self.runs / 700)
        return self.truth[name] * drift * self.random.gauss(1, 0.004)


@settings(max_examples=30)
@given(count=st.integers(1, 20))
def test_every_run_takes_each_position_equally_often(count):
    places = [[0] * count for _ in range(count)]
    for order in timing.orders(count, 2 * count):
        assert sorted(order) == list(range(count))
        for place, run in enumerate(order):
            places[run][place] += 1
    assert all(row == [2] * count for row in places)


def test_regrets_match_the_true_times():
    truth = {f"v{i:02}": 200 * (1 + 0.002 * i) for i in range(60)}
    clock, stages = Drifting(truth, 1), []
    names = timing.eliminate(clock, {name: name for name in truth}, {"v40"}, stages)
    assert {"v00", "v40"} <= set(names)
    assert len(names) <= timing.FIELD + 1
    assert [stage["passes"] for stage in stages] == [3, 12, 40]
    best, rows = timing.regrets(names, timing.collect(clock, names, 400))
    assert best == "v00"
    for row in rows:
        true = truth[row["key"]] / truth["v00"] - 1
        assert row["regret"] == pytest.approx(true, abs=0.001)
        assert row["regret_low"] - 0.0005 <= true <= row["regret_high"] + 0.0005


def test_a_choice_indistinguishable_from_the_best_has_no_regret():
    truth = {"one": 20.0, "same": 20.0}
    _, rows = timing.regrets(list(truth), timing.collect(Drifting(truth, 2), list(truth), 400))
    assert all(abs(row["regret"]) < 0.001 for row in rows)
