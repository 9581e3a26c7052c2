"""`tuner prune`: old trials go, and nothing that something still refers to."""

from __future__ import annotations

import json

import pytest
from cli_samples import BEST, fill, replay_campaign
from made_up_spaces import synthesize

from results_db import Store, TrialRecord
from search_spaces.records import Status


@pytest.fixture
def five_runs(url) -> str:
    """Five finished runs of one campaign, of one trial each."""
    for _ in range(5):
        fill(url)
    return url


def trials_of(url: str) -> dict[int, int]:
    """The number of stored trials of each run."""
    with Store.open(url) as store:
        return {
            run.run_id: sum(task.trials for task in store.overview(run.run_id))
            for run in store.runs()
        }


def test_the_newest_runs_of_each_campaign_are_kept(tuner, five_runs):
    with Store.open(five_runs) as store:
        store.begin_run("other", "spec", 1, {}, {})
    dry = tuner("prune", "--keep", 2, "--dry-run", "-f", "json")
    assert [(row["run"], row["trials"]) for row in json.loads(dry.out)] == [(3, 1), (2, 1), (1, 1)]
    assert "3 trials of 3 runs would be deleted" in dry.err
    assert trials_of(five_runs) == dict.fromkeys(range(1, 6), 1) | {6: 0}
    best, status = tuner("best", "-f", "json").out, json.loads(tuner("status", 1, "-f", "json").out)
    done = tuner("prune", "--keep", 2)
    assert done.err == "3 trials of 3 runs deleted; 0 older runs are kept\n"
    assert trials_of(five_runs) == {1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 0}
    # What was confirmed is not lost, and a pruned run can be shown and exported.
    assert tuner("best", "-f", "json").out == best
    (row,) = json.loads(tuner("status", 1, "-f", "json").out)
    assert row == {**status[0], "trials": 0, "failed": 0}
    for command in (["report", "-o", "r.html"], ["export", "-o", "o"], ["show"]):
        assert tuner(command[0], 1, *command[1:]).code == 0
    assert tuner("db", "check").code == 0
    assert tuner("prune", "--keep", 2).err.startswith("0 trials of 0 runs deleted")


def test_runs_that_are_referred_to_are_kept_and_say_why(tuner, five_runs, folder):
    with Store.open(five_runs) as store:
        running = store.begin_run("nightly", "spec", 1, {}, {})
        assert store.take_run(running, "lease", "host:1")
        (task,) = store.tasks(1)
        held = store.under("lease")
        mine = held.ensure_task(running.run_id, task.key, flops=1.0, bytes=1.0, tolerance=None)
        held.record_trial(mine.task_id, TrialRecord("mine", 0, BEST, Status.CORRECT))
        stopped = store.begin_run("nightly", "spec", 1, {}, {})
        store.finish_run(stopped.run_id, "interrupted", {})
        store.tag_run(1, "baseline")
    for run, place in ((2, "a"), (3, "b"), (4, "b")):
        assert tuner("export", run, "-o", folder / place).code == 0
    fill(five_runs)
    dry = tuner("prune", "--keep", 1, "--dry-run", "-f", "json")
    why = {row["run"]: row["kept_because"].partition(" in /")[0] for row in json.loads(dry.out)}
    assert why == {
        7: "interrupted, can be resumed",
        6: "running, can be resumed",
        5: "",
        4: "published",
        3: "",  # another run's table has replaced its own
        2: "published",
        1: "tagged baseline",
    }
    assert tuner("prune", "--keep", 1).code == 0
    assert trials_of(five_runs) == {1: 1, 2: 1, 3: 0, 4: 1, 5: 0, 6: 1, 7: 0, 8: 1}


def test_a_relative_path_may_be_of_another_folder(tuner, five_runs):
    for run in (1, 2):
        assert tuner("export", run, "-o", "out").code == 0
    assert tuner("prune", "--keep", 1).err == "2 trials of 2 runs deleted; 2 older runs are kept\n"


def test_results_that_a_kept_run_has_taken_over_are_still_known(tuner, url):
    first, last = fill(url), fill(url, kernel="matmul")
    with Store.open(url) as store:
        (task,) = store.tasks(first)
        again = store.begin_run("nightly", "spec", 1, {}, {})
        copy = store.ensure_task(again.run_id, task.key, flops=1.0, bytes=1.0, tolerance=None)
        copied = {"source": "reused", "copied_from": f"run{first}-0"}
        store.record_trial(copy.task_id, TrialRecord("c", 0, BEST, Status.CORRECT, **copied))
    assert tuner("prune", "--keep", 1).code == 0
    assert trials_of(url) == {first: 1, last: 0, again.run_id: 1}
    with Store.open(url) as store:
        assert [each.config for each in store.known_trials(task.key)] == [BEST]


def test_a_campaign_whose_trials_are_gone_is_searched_again(tuner, folder, url):
    synthesize(8, seed=1).save(folder / "space.json.gz", columns=True)
    synthesize(8, seed=2).save(folder / "other.json.gz", columns=True)
    for space in ("space", "other"):
        replay_campaign(folder, f"{space}.json.gz")
        assert tuner("run", "c", "--no-report", "--quiet").code == 0
    # The second run's table has replaced that of the first, whose kernel has the same name.
    assert "trials of 1 runs deleted" in tuner("prune", "--keep", 1).err
    assert trials_of(url)[1] < 8
    replay_campaign(folder, "space.json.gz")
    assert tuner("run", "c", "--no-report", "--quiet").code == 0
    first, again = (json.loads(tuner("status", run, "-f", "json").out)[0] for run in (1, 3))
    assert (again["stage"], again["trials"]) == ("done", 8)
    assert again["config"] == first["config"]


@pytest.mark.parametrize("arguments", [[], ["--keep", "0"], ["--keep", "all"], ["--keep", "-1"]])
def test_how_many_to_keep_must_be_said(tuner, five_runs, arguments):
    result = tuner("prune", *arguments)
    assert result.code == 2
    assert "--keep" in result.error
    assert set(trials_of(five_runs).values()) == {1}
