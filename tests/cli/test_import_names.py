"""Modules of a user that have the import names of the farm's packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cpu_samples import KERNEL

from tuner.import_names import PACKAGES

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
            timeout=300,
        )

    return run


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode != 0, done.stdout
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_module_beside_the_script_hides_no_package(script, tmp_path, package):
    (tmp_path / f"{package}.py").write_text(USERS)
    done = script(
        "import tuner\n"
        "for name in tuner.__all__:\n"
        "    getattr(tuner, name)\n"
        f"import {package}\n"
        f"print({package}.__file__)\n"
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == ROOT / package / "__init__.py"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_module_imported_before_is_named_with_the_remedy(script, tmp_path, package):
    (tmp_path / f"{package}.py").write_text(HELPERS)
    done = script(f"import {package}\nfrom tuner import tune\n")
    line = last_line(done)
    assert line.startswith("tuner.import_names.ImportClash: ")
    assert f"{tmp_path / package}.py was imported before tuner" in line
    assert str(ROOT / package) in line
    assert line.endswith(f"rename {tmp_path / package}.py")


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("statement", ["from {} import helper", "import {0}; {0}.helper()"])
def test_a_name_of_the_users_module_is_refused_with_both_files(
    script, tmp_path, package, statement
):
    (tmp_path / f"{package}.py").write_text(HELPERS)
    done = script(f"from tuner import Workload\n{statement.format(package)}\n")
    line = last_line(done)
    assert f"{tmp_path / package}.py cannot be imported for its helper" in line
    assert str(ROOT / package) in line
    assert line.endswith(f"rename {tmp_path / package}.py")


def test_a_module_of_the_users_package_is_refused_with_both_files(script, tmp_path):
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "__init__.py").write_text("")
    (tmp_path / "workers" / "kernels.py").write_text(HELPERS)
    done = script("from tuner import Workload\nimport workers.kernels\n")
    line = last_line(done)
    assert str(tmp_path / "workers" / "__init__.py") in line
    assert str(ROOT / "workers") in line


def test_a_missing_name_stays_an_attribute_error(script, tmp_path):
    (tmp_path / "workers.py").write_text(HELPERS)
    done = script(
        "from tuner import Workload\n"
        "import workers\n"
        "print(hasattr(workers, 'helper'), hasattr(workers, 'nothing'))\n"
    )
    assert (done.returncode, done.stdout) == (0, "False False\n"), done.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_the_runtime_leaves_the_names_to_the_user(script, tmp_path, package):
    (tmp_path / f"{package}.py").write_text(HELPERS)
    done = script(
        f"import tuner.runtime\nimport {package}\nprint({package}.helper())\n"
        "import tuner.runtime.identity\n"
    )
    assert (done.returncode, done.stdout) == (0, "helped\n"), done.stderr


def test_every_public_name_exists():
    import tuner

    assert {name: getattr(tuner, name) for name in tuner.__all__}
    assert len(tuner.__all__) == len(set(tuner.__all__))
    with pytest.raises(AttributeError, match="module 'tuner' has no attribute 'Kernal'"):
        tuner.Kernal  # noqa: B018


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
    [pytest.param("local", marks=pytest.mark.slow), pytest.param("ray", marks=pytest.mark.ray)],
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
