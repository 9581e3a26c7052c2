"""A newcomer's first commands and mistakes, really run, with a log of what each one answers.

    python scripts/first_use.py [--output benchmarks/results/cpu/first_use.txt]

The path is that of README and tutorials without a GPU, from an empty folder to "is my kernel faster
than torch"; what an output names as the `next:` commands is run as printed. Then every mistake is
made in a copy of the files at the end of the path. Exits with 1 where a command of the path fails,
an output names a command that does not exist, or the answer to a mistake has another exit code, no
place, no remedy or a traceback, or loses a file.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUN = "tuner run first --dry-run"
QUIET = "tuner run first --quiet --no-report"
#: In this order; `next:` lines are run where they are printed.
PATH = (
    "tuner doctor",
    "tuner demo",
    "cd tuner-demo && tuner show",
    "cd tuner-demo && tuner show 1/2",
    "cd tuner-demo && tuner report",
    "cd tuner-demo && tuner export -o ../tables",
    "cd tuner-demo && tuner compare 1",
    "cd tuner-demo && tuner history softmax",
    "tuner init",
    "tuner config check --kernels",
    "tuner spaces show my_kernel.py:CrossEntropy --validate",
    "tuner run my_kernel.py:CrossEntropy --target cuda:90",
    "tuner verify my_kernel.py:CrossEntropy --target cuda:90",
    "tuner status",
    "tuner show",
    "tuner show 1/1",
    "tuner trials --where 'status=correct'",
    "tuner report",
    "tuner runs",
    "tuner tag baseline",
    "tuner compare baseline",
    "tuner spaces show kernels/softplus.py:Softplus --validate",
    "tuner run kernels/softplus.py:Softplus",
    "tuner best",
    "tuner export --format csv",
)
#: A file and sed's edit of it (or a new file), the command, its exit code, what the answer names.
MISTAKES: tuple[tuple[str, str, int, str], ...] = (
    ("", "tuner rnu first", 2, "Did you mean 'run'"),
    ("", "tuner run first --trails 5", 2, "--trials"),
    ("", "tuner run first --trials many", 2, "'--trials': Input should be a valid integer"),
    ("", "tuner run first --trials 0", 2, "greater than or equal to 1"),
    ("", "tuner run first --wall soon", 2, "--wall: 'soon' is not a duration"),
    ("", "tuner run first --strategy bayse", 2, "did you mean 'bayes'"),
    ("", "tuner run first --kernel matmul", 2, "no task of the campaign matches --kernel matmul"),
    ("", "tuner run frist", 2, "no campaign 'frist' in the configuration; did you mean 'first'"),
    ("", "tuner run softmax", 2, "no campaign 'softmax'"),
    ("", "tuner run my_kernel.py", 2, "did you mean my_kernel.py:CrossEntropy"),
    ("", "tuner run my_kernle.py:CrossEntropy", 2, "there is no file my_kernle.py"),
    ("", "tuner run my_kernel.py:CrossEntrop", 2, "did you mean 'CrossEntropy'"),
    ("", "tuner run my_kernel.py:CrossEntropy --target gpu", 2, "did you mean 'cuda'"),
    ("", "tuner run my_kernel.py:CrossEntropy --target cpu", 2, "runs on cuda, hip, not on cpu"),
    ("", "tuner run my_kernel.py:CrossEntropy --workload rows=4", 2, "also needs cols, dtype"),
    ("", "tuner verify softmax --workload 'rows=4 cols=8 dtype=float23'", 2, "dtype 'float23'"),
    ("", "tuner bench softmx", 2, "did you mean 'softmax'"),
    ("", "tuner bench cpu_softmax --config '{\"BLOK\": 3}'", 2, "unknown parameter BLOK"),
    ("", "tuner bench cpu_softmax --config missing.json", 2, "missing.json: cannot be read"),
    ("", "tuner bench cpu_softmax --baseline egaer", 2, "no baseline 'egaer'"),
    ("", "tuner bench cpu_softmax --samples no/x.json", 2, "there is no folder"),
    ("", "tuner status 99", 2, "there is no run 99, the newest is"),
    ("", "tuner status --format xml", 2, "'xml' is not one of"),
    ("", "tuner status 1 2", 2, "unexpected extra argument"),
    ("", "tuner show 1/99", 2, "run 1 has no task 99"),
    ("", "tuner best sofmtax", 1, "did you mean 'softmax'"),
    ("", "tuner history sofmax", 1, "no run has a kernel 'sofmax'"),
    ("", "tuner trials --where 'wraps=8'", 2, "no trial has 'wraps'"),
    ("", "tuner report -o .", 2, ".: cannot be written (Is a directory)"),
    ("", "tuner report -o my_kernel.py/report.html", 2, "my_kernel.py/report.html: cannot be"),
    ("", "tuner export --format vlm", 2, "did you mean 'vllm'"),
    ("", "tuner check nowhere", 2, "nowhere: there are no tables"),
    ("", "tuner restamp nowhere", 2, "nowhere: there are no tables"),
    ("", "tuner check --library vlm", 2, "did you mean 'vllm'"),
    ("", "tuner check --device 'NVIDIA A100' tables", 1, "another device"),
    ("", "tuner import my_kernel.py", 2, "my_kernel.py: no JSON object"),
    ("", "tuner rollback nowhere", 2, "nowhere: no promotion to roll back"),
    ("", "tuner init", 2, "already exist"),
    ("", "tuner demo my_kernel.py", 2, "my_kernel.py/config.yaml: cannot be"),
    ("", "tuner optimize -- pyhton train.py", 2, "pyhton: there is no such program"),
    ("", "tuner apply -t nowhere -- python -c 1", 2, "nowhere: there is no such table or folder"),
    ("", "tuner run --calls calls.json", 2, "calls.json: No such file"),
    ("", "tuner status --config confg.yaml", 2, "confg.yaml: no such file"),
    ("", "TUNER_CONFIG=. tuner status", 2, ". is a folder"),
    ("", "TUNER__DATABASE__URL=results/tuner.db tuner status", 2, "is not a database URL"),
    ("", "TUNER__DATABASE__URL=sqlite:///none.db tuner status", 2, "there is no database"),
    ("", "TUNER__DATABSE__URL=x tuner status", 2, "did you mean 'database'"),
    ("", f"TUNER__POOL__KIND=loca {RUN}", 2, "environment variable TUNER__POOL__KIND"),
    ("touch a", f"TUNER__DATABASE__URL=sqlite:///a/b.db {QUIET}", 2, "a/b.db"),
    ("touch a", "TUNER__PATHS__RESULTS=a tuner run first --quiet", 2, "a/report.html: cannot be"),
    ("config.yaml s/^    targets/   targets/", RUN, 2, "config.yaml:19: wrong indentation"),
    ("config.yaml s/  url:/\\turl:/", RUN, 2, "config.yaml:7: a tab in the indentation"),
    ("config.yaml s/budget:/budgt:/", RUN, 2, "config.yaml:20: campaigns.first.budgt"),
    ("config.yaml s/trials: 20/trials: x/", RUN, 2, "config.yaml:21: campaigns.first"),
    ("config.yaml s/all #/[{rows: 4}] #/", RUN, 2, "cols is missing"),
    ("my_kernel.py s/^    dims = .*//", RUN, 2, "workloads() needs `dims`"),
    ('my_kernel.py s/dtype=(.*)).*/dtype=("float16"))/', RUN, 2, "dim dtype is 'float16'"),
    ('my_kernel.py s/spec("rows", "cols/spec("row", "cols/', RUN, 2, "did you mean 'rows'"),
    ("my_kernel.py s/import triton$/import tritn/", RUN, 2, "(my_kernel.py:4)"),
    ('my_kernel.py s/"BLOCK": 1024}/"BLOCK": 9}/', RUN, 2, "BLOCK is 9, not one of"),
    ('my_kernel.py s/"none"/"non"/', RUN, 2, "eager() for"),
    ("my_kernel.py s/BLOCK: tl/BLOK: tl/", RUN, 2, "unknown argument BLOCK"),
    ("my_kernel.py s/\\[Constraint(.*)\\]/[fits_registers]/", RUN, 2, "is no constraint"),
    ("my_kernel.py s/highest - chosen/- chosen/", QUIET, 1, "relative error"),
    ("my_kernel.py s/highest = above/highest = abov/", QUIET, 1, "(my_kernel.py:20)"),
    ('my_kernel.py s/"none"/"mean"/', QUIET, 1, "wrote outside `out`"),
)
#: Python, its exit code, and what the last lines name.
CALLS: tuple[tuple[str, int, str], ...] = (
    ('tuner.tune("sofmtax", {"rows": 8})', 1, "unknown kernel 'sofmtax'; did you mean 'softmax'"),
    ('tuner.tune("softmax", "rows=8 cols=8")', 1, "'rows=8 cols=8' is no workload"),
    ('tuner.tune("softmax", {"rows": 8, "cols": 8})', 1, "dtype is missing"),
    ("tuner.tune(tuner.Kernel, {})", 1, "is no kernel"),
    ("ops.patch(3)", 1, "3 is no torch.nn.Module"),
    ("tuner.optimize(3)", 1, "3 is not a callable object"),
    ("tuner.optimize(lambda x: x)", 1, "missing a required argument: 'x'"),
    ('tuner.Dims(dtype="float32")', 1, "dim dtype is 'float32'"),
    ("ops.matmul(torch.ones(4, 4), torch.ones(4, 4).half())", 1, "to have the same dtype"),
    ('ops.activation(torch.ones(4, 4), "gellu")', 1, "function is 'gellu'"),
    ('tuner.PowerOfTwo("BLOCK", 3, 8)', 1, "parameter BLOCK: 3 is not a power of two"),
    # A server goes on without the table, and says so.
    ('tuner.apply("missing.json")', 0, "table missing.json cannot be read"),
)
HEAD = "import torch, tuner; from tuner import ops; "


def judge(code: int, answer: str, expected: int, words: str) -> str:
    """What is wrong with the answer to a mistake; empty text if nothing is."""
    if code != expected:
        return f"exit code {code}, not {expected}"
    if words not in answer:
        return f"does not name {words!r}"
    if "Traceback" in answer or "error: unexpected" in answer:
        return "a traceback"
    lines = answer.splitlines()
    if code == 2 and not (lines[-2].startswith("error: ") and lines[-1].startswith("hint: ")):
        return "no error with a hint"
    return ""


def end_of(trace: str) -> str:
    """What follows the frames of a traceback: class and message of the exception, and the hint."""
    lines = trace.splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith("  ")]
    return "\n".join(lines[max(frames, default=-1) + 1 :])


def printed_commands(answer: str) -> set[str]:
    """The commands of `tuner` that a text prints, without those that have placeholders."""
    return {
        each for each in re.findall(r"`(tuner [^`]*)`", answer) if not re.search("[A-Z.]", each)
    }


def next_commands(output: str) -> Iterator[str]:
    """The commands of a `next:` line."""
    for line in re.findall(r"^next: (.*)$", output, re.MULTILINE):
        first, *others = re.split(r", (?:then |or )?", line)
        folder = first.partition("&& ")[0] + "&& " if "&&" in first else ""
        yield first
        yield from (each if "&&" in each else folder + each.strip("`") for each in others)


@dataclass(frozen=True)
class Step:
    """A command, what it answered, and what is wrong with that."""

    command: str
    answer: str
    #: The lines for the log.
    shown: list[str]
    fault: str

    def __str__(self) -> str:
        fault = [f"FAULT: {self.fault}"] if self.fault else []
        return "\n".join([f"$ {self.command}", *(line[:150] for line in self.shown), *fault])


class Place:
    """A folder where a shell runs commands as they are written."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self.programs = folder, programs
        unset = {name: value for name, value in os.environ.items() if not name.startswith("TUNER")}
        self._environment = {
            **unset,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}",
            "CUDA_VISIBLE_DEVICES": "",
            "COLUMNS": "120",
            "NO_COLOR": "1",
        }

    def run(self, command: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr, without the path of the folder."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        out, err = (text.replace(f"{self.folder}/", "") for text in (done.stdout, done.stderr))
        return done.returncode, out, err

    def files(self) -> dict[Path, bytes]:
        """The content of all files but databases, which a run may add to."""
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return {path: path.read_bytes() for path in found if path.suffix != ".db"}


def walk(place: Place) -> Iterator[Step]:
    """The steps of the path."""
    text = (ROOT / "docs/tutorials/cpu.md").read_text()
    (place.folder / "kernels").mkdir()
    (place.folder / "kernels/softplus.py").write_text(
        re.findall(r"```python\n(.*?)```", text, re.S)[0]
    )
    waiting = list(PATH)
    while waiting:
        command = waiting.pop(0)
        code, out, err = place.run(command)
        waiting[:0] = next_commands(out + err)
        shown = [*err.splitlines(), *out.splitlines()][-2:]
        yield Step(command, err + out, shown, f"exit code {code}" if code else "")


def edit_file(place: Place, edit: str) -> str:
    """Make the edit of a mistake; returns its command."""
    file, _, rule = edit.partition(" ")
    command = edit if file == "touch" else f"sed -i {shlex.quote(rule)} {file}"
    before = place.files()
    assert place.run(command)[0] == 0, command
    assert place.files() != before, command
    return f"{command}; "


def make_mistake(place: Place, edit: str, command: str, expected: int, words: str) -> Step:
    """Run a command that is a mistake, in a copy of the files."""
    with tempfile.TemporaryDirectory() as name:
        copy = Place(Path(name) / "tuner", place.programs)
        shutil.copytree(place.folder, copy.folder)
        edited = edit_file(copy, edit) if edit else ""
        before = copy.files()
        code, out, err = copy.run(command)
        after = copy.files()
    answer = end_of(err) if command.startswith("python") else err + out * (code == 1)
    lost = [path for path in before if after.get(path) != before[path]]
    # What is refused leaves nothing behind either.
    lost += set(after) - set(before) if code == 2 else []
    fault = f"changed {lost}" if lost else judge(code, answer, expected, words)
    lines = answer.splitlines()
    told = [line for line in lines if line.startswith(("error: ", "hint: ")) or words in line]
    return Step(edited + command, answer, [f"[{code}] {line}" for line in told[-2:]], fault)


def main() -> None:
    """Run everything, write the log, and exit with 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    calls = [("", f"python -c {shlex.quote(HEAD + code)}", *rest) for code, *rest in CALLS]
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as threads:
        programs = Path(name) / "bin"
        programs.mkdir()
        for program, text in (("tuner", " -m tuner"), ("python", "")):
            (programs / program).write_text(f'#!/bin/sh\nexec {sys.executable}{text} "$@"\n')
            (programs / program).chmod(0o755)
        place = Place(Path(name) / "first", programs)
        place.folder.mkdir()
        path = list(walk(place))
        made = list(threads.map(lambda row: make_mistake(place, *row), [*MISTAKES, *calls]))
        printed = sorted(printed_commands("\n".join(step.answer for step in [*path, *made])))
        unknown = [each for each in printed if place.run(f"{each} --help")[0]]
    faults = [f"{step}" for step in [*path, *made] if step.fault]
    summary = (
        f"{len(path)} commands of the path, {len(made)} mistakes, {len(printed)} commands that "
        f"answers name, {len(unknown)} of them unknown, {len(faults)} faults"
    )
    if options.output:
        text = "\n\n".join([summary, *map(str, [*path, *made])])
        options.output.write_text(f"{text}\n")
    print(*faults, *unknown, summary, sep="\n")
    sys.exit(bool(faults or unknown))


if __name__ == "__main__":
    main()
