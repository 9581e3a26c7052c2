"""Hosts of their own that die, are cut off or slow: nothing is lost or doubled, the same wins."""

from __future__ import annotations

import os

import pytest
from farms import assert_sound
from host_faults import FAULTS, follow, lose_head, make_farm, started_cluster
from hosts import may_make_hosts

pytestmark = [pytest.mark.full, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def cluster():
    if not may_make_hosts() and not os.environ.get("CI"):
        pytest.skip("network namespaces need root and `ip`")
    with started_cluster() as made:
        yield made


@pytest.fixture(scope="module")
def winner(tmp_path_factory):
    """What wins where nothing happens."""
    if not may_make_hosts() and not os.environ.get("CI"):
        pytest.skip("network namespaces need root and `ip`")
    with started_cluster() as made:
        farm = make_farm(made, tmp_path_factory.mktemp("undisturbed") / "farm")
        farm.finish()
    return farm.task().selection.winner


@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "nothing"])
def test_a_campaign_outlives_what_happens_to_a_host(cluster, tmp_path, winner, fault):
    farm = make_farm(cluster, tmp_path / "farm")
    follow(farm, FAULTS[fault])
    assert_sound(farm)
    assert farm.task().selection.winner == winner


def test_the_same_command_resumes_on_a_new_head(cluster, tmp_path, winner):
    farm = make_farm(cluster, tmp_path / "farm")
    code, printed = lose_head(farm)
    assert code != 0, printed
    stored = farm.count()
    with started_cluster() as farm.cluster:
        farm.finish()
    assert farm.count() == farm.trials > stored
    assert_sound(farm)
    assert farm.task().selection.winner == winner
