"""The engine in virtual time: more devices finish a campaign sooner and choose as well."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import invariants
import multi_gpu
import multi_gpu_run
from acceptance.simulated_worlds import instructions
from virtual_pool import VirtualPool

from search_spaces.recorded.recorded_kernel import RecordedKernel, RecordedSpace
from tuner import strategies
from tuner.engine import Engine, Finish, Select, TaskBudget, TaskSpec
from workers.backends.simulated.build import simulate_build
from workers.job_records import BuildJob, KernelRef, MeasureJob, Mode, PoolSpec

#: Trials of a task, and the builders of a device's 16 cores, less one core that launches.
TRIALS, BUILDERS_PER_GPU = 40, 15
#: Seconds of a candidate, of a task's inputs and references, and of the fresh process of a repeated
#: confirmation: somewhat longer than on an H200.
HOST_S, SETUP_S, FRESH_S = 0.03, 0.3, 4.0


@dataclass(frozen=True, slots=True)
class Scaled:
    """One campaign: virtual seconds, the share of them in which devices worked, and the results."""

    wall_s: float
    busy_share: float
    configs: int
    selected: int
    regret_mean: float


def _spec(number: int, path: Path, trials: int) -> TaskSpec:
    space = RecordedSpace.load(path)
    kernel = RecordedKernel(space)
    bound = kernel.space(space.workload).bind(space.workload, kernel.device)
    return TaskSpec(
        task_id=number,
        label=space.kernel,
        kernel=KernelRef(f"recorded:{path}"),
        workload=space.workload,
        device=kernel.device,
        space=bound,
        strategy=strategies.create("exhaustive", bound, number, {"shuffle": True}),
        default=dict(space.default),
        budget=TaskBudget(trials=trials),
        finalists=16,
    )


def campaign(
    paths: list[Path], devices: int, trials: int = TRIALS, engine_type: type[Engine] = Engine
) -> Scaled:
    """The campaign on a number of devices; the result is deterministic."""
    spaces = [RecordedSpace.load(path) for path in paths]
    specs = [_spec(number, path, trials) for number, path in enumerate(paths)]
    builders = devices * BUILDERS_PER_GPU
    pool = VirtualPool(
        PoolSpec("virtual", {"simulated": devices}, builders, options={"simulated": {"seed": 1}}),
        host_s=HOST_S,
        setup_s=SETUP_S,
        fresh_s=FRESH_S,
    )
    engine = engine_type(specs, builders=builders)
    searches = {task.spec.task_id: task.search for task in engine.tasks}
    end, regrets = None, []
    for instruction in instructions(engine, pool):
        if isinstance(instruction, Select):
            space, winner = spaces[instruction.task_id], instruction.selection.winner
            tried = [t.config for t in searches[instruction.task_id].ranking.trials()]
            best_us = min(space[config].median_us for config in tried)
            regrets.append(space[winner].median_us / best_us - 1)
        elif isinstance(instruction, Finish):
            end = instruction
    assert end is not None
    if end.status != "finished":
        raise RuntimeError(end.message)
    dispatcher = engine.dispatcher
    return Scaled(
        wall_s=round(pool.clock(), 3),
        busy_share=round(dispatcher.busy_s / (devices * pool.clock()), 4),
        configs=dispatcher.configs,
        selected=len(regrets),
        regret_mean=round(sum(regrets) / len(regrets), 5),
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    paths = multi_gpu_run.make_tasks(tmp_path_factory.mktemp("tasks"), multi_gpu_run.TASKS)
    return {devices: campaign(paths, devices) for devices in (1, 4)}


def test_four_devices_finish_32_tasks_sooner_by_the_documented_factor(found):
    assert found[1].wall_s / found[4].wall_s >= multi_gpu.BOUND
    assert all(one.busy_share >= 0.9 for one in found.values())


def test_more_devices_tune_every_task_and_choose_as_well(found):
    for one in found.values():
        assert one.selected == multi_gpu_run.TASKS
        assert one.configs == found[1].configs
        assert one.regret_mean <= 0.005


def test_virtual_time_is_deterministic(found, tmp_path):
    paths = multi_gpu_run.make_tasks(tmp_path, 6)
    assert campaign(paths, 3, 12) == campaign(paths, 3, 12)


class CheckedEngine(Engine):
    """An engine whose state is checked after every event."""

    def handle(self, event, now):
        instructions = super().handle(event, now)
        invariants.check(self)
        return instructions


def test_the_engine_is_consistent_after_every_event(tmp_path):
    campaign(multi_gpu_run.make_tasks(tmp_path, 3), 2, 12, engine_type=CheckedEngine)


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
    (path,) = multi_gpu_run.make_tasks(tmp_path, 1)
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


def test_the_campaign_runs_on_a_pool_that_watches_every_device(tmp_path, monkeypatch):
    monkeypatch.setattr(multi_gpu_run, "TASKS", 2)
    arguments = ["--one", "1", "--out", f"{tmp_path}", "--simulate"]
    monkeypatch.setattr(sys, "argv", ["multi_gpu.py", *arguments, "--trials", "2"])
    monkeypatch.setattr(multi_gpu, "BUILDERS_PER_GPU", 1)
    assert multi_gpu.main() == 0
    document = json.loads((tmp_path / "one.json").read_text())
    assert (document["status"], document["lost"], len(document["winners"])) == ("finished", [], 2)
    assert document["trials"] == 4
    assert document["jobs"]["build"] >= 4
    assert document["tasks_per_gpu"] == {"simulated-0": 2}


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
    with multi_gpu.occupied({processor}, device.offline("cuda:90")):
        child = multiprocessing.active_children()[-1]
        end = time.monotonic() + 60
        while os.sched_getaffinity(child.pid) != {processor} and time.monotonic() < end:
            time.sleep(0.1)
        assert os.sched_getaffinity(child.pid) == {processor}
    assert not child.is_alive()
