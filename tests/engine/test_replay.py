"""The events that a run keeps, played again: a real run over simulated workers ends as before."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hostile_json import hostile_texts

from results_db import Store
from search_spaces.errors import FindingError, TunerError
from search_spaces.recorded.recorded_kernel import synthesize
from tuner.campaign import RunOptions, run_campaign
from tuner.campaign.replay import plain, replay
from tuner.settings import validate

ROOT = Path(__file__).parents[2]


def config(folder, *, strategy="bayes", faults=None):
    simulated = {"runners": 2, "options": faults or {}}
    return {
        "version": 1,
        "database": {"url": f"sqlite:///{folder}/tuner.db"},
        "pool": {"builders": 2, "devices": {"simulated": simulated}},
        "measure": {"baselines": []},
        "campaigns": {
            "c": {
                "targets": ["simulated"],
                "strategy": {"name": strategy, "seed": 5},
                "tasks": [{"kernel": "recorded:space.json"}],
                "budget": {"trials": 40},
            }
        },
    }


def run(folder, **changes):
    """One campaign over real child processes; the path of its events."""
    synthesize(120, seed=5, failures=0.2, twins=0.15).save(folder / "space.json")
    settings = validate(config(folder, **changes), str)
    events = folder / "events.jsonl"
    options = RunOptions(report=False, export=False, base=folder, events=events)
    outcome = run_campaign(settings, "c", options=options)
    assert outcome.status == "finished"
    return events, outcome


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory):
    return run(tmp_path_factory.mktemp("lost"), strategy="random", faults={"lost": 0.1})


def test_a_replay_ends_in_the_state_and_with_the_winner_of_the_run(finished):
    events, outcome = finished
    replayed = replay(events, validate=True)
    assert replayed.engine.finished
    with Store.open(f"sqlite:///{events.parent}/tuner.db") as store:
        (task,) = store.tasks(outcome.run_id)
        stored = {trial.attempt_id for trial in store.trials(task.task_id)}
    (again,) = replayed.engine.tasks
    assert {trial.record.attempt_id for trial in again.search.trials.values()} == stored
    assert again.finals.tie[0].config == task.selection.winner


def test_a_run_that_lost_workers_is_replayed_too(disturbed):
    events, outcome = disturbed
    kinds = [json.loads(line).get("event") for line in events.read_text().splitlines()]
    assert "JobLost" in kinds
    assert "WorkerGone" in kinds or kinds.count("WorkerReady") >= 2
    replayed = replay(events, validate=True)
    (task,) = replayed.engine.tasks
    assert task.search.trials.done == outcome.trials


def test_a_run_that_reuses_results_is_replayed_too(finished):
    folder = finished[0].parent
    settings = validate(config(folder), str)
    again = folder / "again.jsonl"
    for trials in (40, 44):
        options = RunOptions(report=False, export=False, base=folder, events=again, trials=trials)
        outcome = run_campaign(settings, "c", options=options)
        replayed = replay(again, validate=True)
        (task,) = replayed.engine.tasks
        records = [trial.record for trial in task.search.trials.values()]
        assert len(records) == outcome.trials == trials
        assert sum(record.source == "reused" for record in records) >= 35
    assert task.spec.settled is not None


def test_another_order_of_events_is_noticed(finished, tmp_path):
    lines = finished[0].read_text().splitlines()
    builds = [i for i, line in enumerate(lines) if '"event":"Built"' in line]
    first = json.loads(lines[builds[3]])
    first["result"] = {"status": "compile", "message": "another outcome"}
    lines[builds[3]] = json.dumps(first)
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(lines))
    # Later answers may also fit no job of an engine that has decided otherwise.
    with pytest.raises(FindingError, match=r"another state|the engine fails at this Measured"):
        replay(other)


def test_events_without_an_end_are_played_and_said_to_have_none(finished, tmp_path):
    lines = finished[0].read_text().splitlines()
    cut = tmp_path / "cut.jsonl"
    cut.write_text("\n".join(lines[:-20]))
    with pytest.raises(FindingError, match=f"ends after {len(lines) - 21} events without a digest"):
        replay(cut)


def changed(head, **values):
    return json.dumps({**json.loads(head), **values})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda lines: [], "is not an events file"),
        (lambda lines: ["{}"], "is not an events file"),
        (lambda lines: ["[1]"], "1: the line is not a JSON object"),
        (lambda lines: ["no json"], "is not a complete events file"),
        (lambda lines: [lines[0][:200]], "is not a complete events file"),
        (lambda lines: [changed(lines[0], version=9)], "has version 9"),
        (lambda lines: [changed(lines[0], tasks=[{}])], "1: the line has a task without"),
        (lambda lines: [changed(lines[0], builders="x")], "1: the line has a wrong value"),
        (lambda lines: [lines[0], '{"at":1,"event":"Comet"}'], "2: the line holds no event"),
        (lambda lines: [lines[0], '{"at":1,"event":"JobLost"}'], "2: the line has a wrong job_id"),
    ],
)
def test_a_bad_file_gives_one_clear_line(finished, tmp_path, spoil, message):
    bad = tmp_path / "bad.jsonl"
    bad.write_text("\n".join(spoil(finished[0].read_text().splitlines())))
    with pytest.raises(TunerError) as caught:
        replay(bad)
    assert message in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.full)])
def test_no_head_with_other_values_is_an_unexpected_error(finished, tmp_path, step):
    """Each value of the first line in turn is replaced; then the first event has other values."""
    head, event, *_ = finished[0].read_text().splitlines()
    small = json.loads(head)
    small["tasks"] = small["tasks"][:1]
    bad = tmp_path / "bad.jsonl"
    refused = 0
    heads = (f"{text}\n" for text in hostile_texts(small))
    events = (f"{head}\n{text}\n" for text in hostile_texts(json.loads(event)))
    for text in itertools.islice(itertools.chain(heads, events), None, None, step):
        bad.write_text(text)
        with pytest.raises(TunerError) as caught:
            replay(bad)
        assert "\n" not in caught.value.message
        refused += f"{bad}" in caught.value.message
    assert refused > 100 / step


def test_a_kernel_with_another_space_is_refused(finished, tmp_path):
    lines = finished[0].read_text().splitlines()
    head = json.loads(lines[0])
    head["tasks"][0]["space"] = "0" * 16
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join([json.dumps(head), *lines[1:]]))
    with pytest.raises(TunerError, match="search space is not that of the run"):
        replay(other)


def test_a_file_that_cannot_be_written_or_read_is_named(tmp_path):
    (tmp_path / "events.jsonl").mkdir()
    with pytest.raises(TunerError, match=r"--events: .* cannot be written"):
        run(tmp_path)
    with pytest.raises(TunerError, match="cannot be read"):
        replay(tmp_path / "missing.jsonl")


def test_the_command_line_keeps_events_and_replays_them_in_a_new_process(tmp_path):
    synthesize(60, seed=5, failures=0.2).save(tmp_path / "space.json")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config(tmp_path)))

    def tuner(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "tuner", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )

    done = tuner("run", "c", "--trials", "12", "--no-report", "--quiet", "--events", "e.jsonl")
    assert done.returncode == 0, done.stderr
    again = tuner("replay", "e.jsonl", "--validate", "--format", "json")
    assert again.returncode == 0, again.stderr
    (task,) = json.loads(again.stdout)
    assert (task["stage"], task["trials"]) == ("done", 12)
    lines = (tmp_path / "e.jsonl").read_text().splitlines()
    lines[-1] = json.dumps({"digest": "0" * 64})
    (tmp_path / "e.jsonl").write_text("\n".join(lines))
    differs = tuner("replay", "e.jsonl")
    assert differs.returncode == 1
    assert "another state" in differs.stderr


def test_binaries_are_not_kept(finished):
    assert '"files"' not in finished[0].read_text()
    from scenario import TOOLS

    from workers.job_records import Artifact

    artifact = Artifact({"a": 1}, "cpu", TOOLS, "b", files={"kernel.so": b"\x7fELF"})
    assert plain(artifact) == plain(replace(artifact, files={}))
