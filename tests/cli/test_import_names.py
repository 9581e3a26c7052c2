"""Modules of a user that have the import names of the farm's packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cpu_samples import KERNEL

from tuner.base.import_names import PACKAGES

ROOT = Path(__file__).parents[2]
#: What a user's script has in its modules: nothing of it may be needed or imported by the farm.
USERS = "raise RuntimeError('a module of the user')\n"
HELPERS = "def helper():\n    return 'helped'\n"


@pytest.fixture
def script(tmp_path):
    """Run text as `python script.py`, in a folder that is neither the working one nor safe."""

    def run(text: str, folder: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        (folder / "script.py").write_text(text)
        return subprocess.run(
            [sys.executable, f"{folder / 'script.py'}"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_modules_beside_the_script_hide_no_package(script, tmp_path):
    for package in PACKAGES:
        (tmp_path / f"{package}.py").write_text(USERS)
    done = script(
        "import tuner\n"
        "for name in tuner.__all__:\n"
        "    getattr(tuner, name)\n"
        f"for name in {PACKAGES!r}:\n"
        "    print(__import__(name).__file__)\n"
    )
    assert done.returncode == 0, done.stderr
    places = [Path(line) for line in done.stdout.splitlines()]
    assert places == [ROOT / package / "__init__.py" for package in PACKAGES]


#: Executes each of some programs in a fork, and prints the last line of its error.
EACH = """
import os, sys, traceback
for program in {programs!r}:
    if not os.fork():
        try:
            exec(program)
        except Exception:
            print(traceback.format_exc().strip().splitlines()[-1], flush=True)
        os._exit(0)
    os.wait()
"""


def test_a_module_imported_before_is_named_with_the_remedy(script, tmp_path):
    for package in PACKAGES:
        (tmp_path / f"{package}.py").write_text(HELPERS)
    programs = [f"import {package}\nfrom tuner import tune" for package in PACKAGES]
    done = script(EACH.format(programs=programs))
    for package, line in zip(PACKAGES, done.stdout.splitlines(), strict=True):
        assert line.startswith("tuner.base.import_names.ImportClash: ")
        assert f"{tmp_path / package}.py was imported before tuner" in line
        assert str(ROOT / package) in line
        assert line.endswith(f"rename {tmp_path / package}.py")


def test_a_name_of_the_users_module_is_refused_with_both_files(script, tmp_path):
    for package in PACKAGES:
        (tmp_path / f"{package}.py").write_text(HELPERS)
    statements = ("from {0} import helper", "import {0}; {0}.helper()")
    programs = [each.format(package) for package in PACKAGES for each in statements]
    done = script(f"from tuner import Workload\n{EACH.format(programs=programs)}")
    lines = done.stdout.splitlines()
    assert len(lines) == len(programs), done.stderr
    for at, line in enumerate(lines):
        package = PACKAGES[at // 2]
        assert f"{tmp_path / package}.py cannot be imported for its helper" in line
        assert str(ROOT / package) in line
        assert line.endswith(f"rename {tmp_path / package}.py")


def test_a_module_of_the_users_package_is_refused_and_a_missing_name_is_not(script, tmp_path):
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "__init__.py").write_text("")
    (tmp_path / "workers" / "kernels.py").write_text(HELPERS)
    (tmp_path / "reports.py").write_text(HELPERS)
    names = "hasattr(reports, 'helper'), hasattr(reports, 'nothing')"
    programs = ["import workers.kernels", f"import reports; print({names}, flush=True)"]
    done = script(f"from tuner import Workload\n{EACH.format(programs=programs)}")
    refused, missing = done.stdout.splitlines()
    assert str(tmp_path / "workers" / "__init__.py") in refused
    assert str(ROOT / "workers") in refused
    assert missing == "False False"


def test_the_runtime_leaves_the_names_to_the_user(script, tmp_path):
    for package in PACKAGES:
        (tmp_path / f"{package}.py").write_text(HELPERS)
    done = script(
        "import tuner.runtime\n"
        f"for name in {PACKAGES!r}:\n"
        "    print(__import__(name).helper())\n"
        "import tuner.runtime.device_code\n"
    )
    assert (done.returncode, done.stdout) == (0, "helped\n" * len(PACKAGES)), done.stderr


def test_every_public_name_exists():
    import tuner

    assert {name: getattr(tuner, name) for name in tuner.__all__}
    assert len(tuner.__all__) == len(set(tuner.__all__))
    with pytest.raises(AttributeError, match="module 'tuner' has no attribute 'Kernal'"):
        tuner.Kernal  # noqa: B018


def test_dir_lists_the_public_names_alone():
    import tuner

    assert "ops" in dir(tuner)
    assert dir(tuner.ops) == sorted(tuner.ops.__all__)
    assert [name for name in dir(tuner.ops) if not name.islower()] == []  # no types
    assert dir(tuner) == sorted(tuner.__all__)


@pytest.mark.parametrize("name", [*PACKAGES, "tuner"])
def test_a_kernel_file_that_imports_such_a_module_is_refused(tuner, folder, name):
    (folder / f"{name}.py").write_text(HELPERS)
    (folder / "double_it.py").write_text(f"import {name}\n{KERNEL}")
    shown = tuner("spaces", "show", f"{folder / 'double_it.py'}:Double")
    assert shown.code == 2
    assert f"double_it.py imports {name}, which is {ROOT / name / '__init__.py'}" in shown.err
    assert f"rename {folder / name}.py" in shown.err


TUNING = """
from tuner import tune

if __name__ == "__main__":
    import ray_settings
    found = tune("double_it.py:Double", {{"n": 1 << 16}}, target="cpu", strategy="exhaustive",
                 pool="{pool}", settings=ray_settings.SETTINGS)
    print(found.verdict, len(found.trials))
"""
SETTINGS = """SETTINGS = {
    "pool": {"builders": 1},
    "measure": {"final_pairs": 8, "warm_ms": 1},
}
"""


@pytest.mark.parametrize(
    "pool",
    [
        pytest.param("local", marks=[pytest.mark.slow, pytest.mark.full]),
        pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.full]),
    ],
)
def test_tuning_from_a_script_beside_modules_of_all_four_names(script, tmp_path, pool):
    for package in PACKAGES:
        (tmp_path / f"{package}.py").write_text(USERS)
    (tmp_path / "double_it.py").write_text(KERNEL)
    (tmp_path / "ray_settings.py").write_text(SETTINGS)
    done = script(TUNING.format(pool=pool))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["faster", "3"]


CONNECTED = """
import ray

if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
"""


@pytest.mark.ray
def test_a_ray_that_the_script_connected_beside_such_a_module_is_refused(script, tmp_path):
    (tmp_path / "workers.py").write_text(USERS)
    (tmp_path / "double_it.py").write_text(KERNEL)
    (tmp_path / "ray_settings.py").write_text(SETTINGS)
    done = script(CONNECTED + TUNING.format(pool="ray"))
    assert done.returncode != 0, done.stdout
    error = next(line for line in done.stderr.splitlines() if "TunerError: " in line)
    assert f"its actors import workers from {tmp_path / 'workers.py'}" in error
    assert str(ROOT / "workers") in error
