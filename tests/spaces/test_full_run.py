"""What brings the whole matrix of a family back, and what a full run writes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import full_run
import pytest

ROOT = full_run.ROOT
VARIANTS, TARGETS = "tests/spaces/test_family_variants.py", "tests/spaces/test_family_targets.py"
BUILDS = "tests/compiling/test_torch_free_builds.py"
SOFTMAX = {f"{file}[softmax]" for file in (VARIANTS, TARGETS, BUILDS)}
MATMUL = {f"{file}[matmul]" for file in (VARIANTS, TARGETS, BUILDS)}
FILES = {"tests/spaces/test_layer_norm.py", "tests/spaces/test_gemv.py"}
#: An edited file, and which of all these units it changes.
EDITS = {
    "search_spaces/kernels/softmax/triton_kernels.py": SOFTMAX,
    "search_spaces/kernels/rows.py": SOFTMAX | {"tests/spaces/test_layer_norm.py"},
    "search_spaces/params.py": SOFTMAX | MATMUL | FILES,
    VARIANTS: {f"{VARIANTS}[softmax]", f"{VARIANTS}[matmul]"},
    "tests/spaces/spaces_interpret.py": {f"{VARIANTS}[softmax]", f"{VARIANTS}[matmul]", *FILES},
    "workers/backends/interpreter/arithmetic.py": {
        f"{VARIANTS}[softmax]",
        f"{VARIANTS}[matmul]",
        *FILES,
    },
    "workers/compiling/job.py": SOFTMAX | MATMUL | FILES,
    "tuner/engine/task.py": set[str](),
}
_SHOW_CHANGED = """
import json, sys
from pathlib import Path
import full_run

units, edits = json.load(sys.stdin)

def digests():
    full_run._reached.cache_clear()
    return {unit: full_run.digest(unit) for unit in units}

before = digests()
for edit in edits:
    file = Path(edit)
    text = file.read_text()
    file.write_text(text + "# a comment\\n")
    assert digests() == before, edit
    file.write_text(text + "EDITED = True\\n")
    after = digests()
    file.write_text(text)
    print(json.dumps([unit for unit in units if after[unit] != before[unit]]))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of what the code of families lies in."""
    folder = tmp_path_factory.mktemp("copy")
    for package in ("search_spaces", "workers", "tuner"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("*.json"))
    for name in ("spaces", "compiling"):
        shutil.copytree(ROOT / "tests" / name, folder / "tests" / name)
    shutil.copy(ROOT / "tests" / "full_run.py", folder / "tests")
    return folder


def run_there(copy: Path, *arguments: str, given: str = "", **variables: str) -> str:
    """The output of Python in the copy; its modules are those of the copy."""
    path = f"{copy}{os.pathsep}{copy / 'tests'}"
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=copy, env={**os.environ, "PYTHONPATH": path, **variables}, input=given,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_an_edit_changes_the_units_that_reach_the_file_and_no_others(copy):
    units = sorted(SOFTMAX | MATMUL | FILES)
    given = json.dumps([units, [*EDITS]])
    printed = run_there(copy, "-c", _SHOW_CHANGED, given=given)
    found = [set(json.loads(line)) for line in printed.splitlines()]
    assert dict(zip(EDITS, found, strict=True)) == EDITS


def test_a_new_triton_brings_everything_back(monkeypatch):
    unit = f"{VARIANTS}[softmax]"
    covered = {full_run.describe_toolchain(): {unit: full_run.digest(unit)}}
    monkeypatch.setattr(full_run, "read_covered", lambda: covered)
    assert not full_run.Selection("changed", 0).is_whole(unit)
    monkeypatch.setattr(full_run, "version", lambda name: "99.0")
    assert full_run.Selection("changed", 0).is_whole(unit)


TINY_UNIT = "tests/spaces/test_tiny.py"
TINY = """
import pytest
pytestmark = pytest.mark.family
@pytest.mark.parametrize("number", range(3))
def test_tiny(number, whole):
    assert number < {least}, f"softmax {{whole}}"
"""
PLUGIN = """
from full_run import FullRun, turn, whole
def pytest_configure(config):
    config.addinivalue_line("markers", "family: ...")
    config.pluginmanager.register(FullRun(config), "full run")
"""


def test_only_a_full_run_that_passes_is_written_and_the_rest_takes_turns(copy):
    (copy / "tests" / "conftest.py").write_text(PLUGIN)
    tiny, written = copy / TINY_UNIT, copy / "tests" / "full_run.json"

    def run(least: int, mode: str, turn: int = 0, *more: str) -> str:
        tiny.write_text(TINY.format(least=least))
        pytest_there = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *more, f"{tiny}")
        return run_there(copy, *pytest_there, FAMILIES=mode, ROTATION=f"{turn}")

    assert "2 passed, 1 deselected" in run(3, "all", 0, "-k", "not 2")
    assert not written.exists()
    assert "3 passed" in run(3, "all", 0, "-n", "2")
    assert json.loads(written.read_text())[full_run.describe_toolchain()].keys() == {TINY_UNIT}
    seen = {re.search(r"test_tiny.([0-2])", run(3, "changed", turn, "-vv"))[1] for turn in (0, 1)}
    assert len(seen) == 2
    assert "1 failed, 2 passed" in run(2, "all")
    assert json.loads(written.read_text()) == {full_run.describe_toolchain(): {}}


def test_every_test_of_a_group_has_its_turn():
    for count in range(1, 8):
        turns = {
            full_run.Selection("changed", turn).choose("group", count) for turn in range(count)
        }
        assert turns == set(range(count))


def test_an_unknown_mode_is_refused():
    with pytest.raises(pytest.UsageError, match="use one of changed, all, few"):
        full_run.Selection("some", 0)
