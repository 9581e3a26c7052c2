"""Whole programs: what counts of a run, what ships, and the command from call to result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.errors import TunerError
from tuner.base.log_ratio import LogRatio
from tuner.optimizing.call_times import CallTime, StepRecord
from tuner.optimizing.optimization import compare_program, try_tables
from tuner.optimizing.program import Outcome, Program, check_gate, is_narrow, time_programs
from tuner.optimizing.step_comparison import PLAIN, TODAY

ROOT = Path(__file__).parents[2]
#: Prints the number in the first folder of tables, and what `plain` says without operators.
PRINTS = """
import os, pathlib
first = pathlib.Path(os.environ["TUNER_TABLES"].split(os.pathsep)[0])
operators = os.environ.get("TUNER_OPERATORS") == "1"
print("a line before")
print((first / "k.json").read_text() if operators else {plain})
"""
#: Prints what the file in the first folder of tables says, by turns.
TURNS = """
import os, pathlib
first = pathlib.Path(os.environ["TUNER_TABLES"].split(os.pathsep)[0])
with (first / "runs").open("a") as runs:
    values = (first / "k.json").read_text().split()
    print(values[runs.tell() % len(values)])
    runs.write(".")
"""
#: Calls two operators where its calls are recorded.
CALLS = """
import os
if "TUNER_RECORD" in os.environ:
    import torch
    from torch.nn import functional
    softmax = torch.compile(lambda x: functional.softmax(x, -1), backend="eager")
    for _ in range(3):
        x = softmax(torch.randn(4, 32))
    functional.rms_norm(x, (32,), torch.ones(32), 1e-6)
print({last})
"""


def program(text):
    return Program([sys.executable, "-c", text], os.environ)


def plant(folder, number):
    folder.mkdir()
    (folder / "k.json").write_text(f"{number}")
    return folder


# -- what counts -----------------------------------------------------------------------------------
@given(line=st.text() | st.floats().map(str) | st.integers().map(str))
def test_a_number_can_be_compared_and_a_line_can_be_shown(line):
    outcome = Outcome(1.0, line)
    assert outcome.number is None or 0 < outcome.number < 1e11
    assert "\n" not in outcome.shown_line
    assert "\x1b" not in outcome.shown_line


@pytest.mark.parametrize(
    ("line", "number"),
    [("12.5", 12.5), ("1e-3", 0.001), ("0", None), ("-1", None), ("nan", None), ("inf", None),
     ("1e300", None), ("", None), ("12 ms", None)],
)  # fmt: skip
def test_what_is_a_number(line, number):
    assert Outcome(1.0, line).number == number


def test_the_last_line_is_the_last_that_is_not_empty():
    assert program("print(1); print('x' * 10**6); print(2.5); print()").run().last_line == "2.5"
    assert program("").run().last_line == ""


def test_a_program_reads_no_input():
    assert program("import sys; print(len(sys.stdin.read()) + 1)").run().number == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys; sys.exit('no \\x1b[31mGPU\\n\\n')", ": exit code 1: no \\x1b[31mGPU"),
        ("raise SystemExit(3)", ": exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", ": exit code 137"),
    ],
)
def test_a_failing_program_is_one_line(text, message):
    with pytest.raises(TunerError) as caught:
        program(text).run()
    assert caught.value.message.endswith(message)
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_a_run_that_prints_no_number_any_more_is_an_error(tmp_path):
    flag = tmp_path / "flag"
    text = (
        f"import pathlib; p = pathlib.Path({f'{flag}'!r}); print(p.exists() or 'soon'); p.touch()"
    )
    with pytest.raises(TunerError, match="no positive number: 'soon'"):
        time_programs({PLAIN: program(text), TODAY: program("print(1)")})


# -- rounds ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("printed", "rounds"), [("5", 5), ("2 8", 20)])
def test_rounds_go_on_while_an_interval_is_wide(tmp_path, printed, rounds):
    said = []
    today = Program([sys.executable, "-c", TURNS], os.environ, said.append)
    today = today.with_first("TUNER_TABLES", plant(tmp_path / "today", printed))
    times = time_programs({PLAIN: program("print(5)"), TODAY: today})
    assert {name: len(found) for name, found in times.items()} == {PLAIN: rounds, TODAY: rounds}
    assert sorted({*times[TODAY]}) == [float(each) for each in printed.split()]
    assert said[:2] == ["running it in turn", f"round 1: plain 5, today {times[TODAY][0]:g}"]


@given(value=st.floats(-3, 3), half=st.floats(0, 3))
def test_a_narrow_interval_is_far_from_zero_or_within_a_percent(value, half):
    if is_narrow(LogRatio(value, value - half, value + half)):
        assert 2 * half <= 0.01 + 1e-9 or half <= abs(value) / 4 + 1e-9


def test_seconds_count_where_no_number_is_printed():
    times = time_programs({PLAIN: program("print('x')"), TODAY: program("")}, by_clock=True)
    assert all(0 < each < 60 for found in times.values() for each in found)


# -- what ships ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("new", "today", "plain", "ships"),
    [(8, 10, 11, True), (12, 10, 11, False), (8, 10, 7, False), (10, 10, 11, False)],
)
def test_a_table_ships_only_where_the_program_is_faster_than_both_other_ways(
    tmp_path, monkeypatch, new, today, plain, ships
):
    made, tables = plant(tmp_path / "made", new), plant(tmp_path / "tables", today)
    if new == today:
        (made / "other.json").write_text("no change of the number")
    monkeypatch.setenv("TUNER_TABLES", "")
    outcome = Outcome(1.0, f"{plain}")
    prints = program(PRINTS.format(plain=plain))
    compare = partial(compare_program, prints, outcome, tables)
    calls = (CallTime("softmax", {"rows": 4}, 1, 1.0, 1.0, False, ""),)
    ways = [compare, partial(compare, operators=False)]
    result = try_tables(ways, StepRecord(1.0, calls), [], made, tables)
    result = replace(result, outcome=outcome)
    assert result.comparison.ships is ships
    assert (tables / "k.json").read_text() == f"{new if ships else today}"
    assert [path.name for path in result.written] == (["k.json"] if ships else [])
    used = new if ships else today
    assert result.comparison.measured.ratio == pytest.approx(used / plain)
    text = f"{result}"
    assert f"one run: {plain}, the last line of its output" in text
    assert ("tuner apply --operators" in text) is (used < plain)
    assert ("not surely faster" in text) is not ships


@pytest.mark.parametrize(
    ("new", "published", "passes", "word"),
    [(9, 10, True, "not slower"), (10, 10, True, "not slower"), (10.5, 10, False, "slower"),
     ("2 8", 4, False, "not surely as fast")],
)  # fmt: skip
def test_a_gate_lets_pass_what_is_surely_not_slower(tmp_path, new, published, passes, word):
    folder = plant(tmp_path / "published", published)
    (folder / "other.json").write_text("kept")
    files = {"k.json": f"{new}".encode()}
    decided, why = check_gate(program(TURNS), folder, files)
    assert (decided, why.partition(":")[0]) == (passes, f"the gate is {word}")
    assert "of the time [" in why


# -- the command -----------------------------------------------------------------------------------
def optimize(folder, text, *options, script="train.py"):
    (folder / "train.py").write_text(text)
    command = [
        sys.executable,
        "-m",
        "tuner",
        "optimize",
        *options,
        "--",
        sys.executable,
        script,
    ]
    variables = {"TRITON_INTERPRET": "1", "TUNER_DEVICE": "NVIDIA Test", "TUNER_TABLES": ""}
    environment = {**os.environ, **variables, "PYTHONPATH": f"{ROOT}"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_the_whole_command(tmp_path):
    done = optimize(tmp_path, CALLS.format(last=5.0), "--budget", "30s", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    calls = found["record"]["calls"]
    assert {each["kernel"]: each["count"] for each in calls} == {"softmax": 3, "rms_norm": 1}
    seconds = sum(each["seconds"] for each in calls)
    assert found["record"]["seconds"] == pytest.approx(seconds)
    assert all("no device" in each["note"] for each in found["tuned"])
    assert found["outcome"]["last_line"] == "5.0"
    assert found["comparison"]["measured"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert (found["predicted"], found["written"]) == (0.0, [])
    assert "round 5: plain 5, today 5" in done.stderr
    files = {path.name for path in (tmp_path / "tables").rglob("*") if path.is_file()}
    assert {"calls.json"} <= files <= {"calls.json", "tuner.db"}


#: A kernel; and a program that launches it, and one of its own, where launches are recorded.
KERNEL = """
import torch, triton, triton.language as tl

@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, at < n), at < n)

def launch(kernel):
    kernel[(2,)](torch.randn(100), torch.empty(100), 100, BLOCK=64)
"""
LAUNCHES = """
import os
if "TUNER_CAPTURE_FOLDER" in os.environ:
    import beside
    OWN
    for _ in range(3):
        beside.launch(beside.double)
    beside.launch(double)
print(5.0)
"""


def test_kernels_of_modules_beside_a_script_are_tuned_and_those_of_the_script_are_not(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "beside.py").write_text(KERNEL)
    own = KERNEL.partition("def launch")[0].replace("\n", "\n    ")
    script = tmp_path / "scripts" / "run.py"
    script.write_text(LAUNCHES.replace("OWN", own))
    done = optimize(tmp_path, "", "--quiet", "--format", "json", script="scripts/run.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    kernel, other = sorted(found["record"]["calls"], key=lambda each: each["place"], reverse=True)
    assert (kernel["place"], kernel["count"], kernel["known"]) == ("beside:double", 3, False)
    assert kernel["seconds"] > 0
    assert (other["place"], other["count"]) == (f"{script}:double", 1)
    assert other["reason"].startswith("cannot be tuned: a script defines it")
    (tuned,) = found["tuned"]
    assert "no device" in tuned["note"]
    assert (found["operators"], found["written"]) == (False, [])


def test_a_hostile_last_line_is_inert_and_the_clock_decides(tmp_path):
    text = CALLS.format(last=repr("\x1b[2J\u202e5.0 ms"))
    done = optimize(tmp_path, text, "--quiet", "--tables", "mine")
    assert done.returncode == 0, done.stderr
    assert "s by the clock, since the last line, '\\x1b[2J\\u202e5.0 ms', is no" in done.stdout
    assert not set(done.stdout + done.stderr) & set("\x1b\u202e")
    assert f"wrote {tmp_path}/mine/calls/calls.json" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing argument '-- COMMAND'"),
        (["--", "no_such_program"], "no_such_program: there is no such program"),
        (["--budget", "soon", "--", sys.executable], "--budget: 'soon' is not a duration"),
    ],
)
def test_a_line_that_starts_no_program_is_refused(tmp_path, words, message):
    command = [sys.executable, "-m", "tuner", "optimize", *words]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    error, hint = done.stderr.splitlines()
    assert (done.returncode, done.stdout, [*tmp_path.iterdir()]) == (2, "", [])
    assert error.startswith(f"error: {message}")
    assert hint.startswith("hint: ")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("print(5.0)", "no call of an operator or of a Triton kernel was recorded", "docs/ops.md"),
        ("import nothing_here", "train.py: exit code 1: ModuleNotFoundError", "must end with 0"),
        ("import os; assert 'TUNER_OPERATORS' not in os.environ",
         "exit code 1 with operators: AssertionError", "also with"),
    ],
)  # fmt: skip
def test_errors_name_the_remedy(tmp_path, text, message, hint):
    done = optimize(tmp_path, text)
    assert (done.returncode, done.stdout) == (2, "")
    error, remedy = done.stderr.splitlines()[-2:]
    assert error.startswith("error: ")
    assert message in error
    assert remedy.startswith("hint: ")
    assert hint in remedy
    assert not (tmp_path / "tables").exists()
