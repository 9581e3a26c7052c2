"""Triton's host modules are compiled once per user; variants stay in the process's cache."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from search_spaces.records import digest
from workers.backend_kinds import environment
from workers.machine_lock import MachineLock

ROOT = Path(__file__).parents[2]
#: An extension module as Triton makes its driver and launchers, and a file of a compiled variant.
_PROCESS = """
import sys
from triton.runtime.build import compile_module_from_src
from triton.runtime.cache import get_cache_manager

source = '''
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "probe", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_probe(void) { return PyModule_Create(&module); }
'''
print(compile_module_from_src(source, "probe").__file__)
cache = get_cache_manager("ab" * 32)
print(cache.get_file("variant.cubin"))
print(cache.put(b"code", "variant.cubin"))
"""


def lines_of(home: Path, cache: Path, compiler: str | None = None) -> list[str]:
    """The output of a device process with a private cache and this home folder."""
    env = {**os.environ, **environment("cuda", str(cache)), "TRITON_HOME": str(home)}
    env["PYTHONPATH"] = f"{ROOT}"
    if compiler:
        env["CC"] = compiler
    done = subprocess.run(
        [sys.executable, "-c", _PROCESS], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_a_module_is_compiled_once_for_all_processes_and_a_variant_for_each(tmp_path):
    home = tmp_path / "home"
    module, before, variant = lines_of(home, tmp_path / "one")
    assert Path(module).is_relative_to(home)
    assert before == "None"
    assert Path(variant).is_relative_to(tmp_path / "one")
    again, before, variant = lines_of(home, tmp_path / "two", compiler="false")
    assert again == module
    assert before == "None"
    assert Path(variant).is_relative_to(tmp_path / "two")
    Path(module).write_bytes(b"half")  # a damaged module is compiled again
    again, *_ = lines_of(home, tmp_path / "three")
    assert again == module
    assert Path(module).stat().st_size > 1000


def test_with_a_read_only_home_modules_stay_in_the_process_cache(tmp_path):
    home = tmp_path / "home"
    home.write_text("a file, not a folder")
    module, *_ = lines_of(home, tmp_path / "one")
    assert Path(module).is_relative_to(tmp_path / "one")


#: What a builder does for a card of this machine, and what a device process looks for.
_BUILD = """
import sys
from dataclasses import replace
from pathlib import Path
from search_spaces.registry import load
from workers.compiling import build
from workers.device import offline
from workers.job_records import BuildJob, KernelRef

kernel, here = load("softmax"), replace(offline("cuda:90"), uuid=sys.argv[1])
workload = kernel.workloads()[0]
config = kernel.default_config(workload, here)
made = build(BuildJob("job", KernelRef("softmax"), workload, config, here), Path(sys.argv[2]))
print(sorted({name.rpartition(".")[2] for name in made.files}))
"""
_OPEN = """
from triton.runtime import build
from workers.compiling.host_code import keep_host_modules

build._build = print  # the compiler
keep_host_modules()
"""


_OPENED = """
import ctypes, os
from triton.backends.nvidia import driver
from workers.compiling import host_code

os.environ["TRITON_LIBCUDA_PATH"] = folder = host_code._make_empty_libcuda(driver)
ctypes.CDLL(f"{folder}/libcuda.so.1", ctypes.RTLD_GLOBAL)
opened = driver.CudaUtils()
before = {**vars(opened)}, {**vars(driver)}
host_code.keep_host_modules()
print((vars(opened), vars(driver)) == before, driver.CudaUtils.instance is opened)
"""


def run_code(code: str, home: Path, *arguments: str, **variables: str) -> str:
    """What code prints on a machine with a driver, whose library is empty."""
    libcuda = home / "libcuda"
    if not libcuda.exists():
        libcuda.mkdir()
        command = ["gcc", "-shared", "-xc", "/dev/null", "-o", f"{libcuda / 'libcuda.so.1'}"]
        subprocess.run(command, check=True)
        (libcuda / "libcuda.so").symlink_to("libcuda.so.1")
    env = {**os.environ, **environment("cuda", str(home / "cache")), "TRITON_HOME": str(home)}
    env |= {"PYTHONPATH": f"{ROOT}", "TRITON_LIBCUDA_PATH": f"{libcuda}", **variables}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


def test_a_builder_compiles_them_before_a_device_process_needs_them(tmp_path):
    made = run_code(_BUILD, tmp_path, "GPU-1", str(tmp_path / "builds"))
    assert made == "['cubin', 'json']\n"
    assert all(path.is_relative_to(tmp_path / ".triton") for path in tmp_path.rglob("cuda_utils*"))
    assert run_code(_OPEN, tmp_path) == ""


def test_only_one_of_the_builders_that_begin_together_compiles_them(tmp_path):
    folder = digest(f"{tmp_path / '.triton' / 'cache'}")
    with contextlib.closing(MachineLock(f"host-modules-{folder}")) as lock:
        assert lock.take()
        made = run_code(_BUILD, tmp_path, "GPU-1", str(tmp_path / "builds"))
    assert made == "['cubin', 'json']\n"
    assert not list(tmp_path.rglob("cuda_utils*"))


@pytest.mark.parametrize(
    ("card", "variables"),
    [
        ("", {}),
        ("GPU-1", {"CC": "false"}),
        ("GPU-1", {"CC": "none"}),
        ("GPU-1", {"TRITON_LIBCUDA_PATH": "/nonexistent"}),
    ],
    ids=["absent card", "compiler fails", "no compiler", "no driver"],
)
def test_a_build_goes_on_where_none_can_be_compiled(card, variables, tmp_path):
    made = run_code(_BUILD, tmp_path, card, str(tmp_path / "builds"), **variables)
    assert made == "['cubin', 'json']\n"
    assert not list(tmp_path.rglob("cuda_utils*"))


def test_a_process_that_has_opened_a_device_keeps_its_driver(tmp_path):
    assert run_code(_OPENED, tmp_path) == "True True\n"


@pytest.mark.parametrize("kind", ["cpu", "interpreter", "simulated"])
def test_other_kinds_keep_their_modules_private(kind, tmp_path):
    assert "TRITON_CACHE_MANAGER" not in environment(kind, str(tmp_path))
