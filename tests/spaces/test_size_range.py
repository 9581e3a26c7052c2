"""Ranges of sizes: what they contain, how they are weighed, and where the farm looks."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.records import Workload
from search_spaces.size_range import (
    Range,
    RangePlace,
    find_middle,
    list_fixed_sizes,
    list_places,
)


@st.composite
def ranges(draw) -> Range:
    if draw(st.booleans()):
        sizes = st.dictionaries(st.integers(1, 5000), st.floats(0.01, 100), min_size=1, max_size=9)
        return Range.of_sizes(draw(sizes))
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        low, more, step = draw(
            st.tuples(st.integers(1, 900), st.integers(0, 900), st.integers(1, 70))
        )
        parts.append(f"{low}..{low + more} step {step}")
    return Range.parse(", ".join(parts))


def members(sizes: Range) -> list[int]:
    return [size for size in range(1, sizes.high + 1) if size in sizes]


@given(ranges())
def test_a_range_survives_json_and_ends_are_members(sizes):
    assert Range.from_json(json.loads(json.dumps(sizes.to_json()))) == sizes
    assert sizes.low in sizes
    assert sizes.low == members(sizes)[0]
    assert set(sizes.draw(50, seed=1)) <= set(members(sizes))
    assert sizes.draw(20, seed=1) == sizes.draw(20, seed=1)


@given(ranges(), st.integers(1, 3000))
def test_a_size_snaps_to_a_nearest_member(sizes, size):
    snapped = sizes.snap(size)
    assert snapped in sizes
    if size in sizes:
        assert snapped == size


@given(ranges(), st.integers(1, 2000))
def test_shares_of_parts_add_up(sizes, cut):
    whole = sizes.weigh(1, 10**6)
    assert whole == pytest.approx(1.0)
    parts = sizes.weigh(1, cut) + sizes.weigh(cut + 1, 10**6)
    assert parts == pytest.approx(1.0)
    assert 0.0 <= sizes.weigh(cut, cut + 10) <= 1.0 + 1e-9


def test_a_histogram_weighs_its_sizes():
    sizes = Range.of_sizes({16: 90.0, 4096: 10.0})
    assert sizes.weigh(1, 100) == pytest.approx(0.9)
    drawn = sizes.draw(1000, seed=0)
    assert set(drawn) == {16, 4096}
    assert 850 < drawn.count(16) < 950


@given(ranges())
def test_every_size_to_look_at_lies_between_two_that_come_before(sizes):
    seen: set[int] = set()
    for size, between in list_places(sizes).items():
        assert size in sizes
        if between is not None:
            assert set(between) <= seen
            assert between[0] < size < between[1]
        seen.add(size)
    assert {sizes.low, max(members(sizes))} <= seen
    assert len(seen) <= 100


@given(ranges())
def test_fixed_sizes_are_members_from_end_to_end(sizes):
    fixed = list_fixed_sizes(sizes)
    assert set(fixed) <= set(members(sizes))
    assert fixed == sorted(fixed)
    assert (fixed[0], fixed[-1]) == (sizes.low, sizes.high)


def test_the_middle_is_a_size_that_people_choose():
    assert find_middle(Range(1, 8192), 1, 8192) == 88
    assert find_middle(Range(64, 8192, step=64), 64, 8192) == 704
    assert find_middle(Range(7, 8), 7, 8) is None
    assert find_middle(Range.of_sizes({1: 1, 17: 1, 100: 1}), 1, 100) == 17
    # Where sizes have weights, the farm looks at those that are launched most.
    assert find_middle(Range.of_sizes({1: 1, 9: 2, 10: 1, 30: 5, 99: 9, 100: 1}), 1, 100) == 30


def test_pieces_are_written_as_they_are_read():
    assert f"{Range.parse('64..8192 step 64 , 1..64')}" == "1..64, 64..8192 step 64"
    assert repr(Range(1, 8)) == "Range(1..8)"
    assert f"{Range.of_sizes(dict.fromkeys(range(1, 9), 1))}" == "8 sizes of 1..8"


def test_tasks_of_one_range_share_their_other_dims():
    place = RangePlace((("K", Range(8, 64)), ("M", Range(1, 9))), 0.02, 8, (1, 9))
    assert (place.dim, place.sizes) == ("M", Range(1, 9))
    one, other = Workload.of(M=1, N=2, K=8), Workload.of(K=8, M=5, N=2)
    assert place.rest_of(one) == place.rest_of(other)
    assert place.rest_of(one) != place.rest_of(Workload.of(M=1, N=3, K=8))
    assert RangePlace.from_json(json.loads(json.dumps(place.to_json()))) == place


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Range(9, 3), "9..3 is empty"),
        (lambda: Range(0, 3), "0 is no size"),
        (lambda: Range(1, 2**31), f"{2**31} is no size"),
        (lambda: Range(1, True), "True is no size"),
        (lambda: Range(1.5, 3), "1.5 is no size"),
        (lambda: Range(1, 9, step=0), "0 is no size"),
        (lambda: Range.parse(""), "'' is no range"),
        (lambda: Range.parse("1-8"), "'1-8' is no range; write 1..8192"),
        (lambda: Range.parse("1..8 step"), "no range"),
        (lambda: Range.of_sizes({}), "without a size"),
        (lambda: Range.of_sizes({4: -1}), "the weight of 4 is -1, not above 0"),
        (lambda: Range.of_sizes({4: float("nan")}), "not above 0"),
        (lambda: Range.of_sizes({4: "x"}), "not a number"),
        (lambda: Range.of_sizes(dict.fromkeys(range(1, 100_002), 1)), "at most 100000"),
    ],
)
def test_what_is_no_range_is_said(make, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        make()


def test_between_near_sizes_lies_one_that_no_block_divides():
    assert find_middle(Range(1, 8192), 1024, 2048) == 1407
    assert find_middle(Range(1, 8192), 88, 128) == 103
    assert find_middle(Range(64, 8192, step=64), 1024, 2048) == 1408
    assert find_middle(Range(1, 8192), 8, 16) == 11
