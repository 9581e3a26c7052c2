"""`tuner show`: a run, a task and a trial, to read and to paste, with nothing left out."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import replace

import pytest
import triton
from cli_samples import BEST, HOSTILE, fill

from results_db import Store, TrialRecord
from results_db.stored_records import BaselineRecord, TaskKey
from search_spaces import registry
from search_spaces.declaration import guarded_calls
from search_spaces.records import Status, Toolchain, Workload
from tuner.base.log_ratio import LogRatio
from workers.device import offline

TRACEBACK = f"Traceback (most recent call last):\n  line 3 \x1b[31m\n{HOSTILE} \ud800"


@pytest.fixture
def task(url) -> int:
    """A run with one task, whose second trial has failed with a traceback."""
    eager = BaselineRecord("eager", Status.CORRECT, 98.0, LogRatio(0.3365, 0.33, 0.34))
    run = fill(url, baselines=(eager,))
    with Store.open(url) as store:
        again = store.begin_run("nightly", "spec", 8, {"host": "there"}, {})
        (done,) = store.tasks(run)
        task = store.ensure_task(again.run_id, done.key, flops=1.0, bytes=1.0, tolerance=None)
        record = TrialRecord("a", 3, {"BLOCK": 8, "num_warps": 4, "path": HOSTILE}, Status.COMPILE)
        failed = {"message": f"out of resource {HOSTILE}", "detail": TRACEBACK, "registers": 255}
        store.record_trial(task.task_id, replace(record, **failed))
        return task.task_id


def test_a_run_lists_its_tasks_with_references_that_can_be_shown(tuner, url, task):
    shown = json.loads(tuner("show", 1, "-f", "json").out)
    assert (shown["campaign"], shown["environment"]) == ("nightly", {"host": "here"})
    (row,) = shown["tasks"]
    assert row["task"] == "1/1"
    assert json.loads(tuner("status", 1, "-f", "json").out)[0] == row
    table = tuner("show", 1).out
    assert "host=here" in table
    assert "1.40x eager" in table
    one = json.loads(tuner("show", row["task"], "-f", "json").out)
    assert (one["verdict"], one["trials"], one["failed"]) == ("faster", 1, 0)
    assert [each["name"] for each in one["baselines"]] == ["eager"]


def test_facts_without_a_value_are_left_out_for_readers(tuner, url):
    environment = {"git": "", "host": "here"}
    with Store.open(url) as store:
        store.begin_run("nightly", "spec", 8, environment, {})
    assert "git=" not in tuner("show", 1).out
    assert json.loads(tuner("show", 1, "-f", "json").out)["environment"] == environment


def test_facts_of_a_run_are_read_one_by_one(tuner, url):
    summary = {"summary": "9 trials", "configs": 5547.0, "elapsed_s": 200.918}
    with Store.open(url) as store:
        run = store.begin_run("nightly", "spec", 8, {"devices": "NVIDIA H200", "cores": 16}, {})
        store.finish_run(run.run_id, "finished", summary)
    lines = [line.split(maxsplit=1) for line in tuner("show", 1).out.splitlines()]
    assert ["environment", "cores=16, devices=NVIDIA H200"] in lines
    assert ["summary", "9 trials"] in lines
    assert ["configs", "5547"] in lines
    assert ["took", "3 min 20 s"] in lines
    assert json.loads(tuner("show", 1, "-f", "json").out)["summary"] == summary


def test_the_config_of_a_winner_can_be_pasted(tuner, url, task):
    shown = json.loads(tuner("show", "1/1", "-f", "json").out)
    assert json.loads(shown["json"]) == shown["config"] == BEST
    assert shown["unlike_default"] == "BLOCK 1024 → 4096"
    assert shown["triton"] == 'triton.Config({"BLOCK": 4096})'
    assert 'triton.Config({"BLOCK": 4096})' in tuner("show", "1/1").out

    def scale(x, rows, cols, BLOCK): ...

    tuned = eval(shown["decorator"].removeprefix("@"), {"triton": triton})(triton.jit(scale))
    assert [each.kwargs for each in tuned.configs] == [BEST]
    assert tuned.keys == ["rows", "cols"]


def test_a_failed_trial_shows_its_traceback_line_by_line(tuner, url, task):
    lines = tuner("show", "2/1/3").out.splitlines()
    assert "detail:" in lines
    assert lines[lines.index("detail:") + 1].startswith("Traceback (most recent")
    assert next(line for line in lines if line.startswith("registers")).split()[1] == "255"
    data = json.loads(tuner("show", "2/1/3", "-f", "json").out)
    assert (data["status"], data["detail"]) == ("compile", TRACEBACK)

    class Config:
        def __init__(self, kwargs: object, **options: object) -> None:
            self.parts = kwargs, options

    triton = type(sys)("triton")
    triton.Config = Config
    kwargs, options = eval(data["triton"], {"triton": triton}).parts
    assert {**kwargs, **options} == data["config"] == json.loads(data["json"])
    assert options == {"num_warps": 4}


@pytest.mark.parametrize("style", ["table", "json", "csv", "md"])
@pytest.mark.parametrize("part", ["", "/1", "/1/3"])
def test_what_is_stored_is_inert_in_every_format(tuner, url, task, part, style):
    result = tuner("show", f"2{part}", "-f", style)
    assert result.code == 0, result.err
    assert not set(result.out) & set("\x1b\u202e\r\ud800")
    if style == "csv":
        rows = {row["what"]: row["value"] for row in csv.DictReader(io.StringIO(result.out))}
        assert len(rows) > 5


@pytest.mark.parametrize(
    ("reference", "message", "hint"),
    [
        ("9", "there is no run 9", ""),
        ("1/99", "run 1 has no task 99", "`tuner show 1` lists its tasks"),
        ("1/2", "run 1 has no task 2", "`tuner show 1` lists its tasks"),
        ("1/1/99", "task 1/1 has no trial 99", ""),
        ("1/", "'1/' is no run, task or trial", "write 3 for a run"),
        ("1/1/1/1", "'1/1/1/1' is no run, task or trial", "write 3 for a run"),
    ],
)
def test_what_is_not_there_is_one_line(tuner, url, task, reference, message, hint):
    result = tuner("show", reference)
    assert result.code == 2
    assert message in result.error
    assert hint in result.hint


def test_nothing_is_written(tuner, url, task, folder):
    path = folder / "results" / "tuner.db"
    before = path.read_bytes()
    for reference in ("1", "1/1", "1/1/0"):
        assert tuner("show", reference).code == 0
    assert path.read_bytes() == before


@pytest.fixture
def compiled(url) -> str:
    """A trial of a built-in kernel for a GPU that is not here."""
    kernel, workload = registry.load("softmax"), Workload.of(rows=64, cols=1024, dtype="float16")
    device = offline("cuda:90")
    config = next(iter(guarded_calls.bind(kernel, workload, device).enumerate()))
    key = TaskKey("softmax", kernel.launch_hash(), "s", workload, device, Toolchain(), "p")
    with Store.open(url, create=True) as store:
        run = store.begin_run("nightly", "spec", 8, {}, {})
        task = store.ensure_task(run.run_id, key, flops=1.0, bytes=1.0, tolerance=None)
        store.record_trial(
            task.task_id, TrialRecord("a", 0, config, Status.CORRECT, binary_hash="b")
        )
        changed = replace(key, launch_hash="earlier")
        task = store.ensure_task(run.run_id, changed, flops=1.0, bytes=1.0, tolerance=None)
        store.record_trial(task.task_id, TrialRecord("b", 0, config, Status.CORRECT))
    return f"{run.run_id}/1/0"


def test_the_assembly_of_a_trial_is_built_again_without_its_device(tuner, compiled):
    found = tuner("show", compiled, "--asm")
    assert found.code == 0
    lines = found.out.splitlines()
    assert lines[0].startswith("// ")
    assert lines[0].endswith(".ptx")
    assert any(line.startswith(".target sm_90") for line in lines)
    assert "code for sm_90" in found.out
    assert "EXIT" in found.out
    assert "another toolchain has built it" in found.err  # its hash is made up


def test_assembly_is_refused_where_it_would_be_of_something_else(tuner, compiled):
    changed = tuner("show", compiled.replace("/1/", "/2/"), "--asm")
    assert changed.code == 2
    assert "the code of softmax has changed since run 1" in changed.err
    assert tuner("show", "1/1", "--asm").code == 2


def test_tasks_are_numbered_within_their_run(tuner, task):
    assert task != 1
    (row,) = json.loads(tuner("show", 2, "-f", "json").out)["tasks"]
    (trial,) = json.loads(tuner("trials", 2, "-f", "json").out)
    assert (row["task"], trial["trial"]) == ("2/1", "2/1/3")
    assert json.loads(tuner("show", trial["trial"], "-f", "json").out)["task"] == "2/1"
    assert tuner("show", f"2/{task}").err.startswith(f"error: run 2 has no task {task}\n")
