"""`invariants.check` finds contradictions in the engine's state."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import invariants
import pytest
from invariants import InvariantError
from scenario import World, spec

import tuner.engine
from search_spaces.records import config_key
from tuner.engine import Engine, Stage, TaskBudget
from tuner.engine.jobs import Job, Work
from tuner.engine.trial_table import Trial, TrialState


@pytest.fixture
def engine():
    """An engine in the middle of a search, with builds in flight."""
    whole = spec(strategy="exhaustive", budget=TaskBudget())
    engine = World(Engine([whole, spec(task_id=2)], builders=4), seed=2, stop_after=12).run().engine
    invariants.check(engine)
    return engine


def search(engine):
    return engine.tasks[0].search


def a_trial(engine, state):
    return next(trial for trial in search(engine).trials.values() if trial.state is state)


def skip_the_table(engine):
    a_trial(engine, TrialState.DONE).state = TrialState.READY


def lose_a_record(engine):
    a_trial(engine, TrialState.DONE).record = None


def forget_an_artifact(engine):
    trial = a_trial(engine, TrialState.DONE)
    search(engine).trials.requeue(trial, TrialState.READY)
    trial.record = trial.artifact = None


def rank_nothing(engine):
    search(engine).ranking.incumbent = None


def prefer_a_slow_trial(engine):
    search(engine).ranking.incumbent = search(engine).ranking.trials()[-1]


def repeat_a_job(engine):
    build = next(job for job in engine.dispatcher.jobs.values() if job.builds)
    engine.dispatcher.jobs["1:999"] = Job(Work.BUILD, build.task, trials=build.trials)
    engine.dispatcher.building += 1


def lose_a_job(engine):
    engine.dispatcher.jobs.clear()
    engine.dispatcher.building = 0
    for worker in engine.dispatcher.workers.values():
        worker.job_id = None


def miscount_builds(engine):
    engine.dispatcher.building += 1


def give_a_worker_an_unknown_job(engine):
    next(iter(engine.dispatcher.workers.values())).job_id = "1:999"


def measure_a_closed_task(engine):
    engine.tasks[0].stage = Stage.WAITING


def begin_the_finals_early(engine):
    engine.tasks[0].stage = Stage.FINALS


def spend_unrecorded_time(engine):
    search(engine).trials.device_s += 1.0


def finish_with_open_jobs(engine):
    engine.finished = True


def race_for_another_run(engine):
    task = World(Engine([spec()], builders=1), stop_after=3).run().engine.tasks[0]
    engine.dispatcher.jobs["9:1"] = Job(Work.RACE, task, "w0")


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (skip_the_table, "trials counted as"),
        (lose_a_record, "is done, without a record"),
        (forget_an_artifact, "is ready without an artifact"),
        (rank_nothing, "the incumbent is None"),
        (prefer_a_slow_trial, "is not the fastest ranked trial"),
        (repeat_a_job, "is in the jobs"),
        (lose_a_job, "in no job"),
        (miscount_builds, "builds are in flight"),
        (give_a_worker_an_unknown_job, "has the job 1:999"),
        (measure_a_closed_task, "was not opened"),
        (begin_the_finals_early, "while its search goes on"),
        (spend_unrecorded_time, "s are counted"),
        (finish_with_open_jobs, "the run has finished with"),
        (race_for_another_run, "belongs to no task of the run"),
    ],
)
def test_a_contradiction_is_named(engine, corrupt, message):
    corrupt(engine)
    with pytest.raises(InvariantError, match=message):
        invariants.check(engine)


@pytest.mark.parametrize(
    ("names", "module"),
    [({field.name for field in fields(Trial)}, "trial_table.py"), ({"stage"}, "task.py")],
)
def test_one_module_changes_trials_and_one_changes_stages(names, module):
    changing = {
        path.name
        for path in Path(tuner.engine.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
        if node.attr in names
    }
    assert changing == {module}


def test_a_config_that_was_changed_is_named_at_the_end():
    engine = World(Engine([spec()], builders=2)).run().engine
    invariants.check(engine)
    trial = a_trial(engine, TrialState.DONE)
    trial.config = {**trial.config, "BLOCK": -1}
    with pytest.raises(InvariantError, match=f"the config of trial {trial.number} was changed"):
        invariants.check(engine)


def test_a_budget_that_is_exceeded_is_named():
    engine = World(Engine([spec(budget=TaskBudget(trials=8))], builders=2)).run().engine
    invariants.check(engine)
    trials = engine.tasks[0].search.trials
    tried = {config_key(trial.config) for trial in trials.values()}
    space = engine.tasks[0].spec.space
    trials.add(next(c for c in space.enumerate() if config_key(c) not in tried), "random", 0.0)
    with pytest.raises(InvariantError, match="the budget allows 8"):
        invariants.check(engine)
