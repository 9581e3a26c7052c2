"""Which libraries a command begins to load for its workers before it has imported a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from search_spaces import registry
from tuner.campaign import RunOptions, early_start, pool_spec_of
from tuner.settings import validate
from workers import pools


@pytest.fixture
def loaded(monkeypatch):
    """The kinds whose libraries would be loaded, in place of loading them."""
    kinds: list[str] = []
    monkeypatch.setattr(pools, "prestart", lambda found, *_, **options: kinds.extend(found))
    return kinds


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN))
def test_the_kinds_of_a_built_in_family_are_known_by_its_name(name):
    assert registry.kinds_by_name(name) == registry.load(name).kinds


def test_the_kinds_of_other_kernels_are_not():
    assert registry.kinds_by_name("kernels.py:example") is None
    assert registry.kinds_by_name("recorded:space.json") == ("simulated",)


@pytest.mark.parametrize(
    ("kernel", "targets"),
    [
        ("cpu_pointwise", ["cpu"]),
        ("cpu_pointwise", ["cpu", "cuda", "cuda:90"]),
        ("softmax", ["cuda"]),
        ("softmax", ["cpu", "cuda", "cuda:90"]),
        ("softmax", ["hip:gfx942"]),
    ],
)
def test_a_campaign_loads_what_its_pool_takes(loaded, kernel, targets):
    campaign = {"targets": targets, "tasks": [{"kernel": kernel}]}
    settings = validate({"pool": {"kind": "local"}, "campaigns": {"c": campaign}}, str)
    early_start.load_workers(settings, "c", Path.cwd())
    spec = pool_spec_of(settings, "c", options=RunOptions())
    assert sorted(loaded) == sorted(spec.runners)


def test_a_kernel_of_the_user_is_taken_for_one_of_this_machine(loaded):
    early_start.begin([(None, [])])
    assert set(loaded) <= {"cuda", "hip"} or loaded == ["cpu"]
    assert loaded


@pytest.mark.parametrize("targets", [["tpu"], ["cuda:90", "tpu:4"]])
def test_an_unknown_target_is_left_to_the_run(loaded, targets):
    early_start.begin([(None, targets)])
    assert loaded == []


@pytest.mark.parametrize(
    ("address", "expected"), [(None, ["cpu"]), ("local", ["cpu"]), ("ray://head:10001", [])]
)
def test_a_cluster_loads_its_own_libraries(loaded, monkeypatch, address, expected):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    campaign = {"targets": ["cpu"], "tasks": [{"kernel": "cpu_pointwise"}]}
    pool = {"kind": "ray", "address": address}
    settings = validate({"pool": pool, "campaigns": {"c": campaign}}, str)
    early_start.load_workers(settings, "c", Path.cwd())
    assert loaded == expected
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    if address is None:
        early_start.load_workers(settings, "c", Path.cwd())
        assert loaded == expected
