"""Laws of search spaces, over randomly declared ones."""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from itertools import product
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.bound import _ENUMERATED
from search_spaces.errors import SpaceError
from search_spaces.params import Boolean, Choice, Integer, PowerOfTwo
from search_spaces.records import Device, Workload, config_key
from search_spaces.space import Constraint, SearchSpace

DEVICE = Device("cuda", "card", "cuda:90", sm_count=4)
WORKLOAD = Workload.of(n=3)


@st.composite
def declarations(draw):
    """Up to five parameters, some conditional on earlier ones, under random rules."""
    parameters = []
    for at in range(draw(st.integers(1, 5))):
        when = None
        if parameters and draw(st.booleans()):
            other = draw(st.sampled_from(parameters))
            chosen = draw(st.lists(st.sampled_from(other.values()), min_size=1, max_size=2))
            when = {other.name: tuple(chosen)}
        name, low = f"p{at}", draw(st.integers(0, 3))
        parameters.append(
            draw(
                st.sampled_from(
                    [
                        PowerOfTwo(name, 1 << low, 1 << (low + at), when=when),
                        Integer(name, low, low + 2 * at, step=2, when=when),
                        Choice(name, ("a", None, 1, True, 2.5)[: at + 1], when=when),
                        Boolean(name, when=when),
                    ]
                )
            )
        )
    modulus = draw(st.integers(1, 4))

    def rule(config, workload, device):
        return len(config_key(config)) % modulus != workload.size("n") % modulus or modulus == 1

    names = st.lists(st.sampled_from([item.name for item in parameters]), max_size=3)
    rules = [rule, *(rule_of(read, draw(st.booleans())) for read in draw(st.lists(names)))]
    return SearchSpace(
        parameters,
        [Constraint(f"rule{at or ''}", item, "a rule says so") for at, item in enumerate(rules)],
    )


def rule_of(names, ends_early):
    """A rule that reads the parameters, or fewer: what it reads next hangs on what it has read."""

    def rule(config, workload, device):
        seen = ""
        for name in names:
            seen += repr(config[name]) if name in config else "-"
            if ends_early and crc32(seen.encode()) % 3 == 0:
                break
        return crc32(seen.encode()) % 4 != 1

    return rule


def bound_of(space):
    return space.bind(WORKLOAD, DEVICE)


def raw_configs(bound):
    """Every config a brute-force reader of the declaration would write down."""
    found = {}
    for values in product(*[(*item.values(), ...) for item in bound.parameters]):
        config = {
            item.name: value
            for item, value in zip(bound.parameters, values, strict=True)
            if value is not ...
        }
        reason = bound.why_not(config)
        if reason is None or reason.startswith("rule"):
            found[config_key(config)] = config
    return list(found.values())


@settings(max_examples=80)
@given(declarations())
def test_enumeration_is_the_feasible_part_of_the_product(space):
    bound = bound_of(space)
    raw = raw_configs(bound)
    listed = list(bound.enumerate())
    assert bound.cardinality() == len(raw)
    assert bound.size() == len(listed) == len({config_key(config) for config in listed})
    feasible = {config_key(config) for config in raw if bound.feasible(config)}
    assert {config_key(config) for config in listed} == feasible
    assert listed == list(bound_of(space).enumerate())


@settings(max_examples=80)
@given(declarations(), st.integers(0, 99), st.integers(1, 20))
def test_samples_are_feasible_distinct_and_seeded(space, seed, n):
    bound = bound_of(space)
    drawn = bound.sample(random.Random(seed), n)
    assert len(drawn) == min(n, bound.size())
    assert len({config_key(config) for config in drawn}) == len(drawn)
    assert all(bound.feasible(config) for config in drawn)
    assert drawn == bound_of(space).sample(random.Random(seed), n)


@settings(max_examples=80)
@given(declarations())
def test_codes_neighbours_and_completion(space):
    bound = bound_of(space)
    unconditional = all(not item.when for item in bound.parameters)
    for config in list(bound.enumerate())[:30]:
        codes = bound.encode(config)
        decoded = {
            item.name: item.decode(codes[item.name])
            for item in bound.parameters
            if (item.name in codes)
        }
        assert config_key(decoded) == config_key(config)
        assert bound.complete(config) == config
        for other in bound.neighbours(config):
            assert bound.feasible(other)
            assert config_key(other) != config_key(config)
            if unconditional:
                assert sum(other[name] is not config[name] for name in config) == 1
                assert config in bound.neighbours(other)


@settings(max_examples=60)
@given(declarations(), st.data())
def test_completion_is_idempotent_and_drops_what_does_not_apply(space, data):
    bound = bound_of(space)
    partial = {
        item.name: data.draw(st.sampled_from(item.values()))
        for item in bound.parameters
        if data.draw(st.booleans())
    }
    whole = bound.complete({**partial, "stranger": 1})
    assert bound.complete(whole) == whole
    reason = bound.why_not(whole)
    assert reason is None or reason.startswith("rule")


@settings(max_examples=60)
@given(declarations(), st.data())
def test_restriction_keeps_exactly_the_points_inside(space, data):
    bound = bound_of(space)
    item = data.draw(st.sampled_from(bound.parameters))
    allowed = data.draw(st.lists(st.sampled_from(item.values()), min_size=1, max_size=3))
    keys = {config_key({"v": value}) for value in allowed}
    inside = [
        config
        for config in bound.enumerate()
        if item.name not in config or config_key({"v": config[item.name]}) in keys
    ]
    narrow = bound.restrict({item.name: allowed})
    assert list(narrow.enumerate()) == inside
    assert list(narrow.restrict({item.name: allowed}).enumerate()) == inside
    for config in inside[:10]:
        assert narrow.encode(config) == bound.encode(config)
        assert narrow.complete(config) == config


def test_sampling_is_uniform_over_points_not_over_draws():
    rare = [Integer("extra", 1, 9, when={"kind": ("many",)})]
    small = SearchSpace([Choice("kind", ("one", "many")), *rare])
    huge = SearchSpace([*small.parameters, Integer("z", 1, _ENUMERATED)])
    for space, restrict in ((small, {}), (huge, {})):
        bound = space.bind(WORKLOAD, DEVICE).restrict(restrict)
        assert (bound.cardinality() > _ENUMERATED) == (space is huge)
        rng, seen = random.Random(5), Counter()
        for _ in range(1500):
            (config,) = bound.sample(rng, 1)
            seen[config.get("extra", 0)] += 1
        # Ten kinds of point, 150 of each expected, standard deviation 12.
        assert set(seen) == set(range(10))
        assert max(abs(count - 150) for count in seen.values()) < 60


def test_huge_spaces_are_counted_and_sampled_without_being_walked():
    axes = [Integer(f"a{at}", 0, 99) for at in range(6)]
    even = Constraint("even", lambda c, w, d: sum(c.values()) % 2 == 0, "the sum is odd")
    bound = SearchSpace(axes, [even]).bind(WORKLOAD, DEVICE)
    assert bound.cardinality() == 10**12
    drawn = bound.sample(random.Random(1), 50)
    assert len(drawn) == 50
    assert all(bound.feasible(config) for config in drawn)
    never = Constraint("never", lambda *_: False, "nothing is allowed")
    assert SearchSpace(axes, [never]).bind(WORKLOAD, DEVICE).sample(random.Random(1), 2) == []


def test_why_not_names_the_thing():
    space = SearchSpace(
        [PowerOfTwo("BLOCK", 16, 64), Integer("stages", 2, 4, when={"BLOCK": (64,)})],
        [Constraint("memory", lambda c, w, d: c.get("stages") != 4, "it does not fit")],
    )
    bound = space.bind(WORKLOAD, DEVICE)
    assert bound.why_not({"BLOCK": 16}) is None
    assert bound.why_not({"BLOK": 16}) == "unknown parameter BLOK; did you mean 'BLOCK'?"
    assert bound.why_not({}) == "BLOCK is missing"
    assert bound.why_not({"BLOCK": 64}) == "stages is missing"
    assert bound.why_not({"BLOCK": 32.0}) == "BLOCK is 32.0, not one of 16, 32, 64"
    assert bound.why_not({"BLOCK": True}) == "BLOCK is True, not one of 16, 32, 64"
    assert "only applies when BLOCK is 64" in str(bound.why_not({"BLOCK": 16, "stages": 2}))
    assert bound.why_not({"BLOCK": 64, "stages": 4}) == "memory: it does not fit"


def test_a_constraint_that_raises_is_named_with_the_config():
    space = SearchSpace(
        [Boolean("flag")],
        [Constraint("broken", lambda c, w, d: c["missing"] > 0, "never said")],
        kernel="mine",
    )
    with pytest.raises(SpaceError) as caught:
        space.bind(WORKLOAD, DEVICE).size()
    for part in ("mine", "broken", "KeyError", "missing", '{"flag":false}'):
        assert part in caught.value.message


def test_an_empty_space_names_the_constraint_to_blame():
    space = SearchSpace(
        [Integer("x", 1, 10)],
        [
            Constraint("mild", lambda c, w, d: c["x"] > 1, "one is too few"),
            Constraint("harsh", lambda c, w, d: c["x"] < 2, "more than one is too many"),
        ],
        kernel="mine",
    )
    with pytest.raises(SpaceError, match=r"none of 10 .*harsh .*rules out 9 of them"):
        space.bind(WORKLOAD, DEVICE).require_feasible()


def test_restricting_wrongly_says_what_is_allowed():
    bound = SearchSpace([PowerOfTwo("BLOCK", 16, 64)]).bind(WORKLOAD, DEVICE)
    with pytest.raises(SpaceError, match=r"no parameter BLOCKS; did you mean 'BLOCK'\?"):
        bound.restrict({"BLOCKS": [16]})
    for wrong in ([48], [], "16", [16, "<script>"]):
        with pytest.raises(SpaceError, match="BLOCK cannot be") as caught:
            bound.restrict({"BLOCK": wrong})
        assert "16, 32, 64" in caught.value.hint


BAD = [
    lambda: PowerOfTwo("p", 3, 8),
    lambda: PowerOfTwo("p", 8, 4),
    lambda: PowerOfTwo("p", 0, 4),
    lambda: Integer("p", 4, 3),
    lambda: Integer("p", 0, 4, step=0),
    lambda: Integer("p", 0, 4.5),
    lambda: Choice("p", ()),
    lambda: Choice("p", "abc"),
    lambda: Choice("p", (1, 2, 1)),
    lambda: Choice("p", (object(),)),
    lambda: Choice("p", (float("nan"),)),
    lambda: Choice("p", (1.0, float("inf"))),
    lambda: Choice("p", (np.float32("-inf"),)),
    lambda: Boolean("p", when={"p": (True,)}),
    lambda: Boolean("p", when={"q": ()}),
    lambda: SearchSpace([Boolean("p"), Integer("p", 0, 1)]),
    lambda: SearchSpace([Boolean("p", when={"q": (True,)}), Boolean("q")]),
    lambda: SearchSpace([Boolean("q"), Boolean("p", when={"q": (1,)})]),
]


@pytest.mark.parametrize("declare", BAD)
def test_bad_declarations_name_the_parameter(declare):
    with pytest.raises(SpaceError, match="parameter p"):
        declare()


def test_descriptions_are_json_and_change_with_the_constraint():
    def described(limit):
        check = Constraint("limit", lambda c, w, d: c["x"] < limit, "too large")
        return SearchSpace([Integer("x", 1, 9)], [check]).describe()

    assert json.loads(json.dumps(described(3))) == described(3)
    assert described(3) != described(4)
    parameter = Choice("c", (1, None), when={"x": (1,)})
    assert pickle.loads(pickle.dumps(parameter)) == parameter


def test_features_that_cannot_answer_are_named_with_place_and_remedy():
    def features(config, workload, device):
        return (config["missing"],)

    bound = bound_of(SearchSpace([Integer("p", 1, 3)], kernel="k", features=features))
    with pytest.raises(SpaceError, match=r"k \[n=3\].* its features raise KeyError") as caught:
        bound.features({"p": 1})
    assert "config.get" in caught.value.hint
    assert bound_of(SearchSpace([Integer("p", 1, 3)])).features({"p": 1}) == ()


@pytest.mark.parametrize(
    "read",
    [
        lambda config: list(config),
        lambda config: config.keys(),
        lambda config: config.items(),
        lambda config: {**config},
        lambda config: dict(config),
        lambda config: config | {},
        lambda config: json.loads(json.dumps(config)),
        lambda config: "{a} {b}".format(**config),
        lambda config: f"{config}",
    ],
)
def test_however_a_rule_reads_a_config_it_is_asked_of_all_that_differ(read):
    def rule(config, workload, device):
        return "0" in f"{list(read(config))}" or "0" in f"{read(config)}"

    space = SearchSpace(
        [Integer("a", 0, 1), Integer("b", 0, 1)], [Constraint("rule", rule, "it has a zero")]
    )
    bound = bound_of(space)
    points = [{"a": a, "b": b} for a in (0, 1) for b in (0, 1)]
    assert list(bound.enumerate()) == [item for item in points if bound.feasible(item)]


def test_a_rule_is_asked_once_for_what_it_reads():
    asked = []

    def rule(config, workload, device):
        asked.append(config["b"])
        return config["b"] != 1

    parameters = [Integer(name, 0, 2) for name in "abc"]
    bound = bound_of(SearchSpace(parameters, [Constraint("rule", rule, "b is not one")]))
    assert bound.size() == 18
    assert sorted(asked) == [0, 1, 2]
