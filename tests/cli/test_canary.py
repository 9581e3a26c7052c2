"""A campaign with `check`: published tables under the wheels of a folder, as a run in the note."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from cpu_samples import KERNEL

from results_db import Store
from tuner.cli import invoke

#: `halves` is what another toolchain changes: how `Double` adds.
CONFIG = """version: 1
pool: {kind: local, builders: 1}
measure: {warm_ms: 1, final_pairs: 16}
kernels: ['double.py:Double']
campaigns:
  first:
    tasks: [{kernel: 'double.py:Double'}]
    strategy: exhaustive
  canary:
    check: {tables: results/tables, wheels: wheels}
    schedule: {cron: '* * * * *'}
"""
SAME = "def add(x): return x + x\n"
WORKS = {
    "same": SAME,
    "slower": "def add(x):\n    for _ in range(900): x = x + 0.0\n    return x + x\n",
    "wrong": "def add(x): return x * 3\n",
    "fails": "def add(x): raise RuntimeError('no such intrinsic')\n",
}


def write_wheel(folder: Path, text: str, name: str = "halves-2.0-py3-none-any.whl") -> None:
    """A wheel of one module, in its least form."""
    folder.mkdir(exist_ok=True)
    facts = "halves-2.0.dist-info"
    files = {
        "halves.py": text,
        f"{facts}/METADATA": "Metadata-Version: 2.1\nName: halves\nVersion: 2.0\n",
        f"{facts}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{facts}/RECORD"])
    with zipfile.ZipFile(folder / name, "w") as wheel:
        for path, content in (files | {f"{facts}/RECORD": record}).items():
            wheel.writestr(path, content)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder with a table of `double`, found with the installed `halves`."""
    folder = tmp_path_factory.mktemp("published")
    (folder / "installed").mkdir()
    (folder / "installed" / "halves.py").write_text(SAME)
    text = KERNEL.replace("import torch", "import torch\nimport halves")
    (folder / "double.py").write_text(
        text.replace(
            'return {"out": inputs["x"] + inputs["x"]}', 'return {"out": halves.add(inputs["x"])}'
        )
    )
    (folder / "config.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        use_installed(folder, patch)
        assert invoke(["run", "first", "--no-report", "-q"]) == 0
    return folder


def use_installed(folder, patch):
    known = [f"{folder / 'installed'}", os.environ.get("PYTHONPATH", "")]
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, known)))
    patch.syspath_prepend(folder / "installed")


@pytest.fixture
def farm(published, folder, monkeypatch):
    """A copy of it."""
    shutil.copytree(published, folder, dirs_exist_ok=True)
    use_installed(folder, monkeypatch)
    monkeypatch.setenv("TUNER_CACHE_DIR", f"{folder / 'cache'}")
    return folder


def write_report(tuner, folder: Path) -> str:
    assert tuner("report", "2").code == 0
    return (folder / "results" / "report.html").read_text()


def say(tuner) -> list[str]:
    events = json.loads(tuner("note", "-f", "json").out)
    return [each["text"] for each in events if each["what"] == "canary"]


@pytest.mark.parametrize(
    ("work", "words"),
    [
        ("slower", {"slower", "flipped"}),
        ("wrong", {"wrong"}),
        ("fails", {"no longer builds"}),
    ],
)
def test_what_other_wheels_make_worse_is_a_run_and_in_the_note(tuner, farm, work, words):
    write_wheel(farm / "wheels", WORKS[work])
    result = tuner("run", "canary", "-f", "json")
    assert result.code == 1, result.err
    (entry,) = json.loads(result.out)
    assert (entry["kernel"], entry["workload"]) == ("double", "n=1000")
    found = entry["result"]
    assert found in words
    line = f"1 of 1 entries {found} under halves 2.0: double n=1000 {found}"
    assert line in result.err
    (told,) = say(tuner)
    assert told.startswith(line)
    shown = json.loads(tuner("show", "2", "-f", "json").out)
    assert shown["campaign"] == "canary"
    assert shown["environment"]["wheels"] == "halves 2.0"
    assert shown["summary"]["entries"][0]["result"] == found
    assert "double" in tuner("show", "2").out
    assert line in write_report(tuner, farm)
    exported = tuner("export", "--format", "csv", "--output", f"{farm / 'exported'}")
    assert exported.code == 0, exported.err
    assert "run-1-" in exported.out
    assert [each["campaign"] for each in json.loads(tuner("runs", "-f", "json").out)] == [
        "canary",
        "first",
    ]


def test_equal_wheels_find_nothing_are_installed_once_and_tick_runs_them(tuner, farm):
    write_wheel(farm / "wheels", WORKS["same"])
    (farm / "results" / "tables").rename(farm / "given")
    (table,) = (farm / "given").glob("*.json")
    document = json.loads(table.read_text())
    document["entries"][0]["median_us"] *= 100  # so that no busy processor makes it slower
    table.write_text(json.dumps(document))
    text = (farm / "config.yaml").read_text().replace("results/tables", f"[given/{table.name}]")
    (farm / "config.yaml").write_text(text)
    for run in (2, 3):
        command = ("run", "canary") if run == 2 else ("schedule", "tick")
        result = tuner(*command)
        assert result.code == 0, result.err
        assert len(list((farm / "cache" / "toolchains").iterdir())) == 1
    assert say(tuner) == ["1 entries, none of them worse under halves 2.0"] * 2


def test_a_tick_exits_with_1_on_a_finding(tuner, farm):
    write_wheel(farm / "wheels", WORKS["wrong"])
    result = tuner("schedule", "tick")
    assert result.code == 1
    assert "canary: 1 of 1 entries wrong under halves 2.0" in result.err


def test_bad_input_is_one_line(tuner, farm):
    assert "wheels: no wheel" in tuner("run", "canary").error
    write_wheel(farm / "wheels", SAME, "halves-2.0-cp27-cp27m-win32.whl")
    result = tuner("run", "canary")
    assert (result.code, "not a supported wheel" in result.error) == (2, True)
    assert list((farm / "cache" / "toolchains").iterdir()) == []
    (farm / "wheels" / "halves-2.0-cp27-cp27m-win32.whl").unlink()
    write_wheel(farm / "wheels", SAME)
    assert "without trials" in tuner("run", "canary", "--trials", 3).error
    assert "no tasks to plan" in tuner("run", "canary", "--dry-run").error
    (farm / "results" / "tables").rename(farm / "gone")
    assert "results/tables: no such file or folder" in tuner("run", "canary").error
    (farm / "results" / "tables").mkdir()
    assert "tuner check: " in tuner("run", "canary").error
    assert len(json.loads(tuner("runs", "-f", "json").out)) == 1


def test_interrupted_it_stores_nothing(farm, url):
    """The kernel under the wheel hangs; one signal to the command alone ends both processes."""
    started = farm / "started"
    hang = f"import pathlib, time\ndef add(x):\n    pathlib.Path({str(started)!r}).touch()\n"
    write_wheel(farm / "wheels", f"{hang}    time.sleep(600)\n")
    command = [sys.executable, "-m", "tuner", "run", "canary"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=farm) as child:
        while not started.exists() and child.poll() is None:
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        err = child.communicate()[1]
    assert child.returncode == 130, err
    with Store.open(url) as store:
        assert [run.campaign for run in store.runs()] == ["first"]


def test_killed_between_its_writes_it_is_shown_as_dead(tuner, farm, url):
    """It ends itself where the second write of its run begins."""
    write_wheel(farm / "wheels", SAME)
    die = (
        "import os, signal, sys\nfrom results_db import Store\nfrom tuner.cli import main\n"
        "Store.finish_run = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.argv[1:] = ['run', 'canary']\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", die], cwd=farm, check=False)
    assert done.returncode == -signal.SIGKILL
    with Store.open(url) as store:
        assert store.run(2).holder
    status = tuner("status")
    assert "run 2 of canary: running" in status.out
    assert "its driver is dead; rerun `tuner run`" in status.out
    assert "resume" not in status.out
    assert tuner("run", "canary").code in (0, 1)
    (run,) = json.loads(tuner("runs", "-f", "json").out)[:1]
    assert (run["run"], run["status"]) == (3, "finished")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("tables: a, wheel: b", "campaigns.canary.check.wheels: missing"),
        ("tables: [], wheels: b", "at least 1 item"),
        ("tables: a, wheels: b}, budget: {trials: 3", "budget: leave it out beside `check`"),
    ],
)
def test_a_wrong_check_is_refused(tuner, folder, line, problem):
    text = f"version: 1\ncampaigns:\n  canary: {{check: {{{line}}}}}\n"
    (folder / "config.yaml").write_text(text)
    assert problem in tuner("config", "check").err
