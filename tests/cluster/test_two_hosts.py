"""The short form of `test_hosts.py`, for every change: one of two hosts loses its power."""

from __future__ import annotations

import pytest
from clusters import Cluster
from farms import Farm, assert_sound, small_space
from host_faults import HostFarm, follow, lose_power
from hosts import Network, may_make_hosts

pytestmark = [pytest.mark.ray, pytest.mark.slow]
#: A dead host is noticed within seconds.
CHECKS = {"RAY_health_check_period_ms": "500", "RAY_health_check_timeout_ms": "2000"}
TRIALS = 40


def test_a_campaign_outlives_one_of_two_hosts(tmp_path):
    # A container without CAP_NET_ADMIN lacks a permission, not a component: no failure, also in CI.
    if not may_make_hosts():
        pytest.skip("may not make and connect network namespaces (root, CAP_NET_ADMIN and `ip`)")
    alone = Farm(tmp_path / "alone", trials=TRIALS, space=small_space(build_s=0.003))
    alone.finish_quickly()
    with Network() as network, Cluster(network=network) as cluster:
        cluster.head(cpus=0, **CHECKS)
        for name in ("one", "three"):
            cluster.add(name, cpus=2)
        farm = HostFarm(
            tmp_path / "farm", cluster=cluster, space=alone.space, trials=TRIALS, time_scale=10
        )
        follow(farm, lose_power, before=8)
    assert_sound(farm)
    assert farm.task().selection.winner == alone.task().selection.winner
