"""What a family calls valid is right: configs that a search would not try on a size are run there.

A table gives a workload the config of another one where `why_invalid` finds nothing wrong.
"""

from __future__ import annotations

import random
from itertools import islice

import pytest
from spaces_devices import GPU_FAMILIES, H200
from spaces_interpret import wrong
from spaces_validity import foreign_configs

from search_spaces.constraints import Constraint, Preference
from search_spaces.params import Boolean, Choice, Integer, PowerOfTwo
from search_spaces.records import Device, Workload
from search_spaces.registry import load
from search_spaces.space import SearchSpace

#: Families whose spaces are the same for all sizes, but for what a launch needs.
_WHOLE = {"topk_routing"}


@pytest.mark.matrix("interpreter")
@pytest.mark.parametrize("name", GPU_FAMILIES)
def test_configs_of_other_workloads_are_right_where_they_are_valid(name, whole):
    kernel = load(name)
    found = list(islice(foreign_configs(kernel, random.Random(11), 100), 5 if whole else 1))
    assert found or name in _WHOLE
    assert wrong([(name, workload, config) for workload, config in found]) == []


@pytest.mark.parametrize("name", GPU_FAMILIES)
def test_what_a_search_tries_is_valid(name):
    kernel, rng = load(name), random.Random(3)
    for workload in list(kernel.workloads())[:4]:
        bound = kernel.space(workload).bind(workload, H200)
        for config in bound.sample(rng, 20):
            assert bound.why_invalid(config) is None


# -- the law, on a space of its own ----------------------------------------------------------------
def _space(size: int) -> SearchSpace:
    parameters = [
        PowerOfTwo("BLOCK", 16, max(16, min(64, size))),
        Integer("stages", 1, 2),
        Choice("loads", ("pointer", "descriptor") if size % 8 == 0 else ("pointer",)),
    ]
    if size % 8 == 0:
        parameters.append(Boolean("persistent", when={"loads": ("descriptor",)}))
    if size < 100:
        parameters.append(PowerOfTwo("SPLIT", 1, 4))
    constraints = [
        Constraint("hold", lambda config, w, d: config["BLOCK"] <= 1024, "too large"),
        Preference("busy", lambda config, w, d: config["BLOCK"] <= w.size("n"), "mostly empty"),
    ]
    return SearchSpace(parameters, constraints, admits=["BLOCK", "SPLIT", Integer("stages", 1, 4)])


def why(size: int, **config: object) -> str | None:
    workload = Workload.of(n=size)
    bound = _space(size).bind(workload, Device("cuda", "d", "cuda:90"))
    feasible, valid = bound.why_not(config), bound.why_invalid(config)
    assert feasible is not None or valid is None
    return valid


PLAIN = {"BLOCK": 16, "stages": 1, "loads": "pointer"}


@pytest.mark.parametrize(
    ("size", "change", "reason"),
    [
        (99, {}, None),  # SPLIT is missing, as in the configs of larger sizes
        (200, {"SPLIT": 4}, None),
        (4, {"BLOCK": 512}, None),
        (4, {"BLOCK": 2048}, "hold: too large"),
        (4, {"stages": 4}, None),
        (4, {"stages": 5}, "stages is 5, not one of 1, 2"),
        (7, {"loads": "descriptor"}, "loads is 'descriptor', not one of 'pointer'"),
        (8, {"loads": "descriptor"}, "persistent is missing"),
        (8, {"persistent": True}, "persistent is given, but only applies when loads"),
        (8, {"blocks": 4}, "unknown parameter blocks"),
    ],
)
def test_valid_is_what_a_launch_takes(size, change, reason):
    found = why(size, **{**PLAIN, **change})
    assert found == reason if reason is None else (found or "").startswith(reason)


def test_a_parameter_that_is_not_admitted_is_needed():
    assert why(8, BLOCK=16, stages=1) == "loads is missing"
    assert why(8, BLOCK=16, loads="pointer") is None


def test_validity_is_no_part_of_what_is_searched():
    one, other = _space(200), _space(200)
    other.admits = ()
    assert one.describe() == other.describe()
    rule = ("a", lambda config, w, d: True, "reason")
    assert Constraint(*rule).describe() == Preference(*rule).describe()
