"""A user's folder with modules that have names of the standard library or of the farm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cpu_samples import KERNEL

ROOT = Path(__file__).parents[2]
LIBRARIES = ("copy", "random", "queue", "types", "statistics", "socket", "torch")
MODULES = (*LIBRARIES, "search_spaces", "workers", "results_db")
CONFIG = """version: 1
pool: {{kind: {pool}, builders: 1}}
measure: {{final_pairs: 8, warm_ms: 1}}
campaigns:
  c:
    targets: [cpu]
    strategy: {{name: exhaustive}}
    tasks:
      - kernel: {kernel}
"""


def fill(folder: Path, kernel: str, pool: str = "local") -> None:
    for name in MODULES:
        (folder / f"{name}.py").write_text(f"raise RuntimeError('the {name} of a user')\n")
    (folder / "reports").mkdir()
    (folder / "reports" / "__init__.py").write_text("raise RuntimeError('reports of a user')\n")
    (folder / "double_it.py").write_text(KERNEL)
    (folder / "config.yaml").write_text(CONFIG.format(kernel=kernel, pool=pool))


def tuner(folder: Path, *words: str, safe: bool = True) -> subprocess.CompletedProcess[str]:
    python = [sys.executable, *(["-P"] if safe else []), "-m", "tuner"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    done = subprocess.run(
        [*python, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "of a user" not in done.stdout + done.stderr, done.stderr
    return done


@pytest.mark.parametrize(
    "pool",
    [
        pytest.param("local", marks=pytest.mark.slow),
        pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.full]),
    ],
)
def test_a_campaign_beside_modules_that_hide_libraries(folder, pool):
    fill(folder, "double_it:Double", pool)
    done = tuner(folder, "run", "c")
    assert done.returncode == 0, done.stderr
    assert "report: " in done.stdout
    status = tuner(folder, "status", "--format", "json")
    (task,) = json.loads(status.stdout)
    assert (task["trials"], task["failed"], task["verdict"]) == (3, 1, "faster")


def test_the_module_starts_beside_modules_that_hide_libraries(folder):
    fill(folder, "double_it:Double")
    # Python itself imports `types` to run a module, before any of ours.
    (folder / "types.py").unlink()
    done = tuner(folder, "config", "check", safe=False)
    assert done.returncode == 0, done.stderr
