"""The sample that a fork server compiles for its forks, and what it must leave as it was."""

import os
import shutil
import subprocess
import sys

import pytest

from workers.backends.cpu.spec import CpuSpec
from workers.processes.preload import Call, WorkerRole

PREPARE = """
import os, threading
os.environ.update(OMP_WAIT_POLICY="passive", TORCHINDUCTOR_COMPILE_THREADS="1")
import torch
from torch._inductor import codecache, cpu_vec_isa
from workers.compiling.inductor import compile_sample
loader, probe = vars(codecache.CppPythonBindingsCodeCache), cpu_vec_isa.valid_vec_isa_list
before = loader["load_pybinding"], probe, dict(os.environ)
"""
RESTORED = """
assert (loader["load_pybinding"], cpu_vec_isa.valid_vec_isa_list, dict(os.environ)) == before
assert threading.active_count() == 1, threading.enumerate()
assert not torch.cuda.is_initialized()
"""
LATER = """
if os.fork():
    _, status = os.wait()
    raise SystemExit(os.waitstatus_to_exitcode(status))
import pathlib, sys
from torch._dynamo.utils import counters
from search_spaces.registry import load
from workers.compiling.inductor import build_cpu
from workers.host import cpu_device
from workers.job_records import BuildJob, KernelRef
kernel = load("cpu_pointwise")
workload, device = kernel.workloads()[0], cpu_device()
config = kernel.default_config(workload, device)
job = BuildJob("1", KernelRef("cpu_pointwise"), workload, config, device)
built = build_cpu(kernel, job, pathlib.Path(sys.argv[1]))
print("built", built.binary_hash, built.facts.binary_bytes > 1000, flush=True)
os._exit(0)
"""


@pytest.mark.full
def test_a_fork_of_a_server_with_the_sample_builds_the_same_binary(tmp_path):
    with_sample = python(PREPARE + "compile_sample()\n" + RESTORED + LATER, tmp_path / "a")
    without = python(PREPARE + LATER, tmp_path / "b")
    assert with_sample == without
    assert with_sample.startswith("built ")
    assert with_sample.endswith(" True\n")


def test_the_sample_compiles_no_cpp_and_leaves_nothing_replaced(tmp_path):
    """Builders call the compiler and report what fails; a server only asks for its version."""
    calls, wrapper = tmp_path / "calls", tmp_path / "g++"
    wrapper.write_text(f'#!/bin/sh\necho "$@" >> {calls}\nexec {shutil.which("g++")} "$@"\n')
    wrapper.chmod(0o755)
    # Dynamo times no guards after the sample.
    guards = "from torch._dynamo import guards\nprint(guards.profile_guard_manager(None, {}, 1))\n"
    code = PREPARE + "compile_sample()\n" + RESTORED + guards
    assert python(code, tmp_path, CXX=f"{wrapper}") == "0.0\n"
    assert set(calls.read_text().splitlines()) == {"--version"}


def test_a_sample_that_cannot_be_compiled_leaves_nothing_replaced(tmp_path):
    code = PREPARE + (
        "from torch._inductor import compile_fx, graph\n"
        "def fail(*_, **__):\n    raise OSError('planted')\n"
        "graph.GraphLowering.codegen = fail\n"
        "try:\n    compile_sample()\n"
        "except Exception as error:\n    print('planted' in f'{error}')\n"
    )
    assert python(code + RESTORED, tmp_path) == "True\n"


def test_builders_and_runners_load_the_sample_once():
    """A server loads what the preloads have in common, and it is among that."""
    sample = Call("workers.compiling.inductor", "compile_sample")
    builders, runners = (
        CpuSpec().preload(role).steps for role in (WorkerRole.BUILDER, WorkerRole.RUNNER)
    )
    shared = builders.index(sample) + 1
    assert builders[:shared] == runners[:shared]


def python(code, folder, **environment):
    surroundings = {**os.environ, "TUNER_CACHE_DIR": f"{folder}/cache", **environment}
    command = [sys.executable, "-c", code, f"{folder}"]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
