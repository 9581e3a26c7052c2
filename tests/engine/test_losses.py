"""Faults of the machine: jobs are tried again after pauses; a hopeless task is given up."""

from __future__ import annotations

from itertools import pairwise

import pytest
from scenario import DEVICE, TOOLS, World, build, spec

from search_spaces.records import Status
from tuner.engine import Engine, TaskBudget, Tick
from tuner.engine.instructions import Fault, Finish
from tuner.engine.jobs import Work
from workers.job_records import Built, JobLost, Mode, WorkerGone, WorkerInfo, WorkerReady

REASON, REMEDY = "[Errno 28] No space left on device", "free some space"


class Faulty(World):
    """A machine whose builds, or measurements of mode `on`, fail `times` times."""

    on: str = "build"
    times: int = 10**9
    tasks: tuple[int, ...] = ()

    def _react(self, instruction, rng, busy):
        job = getattr(instruction, "job", None)
        mode = getattr(job, "mode", None)
        what = "build" if mode is None else str(mode)
        task = int(job.job_id.partition(":")[0]) if job is not None else 0
        met = job is not None and what == self.on and self.times > 0
        if met and (not self.tasks or task in self.tasks) and getattr(job, "candidates", True):
            self.times -= 1
            (self.built if mode is None else self.measured).append(job)
            return [JobLost(job.job_id, REASON, REMEDY)]
        return super()._react(instruction, rng, busy)


def world(engine: Engine, **changes: object) -> Faulty:
    made = Faulty(engine)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("on", ["build", str(Mode.SCREENING), str(Mode.RACE), str(Mode.CONFIRM)])
def test_a_task_on_a_machine_that_does_not_recover_is_left_to_a_later_run(on):
    ended = world(Engine([spec()], builders=3), on=on).run()
    message = f"toy 1 given up: {REASON}"
    assert ended.finish == Finish("interrupted", message, Fault(message, REMEDY))
    assert not ended.selections
    assert ended.stages[1][-1] == "search", "a later run resumes it"
    assert not [r for _, r in ended.records if "Errno" in r.message]
    if on in ("build", str(Mode.SCREENING)):
        assert not ended.records


@pytest.mark.parametrize("on", ["build", str(Mode.SCREENING), str(Mode.CONFIRM)])
def test_a_machine_that_recovers_in_time_costs_no_trial(on):
    undisturbed = World(Engine([spec()], builders=1)).run()
    disturbed = world(Engine([spec()], builders=1), on=on, times=5).run()
    assert disturbed.finish == Finish("finished")
    assert len(disturbed.records) == len(undisturbed.records)
    assert {r.status for _, r in disturbed.records} == {r.status for _, r in undisturbed.records}
    assert disturbed.selections[1].verdict == undisturbed.selections[1].verdict


def test_other_tasks_finish():
    engine = Engine([spec(), spec(task_id=2)], builders=2, in_flight=2)
    ended = world(engine, tasks=(1,)).run()
    assert ended.finish.status == "interrupted"
    assert ended.finish.fault is not None
    assert set(ended.selections) == {2}
    assert ended.stages[2][-1] == "done"
    assert not [task for task, _ in ended.records if task == 1]


def test_pauses_grow_while_the_machine_fails():
    engine = Engine([spec(budget=TaskBudget(trials=1))], builders=1)
    out = engine.handle(WorkerReady(WorkerInfo("w", DEVICE, TOOLS)), 0.0)
    now, tried = 0.0, []
    for _ in range(400):
        builds = [i.job for i in out if type(i).__name__ == "Build"]
        tried += [now for _ in builds]
        out = [i for job in builds for i in engine.handle(JobLost(job.job_id, REASON, REMEDY), now)]
        now += 0.125
        out += engine.handle(Tick(), now)
    gaps = [later - earlier for earlier, later in pairwise(tried)]
    assert gaps == sorted(gaps)
    assert gaps[-1] >= 8.0
    assert len(tried) == 7


def test_a_machine_on_which_no_worker_starts_ends_the_run_soon():
    engine = Engine([spec()], builders=1)
    pending = engine.handle(WorkerReady(WorkerInfo("w", DEVICE, TOOLS)), 0.0)
    pending += engine.handle(WorkerGone("w", REASON, REMEDY), 0.0)
    jobs = engine.dispatcher.jobs.items()
    (prepared,) = [job_id for job_id, job in jobs if job.work is Work.PREPARATION]
    pending += engine.handle(JobLost(prepared, REASON, REMEDY), 0.0)
    for _ in range(200):
        jobs = [i.job for i in pending if type(i).__name__ == "Build"]
        pending = [i for job in jobs for i in engine.handle(Built(job.job_id, build(job)), 0.0)]
    engine.handle(Tick(), 1.0)
    engine.handle(Tick(), 20.0)
    out = engine.handle(Tick(), 20.1)
    assert out[-1].status == "interrupted"
    assert out[-1].fault.remedy == REMEDY


@pytest.mark.parametrize("builders", [1, 2, 8])
@pytest.mark.parametrize("at", [0, 5, -1])
def test_a_trial_whose_jobs_alone_are_lost_is_recorded_as_lost(builders, at):
    """Whatever else is in flight: before all others, among them, and when they are done."""

    class Unlucky(World):
        def _react(self, instruction, rng, busy):
            job = getattr(instruction, "job", None)
            if type(instruction).__name__ == "Build" and job.config == self.victim:
                self.built.append(job)
                return [JobLost(job.job_id, REASON, REMEDY)]
            return super()._react(instruction, rng, busy)

    first = World(Engine([spec()], builders=builders), stop_after=10).run()
    made = Unlucky(Engine([spec()], builders=builders))
    made.victim = first.records[at][1].config
    ended = made.run()
    assert ended.finish == Finish("finished")
    (lost,) = [r for _, r in ended.records if r.config == made.victim]
    assert lost.status is Status.RUNTIME
    assert lost.message.startswith("lost 8 workers in a row")
    assert ended.selections, "the finals are held over the others"


def test_a_kernel_that_no_worker_can_import_gives_its_task_up_at_once():
    class Unimportable(World):
        def _react(self, instruction, rng, busy):
            job = getattr(instruction, "job", None)
            if type(instruction).__name__ == "Build":
                self.built.append(job)
                return [JobLost(job.job_id, REASON, REMEDY, lasting=True)]
            return super()._react(instruction, rng, busy)

    made = Unimportable(Engine([spec()], builders=1))
    ended = made.run()
    assert len(made.built) <= 4  # those that were ordered together
    assert not ended.records
    assert ended.finish.status == "interrupted"
    assert ended.finish.fault == Fault(f"toy 1 given up: {REASON}", REMEDY)


def test_lost_workers_and_jobs_are_logged_with_their_reasons(caplog):
    engine = Engine([spec()], builders=1)
    with caplog.at_level("WARNING", logger="tuner.engine"):
        orders = engine.handle(WorkerReady(WorkerInfo("w7", DEVICE, TOOLS)), 0.0)
        for order in orders:
            job = getattr(order, "job", None)
            if job is not None:
                engine.handle(JobLost(job.job_id, f"killed during {job.job_id}"), 0.0)
                reason = f"killed during {job.job_id}"
                assert [r for r in caplog.messages if r.startswith("toy 1: lost a") and reason in r]
        engine.handle(WorkerGone("w7", "its node left"), 0.0)
    assert any("preparation on w7" in message for message in caplog.messages)
    assert "lost worker w7: its node left" in caplog.messages


def test_a_run_without_workers_names_the_last_loss():
    engine = Engine([spec(compile_only=True)], builders=1)
    pending = engine.handle(WorkerGone("w3", "its node left"), 0.0)
    for _ in range(200):
        jobs = [i.job for i in pending if type(i).__name__ == "Build"]
        pending = [i for job in jobs for i in engine.handle(Built(job.job_id, build(job)), 1.0)]
    engine.handle(Tick(), 2.0)
    (end,) = (i for i in engine.handle(Tick(), 1000.0) if isinstance(i, Finish))
    assert end.status == "failed"
    assert end.message == "no worker is left for toy 1; the last lost worker was w3: its node left"
