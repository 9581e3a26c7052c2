"""Run the parts of the test suite that depend on Triton with other versions of it.

    python scripts/run_toolchains.py [--write] [CONSTRAINTS ...]

For each file of constraints (by default the oldest, the pinned and the newest pair), a virtual
environment gets its Triton (`scripts/toolchain-venv`) and each subject below is run there, with few
variants of each family (FAMILIES=few). Prints a line per subject; the exit code is 1 if any
failed. With --write, the table in docs/installation.md says what was run. CI runs the newest pair,
`make toolchains` the oldest too; `make test` runs all with the pinned one.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "installation.md"
BEGIN, END = "<!-- toolchains: scripts/run_toolchains.py -->", "<!-- end of toolchains -->"
DEFAULT = ("constraints-oldest.txt", "constraints.txt", "constraints-newest.txt")
#: Files of tests by subject.
SUBJECTS: dict[str, list[str]] = {
    "builds of every family for `cuda:90`, with and without torch": [
        "tests/compiling/test_torch_free_builds.py"
    ],
    "builds of every family for `hip:gfx942`": ["tests/spaces/test_family_targets.py"],
    "builds in Gluon for `cuda:90`": [
        "tests/spaces/test_attention_gluon.py",
        "tests/spaces/test_matmul_dialects.py",
        "tests/spaces/test_fp8_gluon.py",
    ],
    "errors of compilers, keys of launches": [
        "tests/compiling/test_build_triton.py",
        "tests/compiling/test_launch_key.py",
    ],
    "every family in the interpreter": ["tests/spaces/test_family_variants.py"],
    "capture": ["tests/capture"],
    "decorator, tables and `tuner.apply`": [
        "tests/tables/test_table_launch.py",
        "tests/tables/test_applied_launch.py",
        "tests/tables/test_applied_captured.py",
        "tests/tables/test_applied_hooks.py",
        "tests/spaces/test_adopt.py",
    ],
    "identity of code": [
        "tests/spaces/test_identity.py",
        "tests/spaces/test_triton_versions.py",
    ],
}
#: Of the targets, only the one that the subject names.
SELECTED = "gfx942 or not test_family_targets"
#: Commands of tuner, by subject.
COMMANDS = {"`tuner run quickstart --trials 6`": ["run", "quickstart", "--trials", "6"]}


def main() -> int:
    """Run all subjects with all pairs, which go side by side."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("constraints", nargs="*", default=DEFAULT)
    parser.add_argument("--write", action="store_true", help="write the table of the docs")
    options = parser.parse_args()
    processes = max(1, (os.cpu_count() or 1) // len(options.constraints))
    with ThreadPoolExecutor() as threads:
        pairs = threads.map(lambda name: _run_all(name, min(4, processes)), options.constraints)
        results = dict(pairs)
    if options.write:
        _write(results)
    return int(any("failed" in cell for row in results.values() for cell in row.values()))


def _run_all(constraints: str, processes: int) -> tuple[str, dict[str, str]]:
    """The versions of a pair, and what came of each subject, as `51 passed`."""
    folder = ROOT / subprocess.run(
        [f"{ROOT}/scripts/toolchain-venv", f"{ROOT / constraints}"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    ).stdout.split()[-1]  # fmt: skip
    versions = _versions(folder)
    outcomes = _run_tests(folder, processes)
    outcomes |= {of: _run_tuner(folder, given) for of, given in COMMANDS.items()}
    for subject, outcome in outcomes.items():
        print(f"{versions}: {subject}: {outcome}", flush=True)
    return versions, outcomes


def _versions(folder: Path) -> str:
    code = "import torch, triton; print(f'Triton {triton.__version__}, torch {torch.__version__}')"
    command = [f"{folder}/bin/python", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _run_tests(folder: Path, processes: int) -> dict[str, str]:
    """All tests in one call, as starting takes long; the outcomes by subject."""
    with tempfile.TemporaryDirectory(prefix="toolchain-") as scratch:
        report = Path(scratch) / "report.xml"
        done = subprocess.run(
            [
                *(f"{folder}/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider"),
                # Files stay whole: what a module's tests share is made once.
                *("--numprocesses", f"{processes if processes > 1 else 0}", "--dist", "loadfile"),
                *("-m", "not (slow or ray or postgres or gpu)", "-k", SELECTED),
                *("--junitxml", f"{report}", *(path for of in SUBJECTS.values() for path in of)),
            ],
            capture_output=True, text=True, cwd=ROOT, env={**os.environ, "FAMILIES": "few"},
        )  # fmt: skip
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    if done.returncode:
        print(done.stdout[-6000:], done.stderr[-2000:], sep="\n", file=sys.stderr, flush=True)
    outcomes = {}
    for subject, paths in SUBJECTS.items():
        modules = tuple(path.removesuffix(".py").replace("/", ".") for path in paths)
        counts = Counter(
            next((child.tag for child in case if child.tag in ("failure", "error")), "passed")
            for case in cases
            if case.get("classname", "").startswith(modules) and case.find("skipped") is None
        )
        faults = counts["failure"] + counts["error"]
        passed = f"{counts['passed']} passed"
        outcomes[subject] = f"failed ({faults}, {passed})" if faults or not counts else passed
    if done.returncode and not any("failed" in each for each in outcomes.values()):
        outcomes[next(iter(SUBJECTS))] = f"failed (exit code {done.returncode} of pytest)"
    return outcomes


def _run_tuner(folder: Path, arguments: list[str]) -> str:
    """A command in a folder with config.yaml; its trials."""
    with tempfile.TemporaryDirectory(prefix="toolchain-") as scratch:
        (Path(scratch) / "config.yaml").write_text((ROOT / "config.yaml").read_text())
        done = subprocess.run(
            [f"{folder}/bin/python", "-m", "tuner", *arguments, "--quiet"],
            capture_output=True, text=True, cwd=scratch,
        )  # fmt: skip
    said = re.search(r"\d+ trials \((\d+) failed\) over \d+ tasks, \d+ with a winner", done.stdout)
    if done.returncode or said is None:
        print(done.stdout[-3000:], done.stderr[-3000:], sep="\n", file=sys.stderr, flush=True)
        return f"failed (exit code {done.returncode})"
    return said[0].replace(f" ({said[1]} failed)", "")


def _write(results: dict[str, dict[str, str]]) -> None:
    """Put the table between its marks."""
    names = list(results)
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    lines += [
        f"| {of} | {' | '.join(results[name][of] for name in names)} |"
        for of in [*SUBJECTS, *COMMANDS]
    ]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    table = "\n".join([BEGIN, "", f"Run on {today}, on x86-64 without a GPU:", "", *lines, "", END])
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    PAGE.write_text(before + table + rest.split(END)[1])


if __name__ == "__main__":
    sys.exit(main())
