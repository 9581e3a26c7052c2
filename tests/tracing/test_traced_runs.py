"""`--trace` of real runs: the file explains where the time went."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_up_spaces import synthesize
from trace_reader import Trace
from virtual_pool import VirtualPool

import tuner as api
from search_spaces.errors import TunerError
from tuner.cli import invoke
from workers import pools

ROOT = Path(__file__).parents[2]
CONFIG = """version: 1
pool:
  kind: local
  builders: 2
  devices: {simulated: {runners: 2, options: {time_scale: 1.0}}}
measure: {baselines: []}
campaigns:
  c:
    targets: [simulated]
    budget: {trials: 12}
    tasks: [{kernel: "recorded:space.json"}]
"""


def tuner(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}", "NO_COLOR": "1", "TMPDIR": f"{folder}"}
    return subprocess.run(
        [sys.executable, "-m", "tuner", *arguments],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def folder(tmp_path) -> Path:
    synthesize(40, seed=3, build_s=0.02).save(tmp_path / "space.json")
    (tmp_path / "config.yaml").write_text(CONFIG)
    return tmp_path


def test_a_run_is_explained_by_its_trace(folder):
    done = tuner(folder, "run", "c", "--trace", "trace.json", "--quiet")
    assert done.returncode == 0, done.stderr
    assert "trace: trace.json (open it in https://ui.perfetto.dev)" in done.stderr
    trace = Trace(folder / "trace.json")
    # Nearly all of it where the machine does nothing else.
    assert trace.explained_us() > trace.duration_us / 2
    names = set(trace.processes.values())
    assert {"driver", "builder-0", "simulated-0"} <= names
    assert any(name.startswith("fork server") for name in names)
    for process, name in (
        ("driver", "start of Python"),
        ("driver", "open the database"),
        ("driver", "start the pool"),
        ("driver", "prepare the tasks"),
        ("driver", "write"),
        ("driver", "write the report"),
        ("driver", "close the pool"),
        ("driver", "exit"),
        ("builder-", "build space.json"),
        ("simulated-", "open simulated"),
        ("simulated-", "screening of space.json"),
        ("simulated-", "confirmation of space.json"),
    ):
        assert trace.named(name, process), (process, name)
    assert len(trace.named("build space", "builder-")) >= 12
    report = (folder / "results" / "report.html").read_text()
    assert 'id="figure-timeline-spans"' in report
    assert [path.name for path in folder.iterdir() if path.name.startswith("tuner-trace-")] == []


def test_a_bad_path_is_one_line_before_anything_starts(folder):
    done = tuner(folder, "run", "c", "--trace", "missing/trace.json")
    assert done.returncode == 2
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: --trace: ")
    assert "cannot be written: there is no folder" in error
    assert hint.startswith("hint: ")
    assert not (folder / "results").exists()


def test_a_failed_run_leaves_its_trace(folder):
    done = tuner(folder, "run", "unknown", "--trace", "trace.json")
    assert done.returncode == 2
    assert "no campaign 'unknown'" in done.stderr
    (command,) = Trace(folder / "trace.json").named("tuner run unknown")
    assert command["args"] == {"error": "TunerError"}


def test_tune_writes_a_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = synthesize(60, seed=5)
    space.save(tmp_path / "space.json")
    arguments = {"kernel": "recorded:space.json", "workload": space.workload, "pool": "virtual"}
    found = api.tune(**arguments, budget=10, trace="trace.json")
    assert found.winner
    trace = Trace(tmp_path / "trace.json")
    (call,) = trace.named("tuner.tune", "driver")
    (pool,) = trace.named("close the pool", "driver")
    assert call["ts"] < pool["ts"] < call["ts"] + call["dur"]
    with pytest.raises(TunerError, match=r"^trace: .*cannot be written"):
        api.tune(**arguments, budget=10, trace=tmp_path / "missing" / "trace.json")


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.slow
def test_actors_of_a_local_ray_are_in_the_trace(folder):
    (folder / "config.yaml").write_text(CONFIG.replace("kind: local", "kind: ray"))
    done = tuner(folder, "run", "c", "--trace", "trace.json", "--quiet")
    assert done.returncode == 0, done.stderr
    trace = Trace(folder / "trace.json")
    names = set(trace.processes.values())
    assert {"driver", "actor of builder-0", "builder-0", "simulated-0"} <= names
    assert trace.named("build", "actor of builder-")
    assert trace.named("screening of space.json", "simulated-")
    # Nearly all of it where the machine does nothing else.
    assert trace.explained_us() > trace.duration_us / 2


def test_bench_writes_a_trace(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(pools, "create", VirtualPool)
    options = ("--target", "simulated", "--config", "default", "--baseline", "none")
    assert invoke(["bench", "recorded:space.json", *options, "--trace", "trace.json"]) == 0
    trace = Trace(folder / "trace.json")
    for name in ("tuner bench recorded:space.json", "start the pool", "close the pool"):
        assert trace.named(name, "driver"), name
