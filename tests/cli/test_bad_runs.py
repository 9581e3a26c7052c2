"""Failing runs through the real command line: no result is lost, and the message has the reason."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from cli_samples import campaign_file, kernel_file
from made_up_spaces import synthesize

import tuner as farm
from results_db import Store
from search_spaces.errors import TunerError
from search_spaces.records import Status
from tuner.campaign import lease

CONFIG = """version: 1
pool: {{kind: virtual}}
measure: {{final_pairs: 8, warm_ms: 1}}
campaigns:
  c:
    targets: ["simulated:space.json.gz"]
    strategy: {{name: {strategy}}}
    budget: {{trials: 400}}
    tasks:
      - kernel: recorded:space.json.gz
{more}"""


def recorded(
    folder: Path,
    *,
    strategy: str = "exhaustive",
    more: str = "",
    size: int = 60,
    wrong: bool = False,
) -> None:
    """A folder with a campaign `c` that replays a recording, of which every config may be wrong."""
    space = synthesize(size, seed=1)
    if wrong:
        failed = {"status": Status.CORRECTNESS, "median_us": None, "message": "output differs"}
        space = replace(space, configs=tuple(replace(one, **failed) for one in space.configs))
    space.save(folder / "space.json.gz", columns=True)
    text = CONFIG.format(strategy=strategy, more=more)
    (folder / "config.yaml").write_text(text)


def refused(result, *words: str, code: int = 2) -> None:
    assert result.code == code, result.err
    for word in words:
        assert word in result.error
    assert result.hint


# -- what a kernel's own code gets wrong -----------------------------------------------------------
FAULTS = {
    "name": ('name = "small"', "", "it has no name"),
    "kinds": ('kinds = ("cpu",)', 'kinds = "cpu"', "kinds is 'cpu', not a tuple of backends"),
    "alike": (
        "[Workload.of(n=4)]",
        "[Workload.of(n=4), Workload.of(n=4.0)]",
        "the workloads 'n=4' and 'n=4.0' are equal in Python",
    ),
    "not finite": ("[Workload.of(n=4)]", "[Workload.of(n=float('inf'))]", "n is not finite"),
    "numpy": (
        "[Workload.of(n=4)]",
        "[Workload.of(n=__import__('numpy').int64(4))]",
        "n is a numpy.int64",
    ),
    "no workloads": ("[Workload.of(n=4)]", "[]", "workloads() lists none"),
    "no Workload": ("[Workload.of(n=4)]", "[{'n': 4}]", "lists {'n': 4}, which is no Workload"),
    "workloads": ("[Workload.of(n=4)]", "1 / 0", "workloads() raises ZeroDivisionError"),
    "check": (
        'if workload.get("n", 0) <= 0:',
        "raise ValueError('two\\nlines')\n        if 0:",
        "check_workload() for 'n=4' raises ValueError: two lines (small.py:",
    ),
    "cost": ("Cost(1.0, 16.0)", "Cost(float('nan'), 1.0)", "cost() for 'n=4' returns Cost(flops"),
    "tolerance": ("Tolerance(1e-5, 1e-5)", "None", "tolerance() for 'n=4' returns None"),
    "outputs": ('"out": TensorSpec((4,), "float32")', '"out": 4', "outputs() for 'n=4' returns"),
    "baselines": ("workload): return {}\n", "workload): [].x\n", "raises AttributeError"),
    "space": (
        "return SearchSpace(",
        "raise KeyError('a')\n        dict(",
        "space() for 'n=4' raises",
    ),
    "default": ('{"a": 1}', '{"a": 7}', "default_config() for 'n=4' is no point of the space: a"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_kernel_that_declares_nonsense(tuner, folder, fault):
    campaign_file(folder, kernel_file(folder))
    right, wrong, message = FAULTS[fault]
    text = (folder / "small.py").read_text()
    assert right in text
    (folder / "small.py").write_text(text.replace(right, wrong))
    refused(tuner("run", "c", "--dry-run"), "kernel", message)
    shown = tuner("spaces", "show", "small.py:Small", "--validate")
    assert shown.code in (1, 2)
    assert message in shown.out + shown.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def (", "SyntaxError"),
        ("raise ValueError('no\\nway')", "ValueError: no way (bad.py:1)"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("Small = 3", "it is a int, not a Kernel"),
        ("def Small(): raise OSError('gone')", "making it fails with OSError: gone (bad.py:1)"),
        ("", "has no Small"),
    ],
)
def test_a_file_that_holds_no_kernel(tuner, folder, text, message):
    (folder / "bad.py").write_text(text)
    campaign_file(folder, "bad.py:Small")
    refused(tuner("run", "c", "--dry-run"), "bad.py:Small", message)


def test_files_beside_the_configuration_are_found_from_elsewhere(tuner, folder, monkeypatch):
    recorded(folder)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    result = tuner("run", "c", "--dry-run", "--config", "../config.yaml", "--format", "json")
    assert result.code == 0, result.err
    (planned,) = json.loads(result.out)
    assert (planned["mode"], planned["configs"], planned["known"]) == ("measure", 60, 0)


# -- before a run begins ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("tpe, options: {foo: 3}", "'tpe' cannot use these options"),
        ("tpe, options: {n_startup_trials: x}", "'tpe' cannot use these options"),
        ("exhaustive, options: {order: 2}", "'exhaustive' cannot use these options"),
    ],
)
def test_options_that_a_strategy_does_not_take(tuner, folder, strategy, message):
    recorded(folder, strategy=strategy)
    refused(tuner("run", "c"), message)
    assert not (folder / "results").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "N=5"], "matches --workload 'N=5'"),
        (["--seed", "99999999999999999999"], "'--seed'"),
        (["--trials", "99999999999999999999"], "'--trials'"),
    ],
)
def test_options_of_the_command_line(tuner, folder, arguments, message):
    recorded(folder)
    refused(tuner("run", "c", *arguments), message)
    assert not (folder / "results").exists()


@pytest.mark.parametrize("space", ["{num_warp: [4]}", "{num_warps: [5]}", "{num_warps: []}"])
def test_a_restriction_of_what_is_not_there(tuner, folder, space):
    recorded(folder, more=f"        space: {space}\n")
    refused(tuner("run", "c", "--dry-run"), "synthetic [N=4096", "num_warp")


def test_a_recording_that_is_none(tuner, folder):
    recorded(folder)
    (folder / "space.json.gz").write_bytes(b"\x1f\x8b" + b"x" * 100)
    refused(tuner("run", "c", "--dry-run"), "space.json.gz")
    (folder / "space.json.gz").unlink()
    refused(tuner("run", "c", "--dry-run"), "space.json.gz", "cannot be read")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 0}, "budget.trials: expected greater than 0 or 'auto', found 0"),
        ({"budget": {"trails": 5}}, "unknown key; did you mean 'trials'?"),
        ({"target": "cdua"}, "unknown target 'cdua'; did you mean 'cuda'?"),
        ({"strategy": "tep"}, "unknown strategy 'tep'; did you mean 'tpe'?"),
        ({"pool": "loca"}, "unknown pool 'loca'; did you mean 'local'?"),
        ({"settings": {"measur": {}}}, "unknown key; did you mean 'measure'?"),
        ({"workload": {"rows": [3]}}, "rows: expected boolean or integer"),
        ({"workload": {"rows": 3}}, "softmax cannot take workload 'rows=3': cols is missing"),
    ],
)
def test_tune_raises_an_error_that_its_caller_can_correct(folder, arguments, message):
    workload = {"rows": 64, "cols": 256, "dtype": "float32"}
    with pytest.raises(TunerError) as caught:
        farm.tune("softmax", **{"workload": workload, "target": "cuda:90", **arguments})
    assert message in caught.value.message
    assert caught.value.__notes__ == [f"hint: {caught.value.hint}"]


# -- while it runs ---------------------------------------------------------------------------------
def test_a_run_without_one_correct_variant_is_a_finding(tuner, folder):
    recorded(folder, wrong=True, size=12)
    result = tuner("run", "c", "--quiet")
    refused(result, "synthetic N=4096", "none of 12 variants is correct", code=1)
    assert "0 with a winner" in result.out
    assert (folder / "results" / "report.html").is_file()
    (task,) = json.loads(tuner("status", "--format", "json").out)
    assert (task["trials"], task["failed"], task["verdict"]) == (12, 12, None)
    assert "none of 12 variants is correct" in task["note"]
    refused(tuner("export"), "nothing to export")
    assert tuner("export", "--format", "csv").code == 0


def test_time_for_a_run_is_that_of_all_its_tasks(tuner, folder):
    synthesize(60, seed=2).save(folder / "other.json.gz", columns=True)
    recorded(folder, more="      - kernel: recorded:other.json.gz\n")
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace('"simulated:space.json.gz"', "simulated"))
    result = tuner("run", "c", "--quiet", "--no-report", "--wall", "0.000001s")
    assert result.code == 0, result.err
    assert "0 trials (0 failed) over 2 tasks, 0 with a winner" in result.out
    tasks = json.loads(tuner("status", "--format", "json").out)
    assert [task["note"] for task in tasks] == ["nothing was tried: the run was out of time"] * 2
    result = tuner("run", "c", "--quiet", "--no-report", "--wall", "1d")
    assert "120 trials (0 failed) over 2 tasks, 2 with a winner" in result.out


def test_wall_time_of_a_campaign_is_replaced_by_the_option(tuner, folder):
    recorded(folder, size=12)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("    tasks:", "    wall: 0.000001s\n    tasks:"))
    result = tuner("run", "c", "--quiet", "--no-report", "--fresh")
    assert "0 trials (0 failed) over 1 tasks, 0 with a winner" in result.out
    result = tuner("run", "c", "--quiet", "--no-report", "--fresh", "--wall", "1d")
    assert "12 trials (0 failed) over 1 tasks, 1 with a winner" in result.out


def test_wall_time_in_python_is_that_of_the_whole_call(folder):
    recorded(folder)
    workload = {"N": 4096, "dtype": "bfloat16"}
    for wall, trials in (("0.000001s", 0), ("1d", 7)):
        budget = {"trials": 7, "wall": wall}
        result = farm.tune("recorded:space.json.gz", workload, budget=budget, pool="virtual")
        assert len(result.trials) == trials


def test_a_workload_named_twice_is_tuned_once(tuner, folder):
    recorded(folder, more="      - kernel: recorded:space.json.gz\n", size=8)
    result = tuner("run", "c", "--quiet", "--no-report")
    assert result.code == 0, result.err
    assert "8 trials (0 failed) over 1 tasks" in result.out
    assert "listed twice" in result.out
    planned = json.loads(tuner("run", "c", "--dry-run", "--format", "json").out)
    assert [(task["mode"], task["known"]) for task in planned] == [("measure", 8), ("skip", 0)]
    assert json.loads(tuner("run", "c", "--dry-run", "--fresh", "-f", "json").out)[0]["known"] == 0


@pytest.mark.parametrize(
    ("campaign", "command"), [("c", "tuner run"), ("k.py:K", "tuner run k.py:K")]
)
def test_a_run_whose_driver_is_gone_says_so_and_is_not_watched_for_ever(
    tuner, folder, campaign, command
):
    with Store.open(f"sqlite:///{folder / 'results' / 'tuner.db'}") as store:
        run = store.begin_run(campaign, "spec", 1, {}, {})
        boot, space, *_ = lease.process_identity().split()
        gone = f"{boot} {space} 4194999 1"
        assert store.take_run(run, "token", f"{socket.gethostname()}:4194999", gone)
    for arguments in (["status"], ["status", "--watch"]):
        result = tuner(*arguments)
        assert result.code == 0
        assert f"its driver is dead; rerun `{command}` to resume it" in result.out + result.err


def test_checks_of_what_is_not_there(tuner, folder):
    (folder / "empty").mkdir()
    refused(tuner("check", "empty"), "empty: there are no tables")
    assert tuner("db", "upgrade").code == 0
    refused(tuner("check", "--run", "99"), "no runs here")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b'{"a": 1}', "is not a table of schema tuner-table/1"),
        (b'{"schema": "tuner-table/9"}', "has schema tuner-table/9"),
        (b"[" * 100_000, "is nested too deeply"),
    ],
)
def test_a_table_that_is_none_is_a_finding(tuner, folder, content, message):
    (folder / "softmax@Device-1.json").write_bytes(content)
    result = tuner("check", ".", "-f", "json")
    assert (result.code, result.err) == (1, "")
    (row,) = json.loads(result.out)
    assert row["kernel"] == "softmax@Device-1.json"
    assert message in row["note"]


WAITING = """
import pathlib, time
print("importing", flush=True)  # to stderr, as all that a module prints at import
while pathlib.Path("wait").exists():
    time.sleep(0.02)
"""


def test_an_interrupt_while_it_starts_leaves_nothing_behind(tuner, folder):
    campaign_file(folder, kernel_file(folder, header=WAITING))
    (folder / "wait").touch()
    child = subprocess.Popen(
        [sys.executable, "-m", "tuner", "run", "c", "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    with child.stdout, child.stderr:
        assert child.stderr.readline() == "importing\n"
        child.send_signal(signal.SIGINT)
        assert "once more to stop at once" in child.stderr.readline()
        (folder / "wait").unlink()
        assert (child.stdout.read(), child.stderr.read()) == ("", "")
    assert child.wait() == 130
    refused(tuner("status"), "there is no database")


# -- disks -----------------------------------------------------------------------------------------
@contextmanager
def disk(place: Path, kibibytes: int) -> Iterator[Callable[[str], None]]:
    """A file system of that size; skips the test where none may be mounted."""
    place.mkdir(parents=True)

    def mount(*arguments: str) -> None:
        subprocess.run(["mount", *arguments, f"{place}"], check=True, capture_output=True)

    try:
        mount("-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system can be mounted here")
    try:
        yield lambda option: mount("-o", f"remount,{option}")
    finally:
        subprocess.run(["umount", "--lazy", f"{place}"], check=True)


def test_a_disk_that_fills_up_under_the_database(tuner, folder, monkeypatch):
    recorded(folder)
    Store.open(f"sqlite:///{folder / 'empty.db'}").close()
    # Room for the tables and the first trials.
    room = (folder / "empty.db").stat().st_size // 1024 + 144
    with disk(folder / "small", room) as remount:
        monkeypatch.setenv("TUNER__DATABASE__URL", f"sqlite:///{folder / 'small' / 'tuner.db'}")
        result = tuner("run", "c", "--quiet", "--no-report")
        refused(result, "tuner.db: database or disk is full")
        assert "free some space" in result.hint
        remount("size=20M")
        (task,) = json.loads(tuner("status", "--format", "json").out)
        assert task["stage"] == "search"
        result = tuner("run", "c", "--quiet", "--no-report")
        assert result.code == 0, result.err
        assert "60 trials" in result.out
        assert len(json.loads(tuner("status", "--all", "--format", "json").out)) == 1
        assert tuner("db", "check").code == 0


def test_a_disk_that_is_full_when_products_are_written(tuner, folder, monkeypatch):
    recorded(folder, size=8)
    with disk(folder / "small", 64):
        monkeypatch.setenv("TUNER__PATHS__RESULTS", f"{folder / 'small'}")
        refused(tuner("run", "c", "--quiet"), "report.html: cannot be written", "No space left")
        assert list((folder / "small").iterdir()) == []
        assert len(list((folder / "results" / "tables").iterdir())) == 1
        assert tuner("report", "-o", "report.html").code == 0
        (folder / "small" / "filler").write_bytes(b"x" * 65_536)
        refused(tuner("export", "-o", "small"), "small", "No space left")
        refused(
            tuner("init", "small/new"), "small/new/config.yaml: cannot be written (No space left"
        )
        assert list((folder / "small" / "new").iterdir()) == []


def test_a_folder_that_is_read_only(tuner, folder, monkeypatch):
    with disk(folder / "small", 4096) as remount:
        recorded(folder / "small")
        remount("ro")
        monkeypatch.chdir(folder / "small")
        refused(tuner("run", "c"), "Read-only file system")
        refused(tuner("init", "new"), "new/config.yaml: cannot be written (Read-only file system)")
        assert tuner("run", "c", "--dry-run").code == 0
        assert tuner("doctor").code == 1
        os.chdir(folder)
