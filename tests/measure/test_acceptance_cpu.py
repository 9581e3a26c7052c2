"""The acceptance tests whose numbers are all drawn from a seed, at a size for every commit.

`benchmarks/acceptance/cpu.py` runs them in full, and those that time this machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from acceptance import cpu, simulated_worlds
from acceptance import cpu_noise as noise
from made_up_spaces import synthesize
from virtual_pool import VirtualPool

from search_spaces.recorded.recorded_kernel import RecordedKernel, RecordedSpace
from search_spaces.records import config_key
from tuner import strategies
from tuner.engine import Engine, Record, Select, TaskBudget, TaskSpec
from workers.job_records import KernelRef, PoolSpec

#: A run is killed at these of twenty points; each change tries the first five.
POINTS = (1, 6, 11, 15, 19, *(point for point in range(1, 21) if point not in (1, 6, 11, 15, 19)))


@pytest.mark.parametrize("scenario", simulated_worlds.NOISY)
def test_c1_the_engine_finds_the_best_config_in_every_noise_scenario(scenario):
    for seed in (0, 1):
        found = simulated_worlds.tune(scenario, seed, 400)
        assert found["regret"] <= 0.01
        # A time-out of a do_bench harness alone would be 125 ms for each of the 400.
        assert found["device_s"] <= 0.5


@pytest.mark.parametrize(("sd", "tau_s"), noise.DRIFTS)
def test_c2_sequential_timing_fails_under_drift(sd, tau_s):
    found = noise.same_under_drift(sd, tau_s, 1000)
    assert 0.03 <= found["paired"] <= 0.07
    assert found["declared"] <= 0.01
    assert found["sequential"] > 0.25


def test_c6_intervals_have_their_nominal_coverage():
    for what, said, covered in noise.coverages(2500):
        assert covered >= said - 0.015, what
        if what.startswith("normal"):
            assert covered <= said + 0.015, what
    for count, promised, covered in noise.medians_covered(2000):
        assert covered == pytest.approx(promised, abs=0.015), count


def test_c6_the_estimator_is_scipys_and_resolves_less_than_a_quantum():
    assert max(noise.against_scipy(200).values()) < 1e-9
    found = noise.coarse_clock(200)
    assert found["trimmed_mean"] < 0.01 < 0.04 < found["median"]
    assert found["covered"] >= 0.93


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """A noisy space of 120 configs, of which some fail and some have equal binaries."""
    path = tmp_path_factory.mktemp("c7") / "made_up.space.json"
    synthesize(120, seed=7, scenario="W1", failures=0.1, twins=0.1, build_s=0.1).save(path)
    return path, RecordedSpace.load(path)


def tuned(task, finished=(), killed_after=None):
    """The stored trials and the winner; None if the run was killed after `killed_after` trials."""
    path, space = task
    kernel = RecordedKernel(space)
    bound = kernel.space(space.workload).bind(space.workload, kernel.device)
    spec = TaskSpec(
        task_id=1,
        label="c7",
        kernel=KernelRef(f"recorded:{path}"),
        workload=space.workload,
        device=kernel.device,
        space=bound,
        strategy=strategies.create("exhaustive", bound, 0, {"shuffle": True}),
        default=dict(space.default),
        budget=TaskBudget(trials=90),
        finalists=16,
        finished=tuple(finished),
    )
    pool = VirtualPool(PoolSpec("virtual", {"simulated": 1}, 8, options={"simulated": {"seed": 1}}))
    engine = Engine([spec], builders=8)
    stored = []
    for instruction in simulated_worlds.instructions(engine, pool):
        if isinstance(instruction, Record):
            stored.append(instruction.record)
            if killed_after is not None and len(stored) >= killed_after:
                return stored, None
        elif isinstance(instruction, Select):
            return stored, instruction.selection.winner
    raise AssertionError("the engine ended without a choice")


@pytest.fixture(scope="module")
def whole(task):
    """The trials and the winner of a run that is not disturbed."""
    stored, winner = tuned(task)
    assert len(stored) == 90
    assert winner is not None
    return stored, winner


@pytest.mark.parametrize(
    "point", [*POINTS[:5], *(pytest.param(point, marks=pytest.mark.full) for point in POINTS[5:])]
)
def test_c7_a_run_killed_at_any_point_has_the_same_winner(task, whole, point):
    stored, winner = whole
    before, no_winner = tuned(task, killed_after=round(point * len(stored) / len(POINTS)))
    assert no_winner is None
    after, again = tuned(task, finished=before)
    assert config_key(again) == config_key(winner)
    configs = sorted(config_key(record.config) for record in stored)
    assert sorted(config_key(r.config) for r in before + after) == configs


def test_the_table_names_missed_bounds():
    rows = [
        cpu.Row("C1", "a scenario", "<= 1", "0.5", True),
        cpu.Row("C2", "a drift", "<= 1", "2", False, "simulated"),
        cpu.Row("C3", "own buffers", "none", "2", None),
    ]
    head, *lines = cpu.table(rows).splitlines()
    assert head.split()[:2] == ["check", "what"]
    assert [line.split()[-1] for line in lines] == ["pass", "simulated", "-"]
    assert [("FAIL" in line) for line in lines] == [False, True, False]
