"""More devices end a campaign sooner, and choose as well: the engine on virtual time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import virtual_gpus


@pytest.fixture(scope="module")
def found():
    return virtual_gpus.scaling([1, 2, 4])


def test_four_devices_tune_32_tasks_as_much_sooner_as_promised(found):
    assert found[1].wall_s / found[2].wall_s >= 1.9
    assert found[1].wall_s / found[4].wall_s >= virtual_gpus.BOUND
    assert all(one.busy_share >= 0.9 for one in found.values())


def test_more_devices_leave_nothing_out_and_choose_as_well(found):
    for one in found.values():
        assert one.selected == virtual_gpus.TASKS
        assert one.configs == found[1].configs
        assert one.regret_mean <= 0.005


def test_virtual_time_passes_the_same_every_time(found, tmp_path):
    paths = virtual_gpus.make_tasks(tmp_path, 6)
    assert virtual_gpus.campaign(paths, 3, 12) == virtual_gpus.campaign(paths, 3, 12)
