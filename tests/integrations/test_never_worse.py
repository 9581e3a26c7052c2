"""An export makes no size slower than the library's choice today, whatever the times are."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.size_range import Range
from tuner.base.log_ratio import LogRatio
from tuner.integrations import USUAL_SIZES, adapter
from tuner.integrations.size_rows import SizePart, choose_sizes, list_rows, never_worse

NEAREST = adapter("vllm-moe").nearest
CONFIGS = [{"BLOCK_SIZE_M": 16 << at} for at in range(4)]
GAIN = 0.02


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


def guarded(model, rows, theirs, **options):
    """The rows that are not worse at any size of the model, and today's configs."""
    count = len(model.times[0])

    def today(size):
        return theirs[NEAREST(sorted(theirs), size)]

    def ours(size):
        return rows[NEAREST(sorted(rows), size)]

    sizes = range(1, count + 1)
    return never_worse(ours, today, model.compare, sizes, Range(1, count), GAIN, **options), today


@settings(max_examples=150)
@given(situations())
def test_no_size_is_slower_and_a_config_of_ours_is_faster_somewhere(situation):
    model, rows, theirs, count = situation
    result, today = guarded(model, rows, theirs)
    assert model.worse(result.rows, today) == []
    finite = [
        size
        for size in model.worse(rows, today)
        if math.isfinite(model.time(size, rows[NEAREST(sorted(rows), size)]))
    ]
    assert list(result.worse) == finite
    sizes = range(1, count + 1)
    for size in sizes:
        ours, picked = (
            model.time(size, each[NEAREST(sorted(each), size)]) for each in (rows, result.rows)
        )
        assert picked <= min(ours, model.time(size, today(size))) * (1 + GAIN) + 1e-12
    for key, config in result.rows.items():
        near = [one for one in sizes if NEAREST(sorted(result.rows), one) == key]
        alike = any(config == today(one) for one in near)
        assert alike or any(model.time(one, config) < model.time(one, today(one)) for one in sizes)
    # No pair is measured twice, and no launch is compared with itself.
    assert len(model.asked) == result.compared
    assert result.unknown == sum(map(math.isinf, (model.time(*pair[:2]) for pair in model.asked)))
    assert len({pair.size for pair in model.asked}) == len(model.asked)
    assert all(pair.config != pair.today for pair in model.asked)


@settings(max_examples=50)
@given(situations())
def test_a_table_that_is_not_worse_gets_no_more_rows(situation):
    model, rows, theirs, _ = situation
    result, _ = guarded(model, rows, theirs)
    again, _ = guarded(model, result.rows, theirs)
    assert again.worse == ()
    assert len(again.rows) <= len(result.rows)


def test_todays_config_takes_the_part_in_which_ours_loses():
    # Our config wins at 1 and 40 and loses from 15 to 26.
    slow = [4.0 if 15 <= size <= 26 else 1.0 for size in range(1, 41)]
    model = Model([[1.5] * 40, slow])
    result, _ = guarded(model, {1: CONFIGS[1], 40: CONFIGS[1]}, {1: CONFIGS[0]})
    assert result.worse == tuple(range(15, 27))
    assert list(result.rows.values()) == [CONFIGS[1], CONFIGS[0], CONFIGS[1]]
    keys = sorted(result.rows)
    picked = [result.rows[NEAREST(keys, size)] == CONFIGS[1] for size in range(1, 41)]
    assert picked == [each == 1.0 for each in slow]


@pytest.mark.parametrize(("last", "kept"), [(0.8, 1), (1.0, 0), (0.98, 0)])
def test_a_config_stays_where_it_is_surely_faster_at_some_size_and_becomes_todays_else(last, kept):
    """Of two configs that are within the interval of each other at all sizes but the last one."""
    model = Model([[1.0] * 9, [0.98] * 8 + [last]], noise=0.05)
    result, _ = guarded(model, {1: CONFIGS[1], 9: CONFIGS[1]}, {1: CONFIGS[0]})
    assert list(result.rows.values()) == [CONFIGS[kept]]
    assert (result.worse, result.compared) == ((), 9)


def test_launches_that_the_library_makes_equal_are_not_compared():
    model = Model([[1.0] * 4])
    row = {**CONFIGS[0], "SPLIT_K": 4}
    result, _ = guarded(
        model, {2: row}, {1: CONFIGS[0]}, launched=lambda config: {**config, "SPLIT_K": 1}
    )
    assert (list(result.rows.values()), result.compared) == ([row], 0)


@given(st.sets(st.integers(1, 5000), min_size=1, max_size=20), st.integers(1, 300))
def test_sizes_to_compare_are_the_keys_the_switches_and_others_of_the_range(keys, count):
    found = choose_sizes(keys, Range(min(keys), max(keys)), count)
    assert found == sorted(set(found))
    assert keys <= set(found)
    assert all(min(keys) <= size <= max(keys) for size in found)
    assert len(found) <= max(count, 3 * len(keys))


@pytest.mark.parametrize("count", [40, 200])
def test_the_usual_rows_get_sizes_where_the_row_changes(count):
    found = choose_sizes(USUAL_SIZES, Range(1, 4096), count)
    assert {192, 193, 3584, 3585} <= set(found)
    assert len(found) == max(count, 49)


def parts_of(cuts, last):
    """Parts of 1 to `last` that end at the cuts, each with a config of its own."""
    ends = itertools.pairwise([0, *sorted(cuts), last])
    return [SizePart(low + 1, high, {"at": at}) for at, (low, high) in enumerate(ends)]


@st.composite
def divided_ranges(draw):
    last = draw(st.integers(1, 12))
    cuts = draw(st.sets(st.integers(1, max(1, last - 1)), max_size=4)) - {last}
    return parts_of(cuts, last)


def gives(keys_to_configs, parts):
    keys = sorted(keys_to_configs)
    return all(
        keys_to_configs[NEAREST(keys, size)] == part.config
        for part in parts
        for size in range(part.low, part.high + 1)
    )


@settings(max_examples=150)
@given(divided_ranges())
def test_no_fewer_rows_give_a_function_of_the_size(parts):
    rows = list_rows(parts)
    assert gives(rows, parts)
    configs = {size: part.config for part in parts for size in range(part.low, part.high + 1)}
    for count in range(1, len(rows)):
        for keys in itertools.combinations(configs, count):
            assert not gives({key: configs[key] for key in keys}, parts)


@given(st.sets(st.integers(1, 16383), max_size=40))
def test_rows_of_a_long_range_give_every_switch(cuts):
    parts = parts_of(cuts, 16384)
    rows = list_rows(parts)
    keys = sorted(rows)
    assert len(parts) <= len(rows) <= 2 * len(parts) - 1
    for part in parts:
        assert {rows[NEAREST(keys, size)]["at"] for size in part[:2]} == {part.config["at"]}
