"""Results do not depend on the environment of the caller, or are kept by it."""

from __future__ import annotations

import os
import resource
import tempfile

import build_kernels
import pytest

from search_spaces.records import Workload
from workers import environment
from workers.compiling.process_builder import ProcessBuilder
from workers.device import detect, offline
from workers.job_records import Artifact, BuildJob, KernelRef
from workers.processes.fork_server import ForkServer
from workers.processes.preload import Preload
from workers.processes.worker_lost import WorkerLost
from workers.toolchain import differences, inductor_toolchain, mismatch, triton_toolchain

CPU = BuildJob(
    "cpu",
    KernelRef(f"{build_kernels.__file__}:pointwise"),
    Workload.of(n=1024),
    {"simdlen": 256, "threads": 1},
    detect("cpu"),
)
GPU = BuildJob(
    "gpu",
    KernelRef(f"{build_kernels.__file__}:two_launches"),
    Workload.of(n=1024),
    {"block": 512, "factor": 2.5, "num_warps": 4},
    offline("cuda:90"),
)


def built(job, *preload):
    server = ForkServer("builders", preload=Preload.of(*preload))
    builder = ProcessBuilder(server=server)
    try:
        return builder.build(job)
    finally:
        builder.close()
        server.close()


@pytest.fixture(scope="module")
def cpu_artifact():
    """What a builder makes in the environment of the tests."""
    return built(CPU)


@pytest.fixture(scope="module")
def gpu_artifact():
    return built(GPU)


@pytest.mark.parametrize("name", sorted(environment.LEFT_OUT))
def test_workers_run_without_what_keeps_code_from_being_compiled(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    assert name not in environment.for_workers(os.environ)
    assert name not in environment.code_variables()
    said = [line for line in environment.remarks() if line.startswith(name)]
    assert len(said) == (0 if name.startswith(("OMP", "MKL")) else 1)


def test_a_builder_of_triton_compiles_although_the_caller_interprets(gpu_artifact, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    # A fork server reads the variable when it imports Triton, before any builder forks from it.
    for preload in ((), ("triton",)):
        artifact = built(GPU, *preload)
        assert isinstance(artifact, Artifact), artifact
        assert artifact.binary_hash == gpu_artifact.binary_hash


#: What must not reach a build in C++: each change sets all of it at once.
CALLERS = (
    {"TORCH_COMPILE_DISABLE": "1", "OMP_NUM_THREADS": "1"},
    {"TORCHINDUCTOR_CACHE_DIR": "/proc/absent"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"},
)
EVERY_CALLER = {name: value for variables in CALLERS for name, value in variables.items()}


@pytest.mark.parametrize(
    "variables",
    [EVERY_CALLER, *(pytest.param(each, marks=pytest.mark.full) for each in CALLERS)],
    ids=lambda variables: next(iter(variables)) if variables != EVERY_CALLER else "all",
)
def test_switches_a_folder_and_a_locale_of_the_caller_do_not_reach_builds_of_cpp(
    cpu_artifact, monkeypatch, variables
):
    assert cpu_artifact.facts.binary_bytes > 0
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    # The server imports torch itself, as that of a run does.
    artifact = built(CPU, "torch._inductor.compile_fx")
    assert isinstance(artifact, Artifact), artifact
    assert artifact.binary_hash == cpu_artifact.binary_hash
    assert artifact.toolchain == cpu_artifact.toolchain


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DISABLE_PTXAS_OPT", "1"),
        ("DISABLE_LLVM_OPT", "1"),
        ("TRITON_DEFAULT_FP_FUSION", "0"),
        ("TRITON_F32_DEFAULT", "ieee"),
        ("TRITON_A_SWITCH_OF_LATER_VERSIONS", "1"),
        ("TORCHINDUCTOR_MAX_AUTOTUNE", "1"),
        ("TORCHINDUCTOR_CPP_ENABLE_UNSAFE_MATH_OPT_FLAG", "1"),
        ("ATEN_CPU_CAPABILITY", "default"),
        ("CXXFLAGS", "-O0"),
        ("NVIDIA_TF32_OVERRIDE", "1"),
    ],
)
def test_what_changes_code_is_a_part_of_the_toolchain(monkeypatch, name, value):
    for of in (triton_toolchain, inductor_toolchain):
        before = of()
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            after = of()
        assert before.key != after.key
        assert before.build_key != after.build_key
        assert f"{name}={value}" in differences(before, after)
        assert f"{name}={value}" in (mismatch(before, after) or "")
        assert of().key == before.key


@pytest.mark.parametrize(
    "name",
    ["TRITON_CACHE_DIR", "TRITON_HOME", "TORCH_HOME", "TORCH_LOGS", "TRITON_PRINT_AUTOTUNING",
     "TORCHINDUCTOR_COMPILE_THREADS", "CUDA_VISIBLE_DEVICES", "PYTORCH_VERSION", "NVIDIA_VISIBLE",
     "TRITON_PTXAS_PATH", "KMP_DUPLICATE_LIB_OK", "PATH"],
)  # fmt: skip
def test_folders_logs_and_what_libraries_set_are_not(monkeypatch, name):
    before = environment.code_variables()
    monkeypatch.setenv(name, "elsewhere")
    assert environment.code_variables() == before


def test_a_worker_has_the_toolchain_of_its_caller(gpu_artifact, monkeypatch):
    monkeypatch.setenv("DISABLE_PTXAS_OPT", "1")
    slow = built(GPU)
    assert slow.toolchain.variables == "DISABLE_PTXAS_OPT=1"
    assert gpu_artifact.toolchain.variables == ""
    assert slow.binary_hash != gpu_artifact.binary_hash
    assert mismatch(slow.toolchain, gpu_artifact.toolchain)


# -- what a machine lacks --------------------------------------------------------------------------
def lost(job):
    with pytest.raises(WorkerLost) as caught:
        built(job)
    assert caught.value.lasting
    assert "\n" not in f"{caught.value}"
    return f"{caught.value}; {caught.value.remedy}"


def test_a_compiler_that_is_missing_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    assert "CXX=/nonexistent/g++ names no program; set CXX to a compiler" in lost(CPU)


def test_a_temporary_folder_with_a_blank_is_named(monkeypatch, tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", f"{folder}")
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert "a folder" in lost(CPU)
    assert isinstance(built(GPU), Artifact)


@pytest.mark.parametrize("job", [CPU, GPU], ids=["cpu", "gpu"])
def test_a_limit_on_the_size_of_files_is_named(job):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        assert "ulimit -f" in lost(job)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def broken_tool(folder, name):
    path = folder / name
    path.write_text("#!/bin/sh\necho this machine is broken >&2\nexit 1\n")
    path.chmod(0o755)
    return f"{path}"


def test_a_machine_that_builds_no_cpp_at_all_is_at_fault(monkeypatch, tmp_path):
    """By a broken compiler, which no check knows: the sample fails as every config does."""
    monkeypatch.setenv("TUNER_CACHE_DIR", f"{tmp_path / 'cache'}")
    monkeypatch.setenv("CXX", broken_tool(tmp_path, "g++"))
    assert "this machine builds nothing for cpu:" in lost(CPU)


def test_a_machine_that_builds_no_binary_for_a_gpu_is_at_fault(monkeypatch, tmp_path):
    for variable in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        monkeypatch.setenv(variable, version_only(tmp_path))
    assert "this machine builds nothing for cuda:90" in lost(GPU)


def version_only(folder):
    """A ptxas that says its version and assembles nothing."""
    import triton

    real = f"{os.path.dirname(triton.__file__)}/backends/nvidia/bin/ptxas"
    path = folder / "ptxas"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec {real} --version\nexit 3\n')
    path.chmod(0o755)
    return f"{path}"
