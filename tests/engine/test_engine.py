"""The engine against simulated pools that answer in any order and lose workers."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenario import (
    DEVICE,
    TOOLS,
    World,
    build,
    seeds,
    spec,
    toy_binary,
    toy_fault,
    toy_space,
    toy_us,
)

from search_spaces.records import Status, config_key
from tuner.engine import Build, Engine, Finish, Measure, Record, TaskBudget, Tick
from tuner.engine.finals_time import limit_finals
from tuner.engine.trial_table import TrialState
from workers.job_records import (
    Built,
    Failure,
    JobLost,
    Measured,
    Measurement,
    Mode,
    WorkerGone,
    WorkerInfo,
    WorkerReady,
)

SIMPLE = settings(max_examples=25)


def outcome_of(records):
    """The part of each record that must not depend on the order of events."""
    return sorted((r.number, config_key(r.config), r.status, r.binary_hash) for _, r in records)


@SIMPLE
@given(seed=st.integers(0, 10**6), workers=st.integers(1, 5), losses=st.sampled_from([0, 0.1]))
def test_every_asked_trial_is_recorded_once_whatever_the_order(seed, workers, losses):
    undisturbed = World(Engine([spec()], builders=1), seed=0, workers=1).run()
    world = World(Engine([spec()], builders=3), seed=seed, workers=workers, losses=losses).run()
    assert world.finish == Finish("finished")
    assert outcome_of(world.records) == outcome_of(undisturbed.records)
    attempts = [r.attempt_id for _, r in world.records]
    assert len(set(attempts)) == len(attempts) == 30


@SIMPLE
@given(
    seed=st.integers(0, 10**6),
    stop=st.integers(0, 29),
    name=st.sampled_from(["random", "exhaustive"]),
)
def test_a_resumed_run_equals_an_undisturbed_one(seed, stop, name):
    whole = World(Engine([spec(strategy=name)], builders=2), seed=seed).run()
    broken = World(Engine([spec(strategy=name)], builders=2), seed=seed + 1, stop_after=stop).run()
    kept = tuple(r for _, r in broken.records)
    resumed = World(Engine([spec(strategy=name, finished=kept)], builders=2), seed=seed + 2).run()
    assert outcome_of(broken.records + resumed.records) == outcome_of(whole.records)


@SIMPLE
@given(seed=st.integers(0, 10**6), stop=st.integers(0, 25))
def test_tpe_loses_no_finished_trial_and_stores_none_twice_over_a_resume(seed, stop):
    broken = World(Engine([spec(strategy="tpe")], builders=2), seed=seed, stop_after=stop).run()
    kept = tuple(r for _, r in broken.records)
    resumed = World(Engine([spec(strategy="tpe", finished=kept)], builders=2), seed=seed).run()
    records = [r for _, r in broken.records + resumed.records]
    assert len({config_key(r.config) for r in records}) == len(records) == max(30, len(kept))
    assert len({r.number for r in records}) == len(records)


def test_it_finds_the_best_and_confirms_it_against_the_default_and_baselines():
    size = toy_space().size()
    world = World(Engine([spec(strategy="exhaustive", budget=TaskBudget())], builders=2)).run()
    assert len(world.records) == size
    correct = [c for c in toy_space().enumerate() if toy_fault(c) is None]
    chosen = world.selections[1]
    assert toy_us(chosen.winner) == min(map(toy_us, correct))
    assert chosen.verdict == "faster"
    assert chosen.default_us > chosen.median_us
    assert [b.name for b in world.baselines[1]] == ["eager"]
    assert world.stages[1] == ["search", "finals", "confirm", "done"]


def test_no_binary_is_measured_twice_and_duplicates_take_the_result():
    world = World(Engine([spec(strategy="exhaustive", budget=TaskBudget())], builders=4)).run()
    screenings = [j for j in world.measured if j.mode is Mode.SCREENING]
    candidates = [
        e for j in screenings for e in (j.candidates[:-1] if j.incumbent else j.candidates)
    ]
    # A candidate of a job that failed as a whole is measured again, alone.
    alone = {
        j.candidates[0].binary_hash for j in screenings if len(j.candidates) == 1 + j.incumbent
    }
    hashes = [e.binary_hash for e in candidates if e.binary_hash not in alone]
    assert len(hashes) == len(set(hashes))
    duplicates = [r for _, r in world.records if r.source == "binary"]
    assert duplicates
    by_attempt = {r.attempt_id: r for _, r in world.records}
    for record in duplicates:
        assert toy_binary(by_attempt[record.copied_from].config) == toy_binary(record.config)
        assert record.median_us == by_attempt[record.copied_from].median_us


@SIMPLE
@given(seed=st.integers(0, 10**6), stop=st.integers(1, 40))
def test_only_trials_that_may_reach_the_finals_keep_their_artifact(seed, stop):
    task = spec(strategy="exhaustive", budget=TaskBudget(), finalists=2)
    world = World(Engine([task], builders=2), seed=seed, stop_after=stop).run()
    search = world.engine.tasks[0].search
    ranked = search.ranking.trials()
    assert ranked == sorted(
        (t for t in search.trials.values() if t.score and t.record.source != "binary"),
        key=lambda t: (t.score, t.number),
    )
    kept = [t for t in search.trials.in_state(TrialState.DONE) if t.artifact is not None]
    default = [t for t in search.trials.values() if t.strategy == "default" and t.score]
    expected = {t.number for t in (*ranked[:4], *default)}
    assert {t.number for t in kept} == expected


def test_known_results_are_reused_without_building_or_measuring():
    first = World(Engine([spec()], builders=2)).run()
    spent = {"source": "measured", "build_s": 1.0, "device_s": 0.5, "timing_s": 0.25}
    known = tuple(replace(r, **spent) for _, r in first.records)
    again = World(Engine([spec(task_id=2, known=known)], builders=2)).run()
    assert {r.source for _, r in again.records} == {"reused"}
    assert {(r.build_s, r.device_s, r.timing_s) for _, r in again.records} == {(0.0, 0.0, 0.0)}
    assert not [j for j in again.measured if j.mode is Mode.SCREENING]
    assert outcome_of(again.records) == outcome_of(first.records)


def test_a_strategy_that_learns_starts_from_all_that_is_known():
    first = World(Engine([spec(strategy="tpe")], builders=2), seed=1).run()
    known = tuple(r for _, r in first.records)
    same = World(Engine([spec(task_id=2, strategy="tpe", known=known)], builders=2), seed=2).run()
    assert {r.source for _, r in same.records} == {"reused"}
    more = spec(task_id=3, strategy="tpe", known=known, budget=TaskBudget(trials=40))
    further = World(Engine([more], builders=2), seed=3).run()
    assert sum(r.source == "reused" for _, r in further.records) == 30
    assert len(further.records) == 40


def test_a_task_without_its_device_is_compiled_and_verified_but_never_timed():
    engine = Engine([spec(compile_only=True)], builders=2)
    world = World(engine, kind="interpreter").run()
    assert {j.mode for j in world.measured} == {Mode.VERIFY}
    assert all(r.median_us is None for _, r in world.records)
    assert not world.selections
    assert world.finish == Finish("finished")


def test_a_trial_that_keeps_losing_workers_is_given_up_and_the_run_continues():
    engine = Engine([spec(budget=TaskBudget(trials=1))], builders=1)
    out = engine.handle(WorkerReady(WorkerInfo("w", DEVICE, TOOLS)), 0.0)
    records = []
    for _ in range(40):
        builds = [i.job for i in out if type(i).__name__ == "Build"]
        records += [i.record for i in out if type(i).__name__ == "Record"]
        if not builds:
            break
        out = engine.handle(JobLost(builds[0].job_id, "node gone"), 0.0)
    assert [r.status for r in records] == [Status.RUNTIME]
    assert "node gone" in records[0].message


class Doomed(World):
    """Every worker that gets a confirmation dies."""

    def _measure(self, order, rng):
        if order.job.mode is Mode.CONFIRM:
            self.measured.append(order.job)
            return [JobLost(order.job.job_id, "out of memory")]
        return super()._measure(order, rng)


def test_a_confirmation_that_always_kills_its_worker_is_given_up():
    world = Doomed(Engine([spec()], builders=2)).run()
    assert world.finish == Finish("finished")
    chosen = world.selections[1]
    assert (chosen.verdict, chosen.median_us) == ("undecided", None)
    assert "out of memory" in chosen.reason
    assert len([job for job in world.measured if job.mode is Mode.CONFIRM]) < 12


def test_an_incumbent_that_always_kills_its_builder_is_replaced():
    first = World(Engine([spec()], builders=2), stop_after=20).run()
    kept = tuple(record for _, record in first.records)
    best = min((r for r in kept if r.median_us), key=lambda r: r.median_us)

    class DeadlyIncumbent(World):
        def _react(self, instruction, rng, busy):
            deadly = getattr(instruction, "job", None)
            if type(instruction).__name__ == "Build" and deadly.config == best.config:
                self.built.append(deadly)
                return [JobLost(deadly.job_id, "out of memory")]
            return super()._react(instruction, rng, busy)

    world = DeadlyIncumbent(Engine([spec(finished=kept)], builders=2)).run()
    assert world.finish == Finish("finished")
    assert len(world.records) == 30 - len(kept)
    assert world.selections[1].winner != best.config


def test_without_any_worker_the_run_fails_and_names_the_task():
    engine = Engine([spec()], builders=1)
    pending = engine.handle(Tick(), 0.0)
    for _ in range(200):
        builds = [i.job for i in pending if type(i).__name__ == "Build"]
        pending = []
        for job in builds:
            pending += engine.handle(Built(job.job_id, build(job)), 1.0)
    engine.handle(Tick(), 2.0)
    ended = engine.handle(Tick(), 1000.0)
    assert ended[-1] == Finish("failed", "no worker is left for toy 1")


@SIMPLE
@given(seed=st.integers(0, 10**6), losses=st.sampled_from([0, 0.2]))
def test_draining_finishes_what_is_in_flight_and_nothing_else(seed, losses):
    engine = Engine([spec(), spec(task_id=2)], builders=1, in_flight=1)
    world = World(engine, seed=seed, losses=losses, drain_after=5).run()
    assert world.finish == Finish("interrupted")
    builds, measurements = world.ordered
    assert len(world.built) == builds
    screenings = world.measured[measurements:]
    assert all(job.mode is Mode.SCREENING for job in screenings)
    # Trials in flight are finished: built trials are still measured.
    assert len(world.records) >= 5
    assert not world.selections
    assert world.stages[1][-1] == "search"


@pytest.mark.parametrize("event", [WorkerGone("unknown", "?"), JobLost("nothing", "?")])
def test_events_about_unknown_workers_and_jobs_are_ignored(event):
    world = World(Engine([spec()], builders=1), stop_after=3).run()
    assert not [i for i in world.engine.handle(event, 0.0) if type(i).__name__ == "Record"]
    world.stop_after = None
    assert world.run().finish == Finish("finished")


class Spending(World):
    """Counts the trials that were asked when the budget was spent."""

    limit_s, asked = 0.05, 0

    def _react(self, instruction, rng, busy):
        events = super()._react(instruction, rng, busy)
        if not self.asked and sum(r.device_s for _, r in self.records) >= self.limit_s:
            self.asked = len(self.engine.tasks[0].search.trials)
        return events


@SIMPLE
@given(seed=st.integers(0, 10**6))
def test_no_trial_is_asked_after_the_device_seconds_are_spent(seed):
    task = spec(budget=TaskBudget(device_s=Spending.limit_s))
    world = Spending(Engine([task], builders=1), seed=seed, workers=1).run()
    assert 5 <= world.asked == len(world.records) < toy_space().size()


class Endless(World):
    """Three builds of slow variants never end."""

    endless = 0

    def _react(self, instruction, rng, busy):
        events = super()._react(instruction, rng, busy)
        if not isinstance(instruction, Build):
            return events
        config = instruction.job.config
        slow = config["block"] <= 64 and config["order"] == "row"
        if slow and len(self.built) > 8 and self.endless < 3:
            self.endless += 1
            return []
        (event,) = events
        return [replace(event, result=replace(event.result, build_s=0.01))]


@pytest.mark.parametrize("seed", seeds(3))
def test_a_run_does_not_wait_for_builds_that_its_search_has_dropped(seed):
    task = spec(strategy="bayes", budget=TaskBudget(gain=0.02), seed=seed)
    world = Endless(Engine([task], builders=4), seed=seed).run()
    assert world.finish == Finish("finished")
    assert world.stages[1][-1] == "done"
    assert world.selections[1].winner["block"] > 64
    assert 0 < world.endless == len(world.built) - len(world.records)
    late = world.built[-1].job_id
    assert world.handle(Built(late, build(world.built[-1])), 1000.0) == []


def test_a_budget_in_search_time_ends_a_task():
    world = World(Engine([spec(budget=TaskBudget(search_s=0.2))], builders=1), workers=1).run()
    assert 0 < len(world.records) < toy_space().size()


def test_a_run_that_is_out_of_time_asks_no_config_in_any_task():
    tasks = [
        spec(task_id=task_id, budget=TaskBudget(ends_at=0.2), strategy="exhaustive")
        for task_id in (1, 2)
    ]
    world = World(Engine(tasks, builders=1, in_flight=1), workers=1).run()
    assert world.engine.finished
    assert {task_id for task_id, _ in world.records} == {1}
    assert 0 < len(world.records) < toy_space().size()
    assert set(world.selections) == {1}
    assert world.notes == {2: "nothing was tried: the run was out of time"}


@dataclass
class SlowFinals(World):
    """A race and a confirmation take a second of the engine's clock each."""

    now: float = 0.0
    late_s: float = 0.0

    def handle(self, event, now):
        modes = {job.job_id: job.mode for job in self.measured}
        if isinstance(event, Measured) and modes[event.job_id] in (Mode.RACE, Mode.CONFIRM):
            self.late_s += 1.0
        self.now = now + self.late_s
        return super().handle(event, self.now)


@pytest.mark.parametrize("finals_s", [2.0, 0.5])
def test_a_run_with_a_limit_keeps_the_time_of_finals_free(finals_s):
    # One at a time, a task searches for some tenths of a second.
    tasks = [
        spec(task_id=number, budget=TaskBudget(trials=20, ends_at=9.0, finals_s=finals_s))
        for number in range(1, 9)
    ]
    world = SlowFinals(Engine(tasks, builders=1, in_flight=1), workers=1).run()
    assert world.now <= 9.0
    assert len(world.selections) >= 2
    assert set(world.notes.values()) == {"nothing was tried: the run was out of time"}


def test_all_tasks_of_a_short_run_are_searched():
    # The usual finals of four tasks on one device would take longer than the run.
    usual_s, wall_s, number = 0.1, 0.35, 4
    kept_s = min(usual_s, limit_finals(wall_s, number))
    budget = TaskBudget(ends_at=wall_s, finals_s=kept_s)
    tasks = [spec(task_id=each, budget=budget) for each in range(1, number + 1)]
    world = World(Engine(tasks, builders=1), workers=1).run()
    tried = Counter(task_id for task_id, _ in world.records)
    assert min(tried[each] for each in range(1, number + 1)) > 3


def test_the_finals_of_a_run_with_a_limit_take_a_third_of_it():
    assert limit_finals(None, 18) == math.inf
    assert limit_finals(600.0, 4) == 50.0
    assert limit_finals(30.0, 4) == 2.5
    assert limit_finals(12.0, 0.25) == 4.0


def test_a_search_without_an_estimate_uses_the_whole_time():
    task = spec(budget=TaskBudget(ends_at=0.2), strategy="exhaustive")
    world = SlowFinals(Engine([task], builders=1), workers=1).run()
    assert world.now > 0.2 + 1.0
    short = spec(budget=TaskBudget(ends_at=0.2, finals_s=0.1), strategy="exhaustive")
    other = SlowFinals(Engine([short], builders=1), workers=1).run()
    assert 0 < len(other.records) < len(world.records)


def test_polish_asks_the_neighbours_of_the_best():
    budget = TaskBudget(trials=20, polish=6)
    world = World(Engine([spec(budget=budget)], builders=1), workers=1).run()
    polished = [r for _, r in world.records if r.strategy == "polish"]
    assert len(polished) == 6
    others = [r for _, r in world.records if r.strategy != "polish" and r.median_us]
    best = min(others, key=lambda r: r.median_us)
    near = {config_key(c) for c in toy_space().neighbours(best.config)}
    assert config_key(polished[0].config) in near


def test_an_idle_device_prepares_the_task_while_its_first_variants_are_built():
    engine = Engine([spec()], builders=2)
    orders = engine.handle(WorkerReady(WorkerInfo("w0", DEVICE, TOOLS)), 0.0)
    (order,) = (o for o in orders if isinstance(o, Measure))
    assert order.job.candidates == ()
    assert not [o for o in engine.handle(Tick(), 0.1) if isinstance(o, Measure)]
    answer = Measurement(DEVICE, TOOLS, outcomes=())
    again = engine.handle(Measured(order.job.job_id, "w0", answer), 0.2)
    assert not [o for o in again if isinstance(o, Measure | Record)]  # once is enough


class Unprepared(World):
    """No device can prepare a task."""

    def _measure(self, order, rng):
        if order.job.candidates:
            return super()._measure(order, rng)
        failure = Failure(Status.RUNTIME, "out of memory")
        if rng.random() < 0.5:
            return [Measured(order.job.job_id, order.worker_id, failure)]
        return [JobLost(order.job.job_id, "the worker died")]


@pytest.mark.parametrize("seed", seeds(4))
def test_a_preparation_that_fails_costs_no_trial(seed):
    undisturbed = World(Engine([spec()], builders=1), seed=0, workers=1).run()
    world = Unprepared(Engine([spec()], builders=2), seed=seed).run()
    assert world.finish == Finish("finished")
    assert outcome_of(world.records) == outcome_of(undisturbed.records)


@pytest.mark.parametrize("seed", seeds(4))
def test_answers_of_dropped_builds_are_ignored(seed):
    task = spec(strategy="bayes", budget=TaskBudget(gain=0.2))
    world = World(Engine([task], builders=12), seed=seed, losses=0.05).run()
    assert world.finish == Finish("finished")
    search = world.engine.tasks[0].search
    recorded = {config_key(record.config) for _, record in world.records}
    assert recorded == set(search.trials)
    assert world.engine.dispatcher.building == 0
    assert config_key(world.selections[1].winner) in recorded


def test_compile_only_tasks_are_not_prepared():
    world = World(Engine([spec(compile_only=True)], builders=2), kind="interpreter").run()
    assert all(job.candidates for job in world.measured)


def test_times_of_equal_binaries_are_kept_and_their_outputs_verified_again():
    """As after a change of the reference: no known time is measured again before the finals."""
    task = {"strategy": "exhaustive", "budget": TaskBudget()}
    first = World(Engine([spec(**task)], builders=2)).run()
    timed = {r.binary_hash: r for _, r in first.records if r.source == "measured" and r.median_us}
    second = World(Engine([spec(**task, timed=timed)], builders=2), losses=0.05).run()
    screenings = [job for job in second.measured if job.mode is Mode.SCREENING]
    assert not {e.binary_hash for job in screenings for e in job.candidates[:-1]} & timed.keys()
    kept = [r for _, r in second.records if r.source == "verified"]
    assert {r.binary_hash for r in kept} == timed.keys()
    for record in kept:
        was = timed[record.binary_hash]
        assert (record.median_us, record.copied_from) == (was.median_us, was.attempt_id)
        assert record.error == 1e-7
    assert second.selections[1].median_us is not None
