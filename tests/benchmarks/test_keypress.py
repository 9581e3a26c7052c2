"""The benchmark from keypress to answer: its processes, and its summary of known documents."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import keypress_process
import keypress_table
import keypress_to_answer as keypress
import pytest
from made_up_spaces import synthesize
from matmul_tasks import TASKS, configs_of

from search_spaces import registry
from search_spaces.records import config_key
from workers import device

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
#: For what ends by itself; that of pytest is 300 s.
LIMIT_S = 280.0


def test_the_answer_of_a_tune_is_read_from_its_process_and_its_database(tmp_path):
    synthesize(24, seed=1).save(tmp_path / "space.json.gz", columns=True)
    options = {"budget": 12, "database": "sqlite:///{folder}/tuner.db"}
    workload = {"N": 4096, "dtype": "bfloat16"}
    call = json.dumps([f"recorded:{tmp_path / 'space.json.gz'}", workload, options])
    found = keypress.timed(
        ("-c", keypress._TUNE, call, "{folder}/answer.json"), ROOT, limit_s=LIMIT_S, database=True
    )
    assert "problem" not in found, found
    assert found["trials"] == 12
    assert found["verdict"] == found["selection"]["verdict"]
    assert found["verdicts"] == {found["verdict"]: 1}
    assert [row["name"] for row in found["baselines"]]
    assert 0 < found["first_trial_s"] <= found["last_trial_s"] <= found["confirmed_s"]
    assert found["confirmed_s"] < found["whole_s"] <= found["gone_s"]


def test_the_calls_of_a_session_are_counted_one_by_one(tmp_path):
    calls = []
    for seed in (1, 2):
        path = tmp_path / f"space{seed}.json.gz"
        synthesize(24, seed=seed).save(path, columns=True)
        calls.append((f"recorded:{path}", {"N": 4096, "dtype": "bfloat16"}))
    arguments = json.dumps([*calls, {"budget": 8, "seed": 1}])
    found = keypress.timed(
        ("-c", keypress._SESSION, arguments, "{folder}/answer.json"), ROOT, limit_s=LIMIT_S
    )
    assert "problem" not in found, found
    first, second = found["calls"]
    assert first["ships"] is not None
    assert second["verdict"] == found["verdict"]
    assert first["s"] + second["s"] < found["whole_s"]


def test_a_process_starts_with_empty_caches_and_its_failure_is_reported():
    script = (
        "import json, os, sys;"
        "places = [os.environ[n] for n in ('HOME', 'TRITON_CACHE_DIR', 'XDG_CACHE_HOME')];"
        "json.dump({'files': [f for p in places for f in os.listdir(p)],"
        " 'places': places, 'home': os.getcwd()}, open('answer.json', 'w'));"
        "sys.exit('no luck')"
    )
    found = keypress.timed(("-c", script), ROOT, limit_s=LIMIT_S)
    assert found["files"] == []
    assert all(place.startswith(found["home"]) for place in found["places"])
    assert not Path(found["home"]).exists()
    assert "exit code 1" in found["problem"]
    assert "no luck" in found["problem"]


def test_a_process_that_does_not_end_is_killed_with_what_it_has_started(monkeypatch):
    monkeypatch.setattr(keypress_process, "_GONE_S", 0.1)
    sleep = "import time; time.sleep(600)"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleep!r}])"
    found = keypress.timed(("-c", script), ROOT, limit_s=1.0)
    assert found["gone_s"] is None
    assert "did not end" in found["problem"]


def test_processor_time_counts_processes_whose_parent_has_ended():
    busy = "import time\nwhile time.process_time() < 0.6: pass"
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {busy!r}])"
    script = (
        "import subprocess, sys, time\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from keypress_process import adopt_orphans, processor_s\n"
        "adopt_orphans()\n"
        f"subprocess.run([sys.executable, '-c', {parent!r}], check=True)\n"
        "while processor_s() < 0.6:\n"
        "    time.sleep(0.01)\n"
    )
    subprocess.run([sys.executable, "-c", script, f"{BENCHMARKS}"], check=True)


def test_a_stopped_benchmark_leaves_no_process_behind(tmp_path):
    sleeper = "import sys; sys.path.insert(0, sys.argv[1]); import keypress_to_answer as k;"
    sleeper += "k.planned = lambda args: [('rehearsal',)];"
    sleeper += 'k._FACTS = \'import time; print(open("pid", "w"), time.sleep(600))\';'
    sleeper += "sys.argv[1:] = ['--byte-code', 'as it is', '--out', sys.argv[2]]; k.main()"
    command = [sys.executable, "-c", sleeper, f"{BENCHMARKS}", f"{tmp_path / 'out.json'}"]
    environment = {**os.environ, "TMPDIR": f"{tmp_path}"}
    script = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        while not list(tmp_path.glob("keypress-*/pid")):
            time.sleep(0.05)
        script.terminate()
        assert script.wait() == 143
    finally:
        script.kill()
    while any(f"{tmp_path}" in _place(link) for link in Path("/proc").glob("[0-9]*/cwd")):
        time.sleep(0.05)


def _place(link: Path) -> str:
    try:
        return f"{link.readlink()}"
    except OSError:
        return ""


def test_the_summary_compares_medians_with_bounds_and_rivals():
    def call(whole_s, verdict="faster"):
        baselines = [{"name": "eager", "median_us": 5.0}, {"name": "flash", "median_us": None}]
        answer = {"whole_s": whole_s, "verdict": verdict, "confirmed_s": whole_s - 0.5}
        return {**answer, "baselines": baselines}

    steps = {
        "tuner/matmul/1": call(9.0),
        "tuner/matmul/2": call(8.0),
        "tuner/matmul/3": {"problem": "exit code 1: ..."},
        "tuner/attention/1": call(17.0),
        "tuner/attention/2": call(19.5, "undecided"),
        "session/layer_norm/1": {"whole_s": 20.0, "calls": [{"s": 8.0}, {"s": 3.5}]},
        "triton": {"whole_s": 170.0},
        "helion/PatternSearch/1": {"whole_s": 40.0},
        "reference/matmul": {
            "entries": [
                {"labels": ["tuner/matmul/1", "triton"], "regret": 0.001},
                {"labels": ["tuner/matmul/2"], "regret": 0.02},
            ]
        },
        "campaign/process": {"whole_s": 45.0, "verdicts": {"faster": 30}},
        "campaign/warm": {"wall_s": 37.0},
    }
    found = keypress.summary(steps)
    matmul = found["matmul"]
    assert (matmul["median_s"], matmul["calls"], matmul["all_reached"]) == (8.5, 2, True)
    assert (matmul["exit_s"], matmul["one_verdict"]) == (0.5, True)
    assert matmul["confirmed_against"] == ["eager"]
    assert (matmul["within_half_percent"], matmul["regret_reached"]) == (1, False)
    assert matmul["triton"] == {
        "whole_s": 170.0,
        "times_ours": 20.0,
        "regret": 0.001,
        "reached": True,
    }
    assert not matmul["helion/PatternSearch/1"]["reached"]
    assert found["attention"]["verdicts"] == {"faster": 1, "undecided": 1}
    assert not found["attention"]["one_verdict"]
    assert not found["attention"]["reached"]
    assert found["second call of a session, layer_norm"]["reached"]
    assert (found["campaign"]["reached"], found["campaign"]["process_reached"]) == (True, True)


def test_every_step_of_a_plan_has_an_expected_time(monkeypatch, tmp_path):
    for more in ([], ["--device", "cpu"], ["--kernel", "attention", "--seeds", "2"]):
        monkeypatch.setattr(sys, "argv", ["keypress", "--out", f"{tmp_path / 'a.json'}", *more])
        steps = keypress.planned(keypress._arguments())
        assert len(steps) == len(set(steps)) > 1
        assert {step[0] for step in steps} <= set(keypress.EXPECTED_S)


def test_the_file_kernel_declares_the_list_that_other_tools_search():
    kernel = registry.load_undecided(keypress.CALLS["matmul"][0])
    task, target = TASKS["a"], device.offline("cuda:90")
    declared = kernel.space(task.workload).bind(task.workload, target).enumerate()
    listed = configs_of(task, target)
    assert sorted(map(config_key, declared)) == sorted(map(config_key, listed))


def test_the_table_of_the_comparison_is_filled_from_a_document():
    calls = {
        f"tuner/{name}/{seed}": {"whole_s": whole_s + seed, "verdict": "faster"}
        for name, whole_s in (("matmul", 8.0), ("layer_norm", 7.0), ("attention", 15.0))
        for seed in range(3)
    }
    calls["tuner/attention/2"]["verdict"] = "undecided"
    steps = {
        **calls,
        "session/matmul/1": {"calls": [{"s": 9.0}, {"s": 5.5}]},
        "triton": {"whole_s": 213.5},
        "helion/PatternSearch/1": {"whole_s": 71.1, "version": "1.5.1"},
        "helion/Tree:quick/1": {"whole_s": 30.0, "version": "1.5.1"},
        "helion/Tree:quick/2": {"whole_s": 34.0, "version": "1.5.1"},
        "campaign/process": {"whole_s": 45.2},
    }
    text = keypress_table.table({"steps": steps, "summary": keypress.summary(steps)})
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert rows[2] == [
        "tuner, median of 3 (slowest)",
        *("9.0 s (10.0)", "8.0 s (9.0)", "16.0 s (17.0), 2 x faster, 1 x undecided"),
    ]
    assert ["tuner, second call of a session", "5.5 s", "-", "-"] in rows
    assert ["`triton.autotune`", "214 s", "-", "-"] in rows
    assert ["Helion 1.5.1 `PatternSearch`, one seed", "71.1 s", "-", "-"] in rows
    quick = "Helion 1.5.1 `Tree:quick`, median of 2 (slowest)"
    assert [quick, "32.0 s (34.0)", "-", "-"] in rows
    assert "45.2 s as `tuner run`" in text
    page = (ROOT / "docs" / "comparison.md").read_text()
    result = "benchmarks/results/h200/keypress_to_answer.json"
    filled = keypress_table.written(page, result, text)
    assert text in filled
    assert keypress_table.written(filled, result, text) == filled
    with pytest.raises(ValueError, match="no single block"):
        keypress_table.written("", result, text)


def test_the_comparison_has_the_figures_of_the_committed_result():
    path = BENCHMARKS / "results" / "h200" / "keypress_to_answer.json"
    page = (ROOT / "docs" / "comparison.md").read_text()
    if path.exists():
        assert keypress_table.table(json.loads(path.read_text())) in page
    else:
        assert "These are figures of an old run." in page
