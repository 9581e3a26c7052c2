"""A full disk during a campaign, and failures that the next run tries again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_samples import replay_campaign
from cpu_samples import KERNEL
from made_up_spaces import synthesize

from results_db import Store
from search_spaces.records import Status, Workload
from workers import toolchain
from workers.device import detect
from workers.job_records import (
    Artifact,
    KernelRef,
    MeasureJob,
    Measurement,
    MeasurementProtocol,
    Mode,
)
from workers.measure.device_runner import DeviceRunner
from workers.processes.worker_lost import WorkerLost

ROOT = Path(__file__).parents[2]
COMPILED = """version: 1
pool: {kind: local, builders: 1}
campaigns:
  c:
    targets: ["cuda:90"]
    strategy: {name: random}
    budget: {trials: 2}
    tasks:
      - kernel: softmax
        workloads: [{rows: 64, cols: 64, dtype: float32}]
"""


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", f"{folder}"]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("may not mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", f"{folder}"], check=True)


def run(folder: Path, scratch: Path) -> subprocess.CompletedProcess[str]:
    environment = {"TMPDIR": str(scratch), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-m", "tuner", "run", "c", "--no-report", "--quiet"],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_full_disk_fails_no_config_and_the_same_command_goes_on(tuner, folder):
    (folder / "config.yaml").write_text(COMPILED)
    scratch = folder / "scratch"
    scratch.mkdir()
    with small_disk(scratch):
        ended = run(folder, scratch)
        assert ended.returncode == 1, ended.stderr
        said = [line for line in ended.stderr.splitlines() if line.startswith(("error", "hint"))]
        assert "softmax" in said[0]
        assert "No space left on device" in said[0]
        assert "TMPDIR" in said[1]
        assert len(said) == 2
        assert list(scratch.iterdir()) == []
        subprocess.run(["mount", "-o", "remount,size=64m", f"{scratch}"], check=True)
        (task,) = json.loads(tuner("status", "--format", "json").out)
        assert (task["stage"], task["trials"]) == ("search", 0)
        assert "given up: " in task["note"]

        ended = run(folder, scratch)
        assert ended.returncode == 0, ended.stderr
    (task,) = json.loads(tuner("status", "--format", "json").out)
    assert (task["stage"], task["trials"], task["failed"]) == ("done", 2, 0)
    assert "given up" not in task["note"]
    assert len(json.loads(tuner("status", "--all", "--format", "json").out)) == 1


def test_an_artifact_that_cannot_be_unpacked_fails_no_config(folder, monkeypatch):
    (folder / "double.py").write_text(KERNEL)
    config, ref = {"way": "add"}, KernelRef(f"{folder}/double.py:Double")
    files = {"inductor/large": zlib.compress(os.urandom(300_000))}
    here = detect("cpu").target
    artifact = Artifact(config, here, toolchain.inductor_toolchain(), "hash", files=files)
    quick = MeasurementProtocol(warm_ms=0.0, pairs=(3,), final_pairs=8)
    job = MeasureJob("m", ref, Workload.of(n=1000), (artifact,), Mode.SCREENING, protocol=quick)
    scratch = folder / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", f"{scratch}")
    runner = DeviceRunner("cpu")
    try:
        with small_disk(scratch):
            with pytest.raises(WorkerLost, match="No space left on device") as caught:
                runner.measure(job)
            assert "TMPDIR" in caught.value.remedy
            subprocess.run(["mount", "-o", "remount,size=64m", f"{scratch}"], check=True)
            assert isinstance(runner.measure(job), Measurement)
            runner.kill()
    finally:
        runner.close()


def replayed(tuner, folder: Path) -> str:
    synthesize(40, seed=1, failures=0.2).save(folder / "space.json.gz", columns=True)
    replay_campaign(folder, "space.json.gz")
    assert tuner("run", "c", "--no-report", "--quiet").code == 0
    return f"sqlite:///{folder / 'results' / 'tuner.db'}"


def test_forgotten_failures_are_tried_again(tuner, folder):
    url = replayed(tuner, folder)
    (task,) = json.loads(tuner("status", "--format", "json").out)
    assert task["failed"] > 2
    listed = tuner("forget", "--dry-run", "--format", "json")
    rows = json.loads(listed.out)
    assert len(rows) == task["failed"]
    assert f"{len(rows)} trials would be forgotten" in listed.err
    status = rows[0]["status"]
    some = [row for row in rows if row["status"] == status]
    assert tuner("forget", "--status", status, "--message", "no such text").code == 0
    gone = tuner("forget", "--run", 1, "--kernel", task["kernel"], "--status", status)
    assert gone.code == 0
    assert f"{len(some)} trials forgotten ({len(some)} {status})" in gone.err
    assert tuner("run", "c", "--no-report", "--quiet").code == 0
    with Store.open(url) as store:
        (again,) = store.tasks(2)
        anew = [each for each in store.trials(again.task_id) if each.source == "measured"]
        known = [each for each in store.trials(again.task_id) if each.source == "reused"]
    assert {str(each.status) for each in anew} == {status}
    assert len(anew) == len(some)
    assert len(known) == task["trials"] - len(some)
    refused = tuner("forget", "--run", 77)
    assert (refused.code, "there is no run 77" in refused.error) == (2, True)


def test_results_of_a_faulty_machine_in_an_older_database_are_not_taken_over(tuner, folder):
    url = replayed(tuner, folder)
    with Store.open(url) as store, store._database.write() as connection:
        connection.exec_driver_sql(
            "UPDATE trial SET status = 'compile', source = 'measured', message = "
            "'OSError: [Errno 28] No space left on device' WHERE number IN (1, 2)"
        )
    plan = json.loads(tuner("run", "c", "--dry-run", "--format", "json").out)
    (first,) = json.loads(tuner("status", 1, "--format", "json").out)
    assert plan[0]["known"] == first["trials"] - 2
    assert tuner("run", "c", "--no-report", "--quiet").code == 0
    with Store.open(url) as store:
        (again,) = store.tasks(2)
        anew = [each for each in store.trials(again.task_id) if each.source != "reused"]
    assert {each.number for each in anew} != set()
    assert not [each for each in anew if "Errno" in each.message]
    assert len(anew) == 2


def test_lost_trials_of_an_interrupted_run_are_tried_again_when_it_goes_on(tuner, folder):
    url = replayed(tuner, folder)
    with Store.open(url) as store, store._database.write() as connection:
        connection.exec_driver_sql(
            "UPDATE trial SET status = 'runtime', source = 'measured', message = "
            "'lost 8 workers in a row; the last: killed' WHERE number IN (1, 2)"
        )
        connection.exec_driver_sql("UPDATE run SET status = 'interrupted'")
        connection.exec_driver_sql("UPDATE task SET stage = 'search'")
    assert tuner("run", "c", "--no-report", "--quiet").code == 0
    with Store.open(url) as store:
        (task,) = store.tasks(1)
        trials = store.trials(task.task_id)
        assert len(store.runs()) == 1
    assert not [each for each in trials if "lost" in each.message]
    assert len(trials) == 40
    assert any(each.status is Status.CORRECT for each in trials)
