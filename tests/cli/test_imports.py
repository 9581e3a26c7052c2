"""What importing a kernel's file may do: find the modules in its folder, and start nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cpu_samples import KERNEL

from search_spaces.errors import KernelError
from search_spaces.registry import load

ROOT = Path(__file__).parents[2]
CONFIG = """version: 1
pool: {kind: ray, builders: 1}
measure: {final_pairs: 8, warm_ms: 1}
campaigns:
  c:
    targets: [cpu]
    strategy: {name: exhaustive}
    tasks:
      - kernel: deep/kernels/double.py:Double
"""
#: A kernel whose computation is in a second module of its folder, which imports a third.
SPLIT = KERNEL.replace("import torch\n", "import torch\nimport ops_beside\n", 1).replace(
    'return {"out": inputs["x"] + inputs["x"]}',
    'import late_beside; return {"out": late_beside.double(inputs["x"])}',
)
OPS = "from more_beside import FACTOR\n"
LATE = "def double(x): return x + x\n"


def write_split(folder: Path, factor: str = "2") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "double.py").write_text(SPLIT)
    (folder / "ops_beside.py").write_text(OPS)
    (folder / "late_beside.py").write_text(LATE)
    (folder / "more_beside.py").write_text(f"FACTOR = {factor}\n")
    return f"{folder / 'double.py'}:Double"


@pytest.fixture
def imports(monkeypatch):
    """An import state of its own: what is loaded meanwhile is forgotten."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if not name.startswith(("torch", "triton", "numpy", "search_spaces")):
            del sys.modules[name]


@pytest.mark.full
@pytest.mark.ray
def test_modules_beside_a_kernel_are_found_by_every_worker(folder):
    write_split(folder / "deep" / "kernels")
    (folder / "config.yaml").write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tuner", "run", "c", "--no-report"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "3 trials (1 failed) over 1 tasks, 1 with a winner" in done.stdout


def test_modules_beside_a_kernel_are_found(tuner, folder, imports):
    spec = write_split(folder / "deep" / "kernels")
    shown = tuner("spaces", "show", spec, "--validate", "--target", "cpu")
    assert (shown.code, shown.out) == (0, "")
    # At the end: nothing in the folder can hide a library.
    assert sys.path[-1] == str(folder / "deep" / "kernels")


@pytest.mark.parametrize("name", ["queue", "numpy", "yaml", "sys"])
def test_a_module_that_something_else_hides_is_refused(folder, imports, name):
    spec = write_split(folder / "a")
    (folder / "a" / f"{name}.py").write_text("")
    assert load(spec).name == "double"
    (folder / "b").mkdir()
    for file in (folder / "a").iterdir():
        if file.is_file():
            (folder / "b" / file.name).write_text(file.read_text())
    for module in ("ops_beside", "more_beside"):
        (folder / "b" / f"{module}.py").rename(folder / "b" / f"{module}_b.py")
    text = SPLIT.replace("ops_beside", "ops_beside_b").replace("late_beside", "json")
    (folder / "b" / "double.py").write_text(text)
    (folder / "b" / "ops_beside_b.py").write_text(f"import {name}\n")
    with pytest.raises(KernelError, match=f"ops_beside_b.py imports {name}, which is ") as caught:
        load(f"{folder / 'b' / 'double.py'}:Double")
    assert f"not {folder / 'b' / name}.py" in caught.value.message
    assert f"{name}.py: the standard library" in caught.value.hint


def test_two_modules_of_one_name_are_not_confused(folder, imports):
    assert load(write_split(folder / "a")).name == "double"
    assert load(write_split(folder / "copy_of_a")).name == "double"
    with pytest.raises(KernelError, match="imports more_beside, which is") as caught:
        load(write_split(folder / "b", "3"))
    assert f"is {folder / 'a' / 'more_beside.py'} and not {folder / 'b'}" in caught.value.message


def test_in_a_package_the_names_of_libraries_mean_libraries(folder, imports):
    spec = write_split(folder / "ours")
    (folder / "ours" / "__init__.py").write_text("")
    (folder / "ours" / "torch").mkdir()
    (folder / "ours" / "torch" / "__init__.py").write_text("raise RuntimeError('not meant')")
    assert load(spec).name == "double"
    # But two modules of a name are as little confused as elsewhere.
    (folder / "theirs").mkdir()
    (folder / "theirs" / "__init__.py").write_text("")
    with pytest.raises(KernelError, match="imports more_beside, which is"):
        load(write_split(folder / "theirs", "3"))


SCRIPT = """
import pathlib
with pathlib.Path("imports").open("a") as log:
    log.write(__name__ + "\\n")
{kernel}
import tuner
tuner.tune({what}, {{"n": 1000}}, pool="local", budget=2, target="cpu")
"""


@pytest.mark.parametrize(
    "what", [pytest.param("Double()", marks=pytest.mark.full), "'script.py:Double'"]
)
def test_a_script_without_a_guard_is_refused_at_the_second_level(folder, what):
    (folder / "script.py").write_text(SCRIPT.format(kernel=KERNEL, what=what))
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert 'hint: put the call under `if __name__ == "__main__":`' in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("search_spaces.")]
    assert f"is called by the import of kernel {'script.py' if 'py' in what else folder}" in line
    assert len((folder / "imports").read_text().splitlines()) == 2
