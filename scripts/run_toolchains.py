"""Run the parts of the test suite that depend on Triton with other versions of it.

    python scripts/run_toolchains.py [--write] [CONSTRAINTS ...]

For each file of constraints (by default the oldest, the pinned and the newest pair), a virtual
environment gets its Triton (`scripts/toolchain-venv`) and each subject below is run there. Prints a
line per subject; the exit code is 1 if any failed. With --write, the table in docs/installation.md
says what was run. CI runs the oldest and the newest pair; `make test` runs all with the pinned one.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "installation.md"
BEGIN, END = "<!-- toolchains: scripts/run_toolchains.py -->", "<!-- end of toolchains -->"
DEFAULT = ("constraints-oldest.txt", "constraints.txt", "constraints-newest.txt")
#: What is run, by subject: arguments of pytest, or a command of tuner.
SUBJECTS: dict[str, list[str]] = {
    "builds of every family for `cuda:90`, with and without torch": [
        "tests/compiling/test_torch_free_builds.py"
    ],
    "builds of every family for `hip:gfx942`": [
        *("tests/spaces/test_family_targets.py", "-k", "gfx942"),
    ],
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
        "tests/spaces/test_identity_edits.py",
        "tests/spaces/test_identity_pairs.py",
        "tests/spaces/test_triton_versions.py",
    ],
    "`tuner run quickstart`": ["tuner", "run", "quickstart"],
}


def main() -> int:
    """Run all subjects with all pairs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("constraints", nargs="*", default=DEFAULT)
    parser.add_argument("--write", action="store_true", help="write the table of the docs")
    options = parser.parse_args()
    results: dict[str, dict[str, str]] = {}
    for name in options.constraints:
        folder = subprocess.run(
            [f"{ROOT}/scripts/toolchain-venv", f"{ROOT / name}"],
            capture_output=True, text=True, check=True, cwd=ROOT,
        ).stdout.split()[-1]  # fmt: skip
        versions = _versions(ROOT / folder)
        results[versions] = {}
        for subject, arguments in SUBJECTS.items():
            results[versions][subject] = outcome = _run(ROOT / folder, arguments)
            print(f"{versions}: {subject}: {outcome}", flush=True)
    if options.write:
        _write(results)
    return int(any("failed" in cell for row in results.values() for cell in row.values()))


def _versions(folder: Path) -> str:
    code = "import torch, triton; print(f'Triton {triton.__version__}, torch {torch.__version__}')"
    command = [f"{folder}/bin/python", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _run(folder: Path, arguments: list[str]) -> str:
    """Run one subject; what came of it, as `51 passed`."""
    if arguments[0] == "tuner":
        return _run_tuner(folder, arguments[1:])
    command = [f"{folder}/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    workers = f"{min(4, os.cpu_count() or 1)}"
    marks = ["-m", "not (slow or ray or postgres or gpu)"]
    done = subprocess.run(
        [*command, "--numprocesses", workers, "--dist", "worksteal", *marks, *arguments],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    last = done.stdout.strip().splitlines()[-1:] or ["nothing was printed"]
    counts = ", ".join(re.findall(r"\d+ (?:passed|failed|errors?)\b", last[0]))
    if done.returncode:
        print(done.stdout[-6000:], done.stderr[-2000:], sep="\n", file=sys.stderr, flush=True)
        return f"failed ({counts or last[0]})"
    return counts


def _run_tuner(folder: Path, arguments: list[str]) -> str:
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
    lines += [f"| {of} | {' | '.join(results[name][of] for name in names)} |" for of in SUBJECTS]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    table = "\n".join([BEGIN, "", f"Run on {today}, on x86-64 without a GPU:", "", *lines, "", END])
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    PAGE.write_text(before + table + rest.split(END)[1])


if __name__ == "__main__":
    sys.exit(main())
