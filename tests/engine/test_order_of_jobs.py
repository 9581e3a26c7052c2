"""The order of jobs, their workers, and how long a candidate may be silent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenario import DEVICE, TOOLS, World, seeds, spec

from search_spaces.records import Workload
from search_spaces.size_range import Range, RangePlace, list_places
from tuner.base.log_ratio import LogRatio
from tuner.engine import Engine, Finish, TaskBudget
from workers.job_records import (
    Artifact,
    KernelRef,
    Mode,
    WorkerInfo,
    WorkerReady,
)

SIMPLE = settings(max_examples=25)


class Contradicting(World):
    """The first confirmation of the first task contradicts its race."""

    def _measure(self, order, rng):
        events = super()._measure(order, rng)
        task, job = order.job.job_id.partition(":")[0], order.job
        earlier = [j for j in self.measured[:-1] if j.mode is job.mode and of_task(j, task)]
        if task != "1" or job.mode is not Mode.CONFIRM or earlier:
            return events
        (event,) = events
        moved = [
            replace(o, log_ratio=LogRatio(-0.5, -0.6, -0.4)) if at else o
            for at, o in enumerate(event.result.outcomes)
        ]
        return [replace(event, result=replace(event.result, outcomes=tuple(moved)))]


def of_task(job, task):
    return job.job_id.partition(":")[0] == task


@pytest.mark.parametrize("tasks", [1, 2])
def test_other_jobs_precede_a_repeated_confirmation_while_its_process_starts(tasks):
    whole = {"strategy": "exhaustive", "budget": TaskBudget()}
    postponed = 0
    for seed in range(6):
        specs = [spec(task_id=number, **whole) for number in range(1, tasks + 1)]
        world = Contradicting(Engine(specs, builders=4), seed=seed, workers=1).run()
        assert world.finish == Finish("finished")
        assert set(world.selections) == set(range(1, tasks + 1))
        own = [j for j in world.measured if of_task(j, "1")]
        assert [j.mode for j in own[-4:]] == [Mode.RACE, Mode.CONFIRM] * 2
        last, before = (world.measured.index(j) for j in (own[-1], own[-2]))
        postponed += last - before > 1
    assert bool(postponed) == (tasks > 1)


@pytest.mark.parametrize("seed", seeds(6))
def test_a_repeated_confirmation_goes_to_a_worker_that_has_not_seen_the_task(seed):
    whole = {"strategy": "exhaustive", "budget": TaskBudget()}
    specs = [spec(task_id=number, **whole) for number in (1, 2)]
    world = Contradicting(Engine(specs, builders=4), seed=seed, workers=2).run()
    assert world.finish == Finish("finished")
    confirmations = [
        worker
        for worker, job in zip(world.served_by, world.measured, strict=True)
        if job.mode is Mode.CONFIRM and of_task(job, "1")
    ]
    assert sorted(confirmations) == ["w0", "w1"]


@pytest.mark.parametrize(("workers", "asked", "searched"), [(1, None, 4), (5, None, 10), (5, 3, 3)])
def test_enough_tasks_are_searched_at_once_to_keep_all_runners_busy(workers, asked, searched):
    engine = Engine([spec(task_id=n) for n in range(1, 13)], builders=2, in_flight=asked)
    for number in range(workers):
        engine.handle(WorkerReady(WorkerInfo(f"w{number}", DEVICE, TOOLS)), 0.0)
    assert sum(task.stage == "search" for task in engine.tasks) == searched


def test_kernels_take_turns_when_tasks_are_opened():
    order = ["attention", "attention", "attention", "matmul", "matmul", "softmax"]
    specs = [
        replace(spec(task_id=n), kernel=KernelRef(name)) for n, name in enumerate(order, start=1)
    ]
    world = World(Engine(specs, builders=2, in_flight=1)).run()
    searched = [task_id for task_id, stages in world.stages.items() if stages[0] == "search"]
    assert searched == [1, 4, 6, 2, 5, 3]
    assert world.finish == Finish("finished")


def test_ranges_of_one_kernel_take_turns_too():
    sizes = Range(1, 4096)
    places = [*list_places(sizes).items()]
    specs = [
        replace(
            spec(task_id=len(places) * wide + n), workload=Workload.of(n=size, wide=wide),
            place=RangePlace((("n", sizes),), 0.02, 8, between),
        )
        for wide in range(3)
        for n, (size, between) in enumerate(places, 1)
    ]  # fmt: skip
    tasks = Engine(specs, builders=2).tasks
    opened = [(task.spec.workload["n"], task.spec.workload["wide"]) for task in tasks]
    assert opened == [(size, wide) for size, _ in places for wide in range(3)]


@SIMPLE
@given(seed=st.integers(0, 10**6), workers=st.integers(1, 3))
def test_variants_are_timed_one_by_one_until_there_is_an_incumbent(seed, workers):
    """Otherwise a variant that hangs in the first job would delay others for the whole limit."""
    whole = spec(strategy="exhaustive", budget=TaskBudget())
    world = World(Engine([whole], builders=40), seed=seed, workers=workers).run()
    screenings = [job for job in world.measured if job.mode is Mode.SCREENING and job.candidates]
    assert all(len(job.candidates) == 1 for job in screenings if not job.incumbent)
    assert max(len(job.candidates) for job in screenings) > 2


@pytest.mark.parametrize(
    ("kind", "first_s", "then_s"), [("cuda", 30.0, 5.0), ("hip", 30.0, 5.0), ("cpu", 120.0, 120.0)]
)
def test_how_long_a_variant_may_be_silent_follows_from_the_incumbent(kind, first_s, then_s):
    on_kind = replace(spec(), device=replace(DEVICE, kind=kind))
    world = World(Engine([on_kind], builders=4), workers=1)
    world._worker = lambda index: WorkerInfo(f"w{index}", on_kind.device, TOOLS)
    screenings = [j for j in world.run().measured if j.mode is Mode.SCREENING and j.candidates]
    first = [job.candidate_timeout_s for job in screenings if not job.incumbent]
    then = [job.candidate_timeout_s for job in screenings if job.incumbent]
    assert set(first) == {first_s}
    # A thousand runs of the toy's incumbent, 100 us or so, are added.
    assert all(then_s <= limit_s < then_s + 1.0 for limit_s in then)


@pytest.mark.parametrize(
    ("candidates", "baselines", "limit_s"), [(2, 0, 30), (5, 0, 50), (3, 2, 44)]
)
def test_a_confirmation_has_time_for_each_candidate_and_baseline(candidates, baselines, limit_s):
    names = tuple(f"b{at}" for at in range(baselines))
    limited = replace(spec(), measure_timeout_s=10.0, baseline_timeout_s=7.0, baselines=names)
    built = tuple(Artifact({"x": at}, "simulated", TOOLS, f"{at}") for at in range(candidates))
    assert limited.make_confirmation("job", built, None).timeout_s == limit_s


def test_tasks_of_the_largest_expected_gain_are_opened_first():
    gains = [0.1, 0.0, 0.6, 0.3, 0.0]
    specs = [replace(spec(task_id=n), gain=gain) for n, gain in enumerate(gains, 1)]
    engine = Engine(specs, builders=2, in_flight=1)
    assert [task.spec.task_id for task in engine.tasks] == [3, 4, 1, 2, 5]
    world = World(engine, workers=1).run()
    assert [*world.stages] == [3, 4, 1, 2, 5]


def test_a_limited_run_saves_more_where_the_largest_expected_gains_come_first():
    calls = [1, 40, 3, 1, 25, 2, 1, 10]

    def save_s(seed: int, *, ordered: bool) -> float:
        budget = TaskBudget(trials=30, ends_at=1.0)
        specs = [
            replace(spec(task_id=n, seed=seed, budget=budget), gain=each * ordered)
            for n, each in enumerate(calls, 1)
        ]
        engine = Engine(specs, builders=2, in_flight=1)
        chosen = World(engine, seed=seed, workers=1).run().selections
        assert 0 < sum(task.search.asker.cut_short for task in engine.tasks) < len(calls)
        return sum(calls[n - 1] * (one.default_us - one.median_us) for n, one in chosen.items())

    saved = [(save_s(seed, ordered=True), save_s(seed, ordered=False)) for seed in range(5)]
    assert all(first > second for first, second in saved)
    assert sum(first for first, _ in saved) > 1.5 * sum(second for _, second in saved)
