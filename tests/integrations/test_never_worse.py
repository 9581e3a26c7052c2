"""An export makes no size slower than the library's choice today, whatever the times are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.log_ratio import LogRatio
from tuner.integrations import adapter
from tuner.integrations.never_worse import never_worse, sizes_between

NEAREST = adapter("vllm-moe").nearest
CONFIGS = [{"BLOCK_SIZE_M": 16 << at} for at in range(4)]


class Model:
    """Times of configs by size, and the intervals of a measurement of them."""

    def __init__(self, times, noise=0.0):
        #: times[config][size - 1], in us.
        self.times, self.noise = times, noise
        self.asked = []

    def time(self, size, config):
        return self.times[CONFIGS.index(config)][size - 1]

    def compare(self, pairs):
        self.asked += pairs
        return [self._one(*pair) for pair in pairs]

    def _one(self, size, config, today):
        if math.isinf(self.time(size, config)):
            return None
        ratio = math.log(self.time(size, config) / self.time(size, today))
        return LogRatio(ratio, ratio - self.noise, ratio + self.noise)

    def worse(self, rows, today):
        """The sizes at which the library would launch something slower than today."""
        keys = sorted(rows)
        count = len(self.times[0])
        picks = [(size, rows[NEAREST(keys, size)]) for size in range(1, count + 1)]
        return [
            size
            for size, config in picks
            if self.time(size, config) > self.time(size, today(size)) * math.exp(self.noise) + 1e-12
        ]


@st.composite
def situations(draw):
    """Times of four configs at 1 to 40 sizes, our rows, and the library's rows of today."""
    count = draw(st.integers(1, 40))
    # Few values, so that many sizes tie; infinite: a config that cannot be launched there.
    value = st.sampled_from([1.0, 1.1, 2.0, 4.0, math.inf])
    times = [[1.5] * count, *(draw(st.lists(value, min_size=count, max_size=count)) for _ in "abc")]
    key, config = st.integers(1, count), st.sampled_from(CONFIGS)
    rows = draw(st.dictionaries(key, config, min_size=1))
    # Today's configs can be launched: the first one always can.
    theirs = draw(st.dictionaries(key, st.just(CONFIGS[0]), min_size=1))
    for at in theirs:
        fast = draw(config)
        if all(map(math.isfinite, times[CONFIGS.index(fast)])):
            theirs[at] = fast
    return Model(times), rows, theirs, count


def guarded(model, rows, theirs, sizes):
    def today(size):
        return theirs[NEAREST(sorted(theirs), size)]

    return never_worse(rows, today, model.compare, sizes, NEAREST), today


@settings(max_examples=150)
@given(situations())
def test_no_size_is_slower_and_every_added_row_is_needed(situation):
    model, rows, theirs, count = situation
    result, today = guarded(model, rows, theirs, range(1, count + 1))
    assert model.worse(result.rows, today) == []
    assert list(result.worse) == model.worse(rows, today)
    assert set(result.added) == set(result.rows) - set(rows)
    for key in result.added:
        others = {one: config for one, config in result.rows.items() if one != key}
        assert model.worse(others, today) != []
    # Rows that were good stay.
    kept = set(rows) - set(result.replaced)
    assert all(result.rows[key] == rows[key] for key in kept)
    assert set(result.replaced) <= set(result.worse)
    # No pair is measured twice, and no launch is compared with itself.
    assert len(model.asked) == result.compared
    assert result.unknown == sum(map(math.isinf, (model.time(*pair[:2]) for pair in model.asked)))
    asked = {(pair.size, pair.config["BLOCK_SIZE_M"]) for pair in model.asked}
    assert len(asked) == len(model.asked)
    assert all(pair.config != pair.today for pair in model.asked)


@settings(max_examples=50)
@given(situations())
def test_a_table_that_is_not_worse_stays_as_it_is(situation):
    model, rows, theirs, count = situation
    result, _ = guarded(model, rows, theirs, range(1, count + 1))
    again, _ = guarded(model, result.rows, theirs, range(1, count + 1))
    assert (again.rows, again.added, again.replaced) == (result.rows, (), ())


def test_one_row_repairs_a_stretch():
    # Our config wins at 1 and 40 and loses from 15 to 26.
    slow = [4.0 if 15 <= size <= 26 else 1.0 for size in range(1, 41)]
    model = Model([[1.5] * 40, slow])
    rows = {1: CONFIGS[1], 40: CONFIGS[1]}
    result, today = guarded(model, rows, {1: CONFIGS[0]}, range(1, 41))
    assert model.worse(result.rows, today) == []
    assert result.worse == tuple(range(15, 27))
    assert len(result.added) <= 2
    assert result.rows[result.added[0]] == CONFIGS[0]
    # Where ours wins by far, it still is what the library takes.
    assert [result.rows[NEAREST(sorted(result.rows), size)] for size in (1, 40)] == [CONFIGS[1]] * 2


def test_a_difference_within_the_interval_changes_nothing():
    model = Model([[1.0] * 9, [1.02] * 9], noise=0.05)
    result, _ = guarded(model, {1: CONFIGS[1], 9: CONFIGS[1]}, {1: CONFIGS[0]}, range(1, 10))
    assert (result.added, result.replaced, result.worse) == ((), (), ())
    assert result.compared == 9


@settings(max_examples=50)
@given(situations())
def test_a_row_is_todays_unless_it_is_surely_faster(situation):
    model, rows, theirs, count = situation
    model.noise = 0.05

    def today(size):
        return theirs[NEAREST(sorted(theirs), size)]

    sizes = range(1, count + 1)
    result = never_worse(rows, today, model.compare, sizes, NEAREST, proven=True)
    assert model.worse(result.rows, today) == []
    for key in rows:
        own, usual = result.rows[key], today(key)
        faster = model.time(key, own) * math.exp(model.noise) < model.time(key, usual)
        assert own == usual or faster
        # A faster row stays.
        if model.time(key, rows[key]) * math.exp(model.noise) < model.time(key, usual):
            assert own == rows[key]


def test_a_row_that_ties_becomes_todays():
    # Our config is 2 % faster from size 5 on, and 20 % faster at 9; the interval is 5 % wide.
    model = Model([[1.0] * 9, [1.0] * 4 + [0.98] * 4 + [0.8]], noise=0.05)
    rows = dict.fromkeys((1, 5, 9), CONFIGS[1])
    result = never_worse(
        rows, lambda size: CONFIGS[0], model.compare, range(1, 10), NEAREST, proven=True
    )
    assert result.rows == {1: CONFIGS[0], 5: CONFIGS[0], 9: CONFIGS[1]}
    assert (result.added, result.replaced, result.worse) == ((), (1, 5), ())


def test_launches_that_the_library_makes_equal_are_not_compared():
    model = Model([[1.0] * 4])
    row = {**CONFIGS[0], "SPLIT_K": 4}
    result = never_worse(
        {2: row},
        lambda size: CONFIGS[0],
        model.compare,
        range(1, 5),
        NEAREST,
        lambda config: {**config, "SPLIT_K": 1},
    )
    assert (result.rows, result.compared) == ({2: row}, 0)


@given(st.sets(st.integers(1, 5000), min_size=1, max_size=20), st.integers(1, 300))
def test_sizes_between_rows_lie_in_all_gaps(keys, count):
    found = sizes_between(keys, count)
    assert found == sorted(set(found))
    assert len(found) <= count
    assert not set(found) & keys
    assert all(min(keys) < size < max(keys) for size in found)
    free = max(keys) - min(keys) + 1 - len(keys)
    assert len(found) == min(count, free)


@pytest.mark.parametrize("count", [40, 200])
def test_the_usual_rows_get_sizes_where_the_row_changes(count):
    from tuner.integrations import USUAL_SIZES

    found = sizes_between(USUAL_SIZES, count)
    assert {192, 193, 3584, 3585} <= set(found)
    assert len(found) == count
