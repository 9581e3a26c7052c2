"""`tuner capture -- COMMAND` and `tuner run --calls FILE`."""

from __future__ import annotations

import json
import os
import sys

import pytest
from capture_calls import run_python

import tuner
from tuner.cli import invoke

SCRIPT = """
import os, subprocess, sys
import torch, triton
import triton.language as tl

@triton.jit
def doubled(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * 2.0, at < n)

if __name__ == "__main__":
    x, out = torch.randn(100), torch.empty(100)
    for _ in range(2):
        doubled[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, out, 100, BLOCK=32)
    print("arguments", sys.argv[1:], os.environ.get("SITE", ""))
    if sys.argv[1:] == ["again"]:
        subprocess.run([sys.executable, __file__, "raise"], stderr=subprocess.DEVNULL)
        sys.exit(7)
    if sys.argv[1:] == ["raise"]:
        raise RuntimeError("mine")
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os\nos.environ['SITE'] = 'the site of the user'\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{site}")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.chdir(tmp_path)
    return file


def test_a_program_and_its_processes_are_recorded(script, capfd):
    command = ["--", sys.executable, f"{script}", "again"]
    assert invoke(["capture", "--format", "json", *command]) == 7
    captured = capfd.readouterr()
    assert "arguments ['again'] the site of the user" in captured.out
    (row,) = json.loads(captured.out[captured.out.index("[\n") :])
    assert (row["kernel"], row["launches"]) == ("doubled", "4")


@pytest.mark.full
def test_compiled_functions_of_a_program_are_recorded(script, capfd):
    """Dynamo refuses kernels of the interpreter, so the program fails where it compiles."""
    compiled = "    @torch.compile(fullgraph=True)\n    def step():\n        for _"
    text = SCRIPT.replace("    for _", compiled).replace("        doubled[", "            doubled[")
    script.write_text(text.replace("    print(", "    step()\n    print("))
    assert invoke(["capture", "--format", "json", "--", sys.executable, f"{script}"]) == 0
    captured = capfd.readouterr()
    (row,) = json.loads(captured.out[captured.out.index("[\n") :])
    assert (row["kernel"], row["launches"], row["note"]) == ("doubled", "2", "")


@pytest.mark.slow
def test_calls_in_a_file_are_tuned_by_a_campaign(script, monkeypatch, capfd):
    assert invoke(["capture", "-o", "calls.json", "--", sys.executable, f"{script}"]) == 0
    assert "1 calls are in calls.json" in capfd.readouterr().err
    (call,) = tuner.load_calls("calls.json").records
    assert call.place == f"{script}:doubled"
    assert [each.buffer for each in call.written] == [1]
    monkeypatch.delenv("TRITON_INTERPRET")
    options = ["--target", "cuda:90", "--trials", "1", "--no-report"]
    command = ("-m", "tuner", "run", "--calls", "calls.json", *options)
    done = run_python(script.parent, *command, PYTHONPATH="")
    assert done.returncode == 0, done.stderr
    assert "1 trials (0 failed)" in done.stdout + done.stderr


#: Its kernel, for other programs.
KERNEL = SCRIPT.partition("if __name__")[0]
ABORTING = (
    KERNEL
    + """
def grid(n):
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)

def ending(args):
    if os.environ.get("TUNER_CAPTURE_FOLDER") and ENDED:
        os.abort()

ENDED = []

@triton.heuristics({"TWO": lambda args: ending(args) or 2})
@triton.jit
def aborting(x, out, n, BLOCK: tl.constexpr, TWO: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * TWO, at < n)

if __name__ == "__main__":
    for kernel, n in ((doubled, 100), (aborting, 100), (doubled, 200)):
        kernel[grid(n)](torch.randn(n), torch.empty(n), n, BLOCK=32)
else:
    ENDED.append(1)
import atexit
atexit.register(ENDED.append, 1)
"""
)


def test_a_call_that_aborts_when_it_runs_again_costs_itself_alone(tmp_path, monkeypatch, capfd):
    file = tmp_path / "script.py"
    file.write_text(ABORTING)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.chdir(tmp_path)
    # The exit code is that of the program, which its own trial ends here.
    assert invoke(["capture", "-o", "calls.json", "--", sys.executable, f"{file}"]) == 134
    found = tuner.load_calls("calls.json").records
    assert [call.kernel for call in found] == ["doubled", "aborting", "doubled"]
    assert found[1].problem == "its own config ends the process when it runs again"
    assert [found[at].written[0].buffer for at in (0, 2)] == [1, 1]


def test_a_program_without_launches_is_a_finding(script, capfd):
    assert invoke(["capture", "--", sys.executable, "-c", "print('done')"]) == 1
    captured = capfd.readouterr()
    assert captured.out == "done\n"
    assert "no launch of a Triton kernel was recorded" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "no-such-program"], "no-such-program: there is no such program"),
        (["-o", "no/folder/calls.json", "--", sys.executable], "cannot be written"),
    ],
)
def test_mistakes_are_refused_before_the_program_starts(script, arguments, message, capfd):
    assert invoke(["capture", *arguments]) == 2
    assert message in capfd.readouterr().err


@pytest.fixture
def unusable(tmp_path, monkeypatch):
    """A file whose only call cannot be tuned."""
    from tuner.capturing.call_records import Call, Grid
    from tuner.capturing.files import save

    monkeypatch.chdir(tmp_path)
    call = Call("mine", "", (), {}, (), {}, (), (), Grid(()), problem="it is made of glass")
    save(tmp_path / "calls.json", [call], {})
    return tmp_path / "calls.json"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there are no campaigns in"),
        (["quickstart", "--calls", "calls.json"], "a campaign and --calls are given"),
        (["quickstart", "--widen"], "--widen belongs to --calls"),
        (["--calls", "none.json"], "none.json: No such file"),
        (["--calls", "calls.json"], "none of its calls can be tuned"),
        (["--calls", "calls.json", "--kernel", "mein"], "did you mean 'mine'"),
    ],
)
def test_mistakes_of_a_run_of_calls_are_refused_in_one_line(unusable, arguments, message, capfd):
    assert invoke(["run", *arguments]) == 2
    error = capfd.readouterr().err
    assert message in error
    if message.startswith("none of its"):
        assert "mine: left out: it is made of glass" in error


def test_the_modules_of_the_working_folder_are_importable_for_a_run_of_calls(
    tmp_path, monkeypatch, capfd
):
    (tmp_path / "kernels_of_folder.py").write_text(KERNEL)
    script = "import torch, kernels_of_folder as k\n"
    script += "k.doubled[lambda meta: (4,)](torch.ones(100), torch.empty(100), 100, BLOCK=32)\n"
    (tmp_path / "script.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert invoke(["capture", "-o", "calls.json", "--", sys.executable, "script.py"]) == 0
    (call,) = tuner.load_calls("calls.json").records
    assert call.place == "kernels_of_folder:doubled"
    # The program `tuner`, in contrast to `python -m tuner`, starts without the working folder.
    start = "import sys; sys.path.remove(''); from tuner.cli import main; main()"
    paths = os.pathsep.join(path for path in sys.path if path and path != f"{tmp_path}")
    command = ("run", "--calls", "calls.json", "--target", "cuda:90", "--dry-run")
    environment = {"PYTHONPATH": paths, "TRITON_INTERPRET": "0"}
    done = run_python(tmp_path, "-c", start, *command, **environment)
    assert done.returncode == 0, done.stderr
    (declared,) = (tmp_path / "calls_kernels").iterdir()
    assert "import kernels_of_folder" in declared.read_text()
