"""The engine in virtual time: more devices finish a campaign sooner and choose as well."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import busy_processors
import multi_gpu
import multi_gpu_run
import virtual_gpus

from search_spaces.recorded.recorded_kernel import RecordedSpace
from tuner.engine import Engine
from workers.backends.simulated.build import simulate_build
from workers.job_records import BuildJob, KernelRef, MeasureJob, Mode, PoolSpec
from workers.pools.virtual import VirtualPool


@pytest.fixture(scope="module")
def found():
    return virtual_gpus.scaling([1, 2, 4])


def test_four_devices_finish_32_tasks_sooner_by_the_documented_factor(found):
    assert found[1].wall_s / found[2].wall_s >= 1.9
    assert found[1].wall_s / found[4].wall_s >= virtual_gpus.BOUND
    assert all(one.busy_share >= 0.9 for one in found.values())


def test_more_devices_tune_every_task_and_choose_as_well(found):
    for one in found.values():
        assert one.selected == virtual_gpus.TASKS
        assert one.configs == found[1].configs
        assert one.regret_mean <= 0.005


def test_virtual_time_is_deterministic(found, tmp_path):
    paths = virtual_gpus.make_tasks(tmp_path, 6)
    assert virtual_gpus.campaign(paths, 3, 12) == virtual_gpus.campaign(paths, 3, 12)


class CheckedEngine(Engine):
    """An engine whose state is checked after every event."""

    def handle(self, event, now):
        instructions = super().handle(event, now)
        self.validate()
        return instructions


def test_the_engine_is_consistent_after_every_event(tmp_path, monkeypatch):
    monkeypatch.setattr(virtual_gpus, "Engine", CheckedEngine)
    virtual_gpus.campaign(virtual_gpus.make_tasks(tmp_path, 3), 2, 12)


def finals_of(path, candidates):
    """The race of the fastest configs of a recorded space."""
    space = RecordedSpace.load(path)
    ref = KernelRef(f"recorded:{path}")
    timed = sorted((c for c in space.configs if c.median_us), key=lambda c: c.median_us)
    artifacts = tuple(
        simulate_build(BuildJob("b", ref, space.workload, one.config, space.device))
        for one in timed[:candidates]
    )
    return MeasureJob("f", ref, space.workload, artifacts, Mode.RACE)


def test_the_same_finals_on_every_device_agree(tmp_path):
    """Devices of one seed read the same; drift is shared by what is timed together."""
    (path,) = virtual_gpus.make_tasks(tmp_path, 1)
    pool = VirtualPool(PoolSpec("virtual", {"simulated": 3}, 3))
    pool.start()
    workers = sorted(event.worker.worker_id for event in pool.poll(1.0))
    few, many = finals_of(path, 3), finals_of(path, 12)
    assert multi_gpu_run.compared(pool, workers, {"few": few}) == {}
    found = multi_gpu_run.compared(pool, workers, {"few": few, "many": many})
    assert list(found["finals"]) == ["many"]
    assert found["finals"]["many"]["finalists"] == 12
    assert found["finals"]["many"]["taus"] == [1.0, 1.0]
    assert found["worst"] <= multi_gpu.AGREE


def test_the_campaign_has_32_tasks_whose_defaults_can_be_tried():
    from tuner import settings
    from tuner.campaign.task_specs import closest
    from tuner.campaign.tasks import requested_tasks
    from workers import device

    loaded, _ = settings.load(multi_gpu.CONFIG, {})
    tasks = requested_tasks(loaded.campaigns["many"])
    assert len(tasks) == len({(t.kernel.name, t.workload) for t in tasks}) == 32
    h200 = device.offline("cuda:90")
    for task in tasks:
        bound = task.bind(h200)
        default = task.kernel.default_config(task.workload, h200)
        assert bound.feasible(default) or bound.feasible(closest(bound, default)), task.label
        assert bound.size() >= loaded.campaigns["many"].budget.trials


def test_speedups_are_told_against_one_device():
    def run(wall_s, winner):
        return {"wall_s": wall_s, "winners": {"t": {"winner": winner, "tie_set": ["a", "b"]}}}

    document = {"gpus": {"1": run(100.0, "a"), "4": run(26.0, "b"), "2": {"problem": "late"}}}
    multi_gpu.summarise(document)
    assert document["speedup"] == {"1": 1.0, "4": 3.846}
    assert document["winners"]["4 against 1"] == {"tasks": 1, "same": 0, "in_the_other_tie_set": 1}
    assert document["passed"]["speedup_of_4"] is True


def test_occupied_processors_are_busy_and_then_released():
    from workers import device

    (processor, *_) = os.sched_getaffinity(0)
    with busy_processors.occupied({processor}, device.offline("cuda:90")):
        child = multiprocessing.active_children()[-1]
        end = time.monotonic() + 60
        while os.sched_getaffinity(child.pid) != {processor} and time.monotonic() < end:
            time.sleep(0.1)
        assert os.sched_getaffinity(child.pid) == {processor}
    assert not child.is_alive()
