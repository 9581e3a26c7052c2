"""Faults of the machine under real compilers never become failures of a config."""

import os
import resource
import shutil
import subprocess
import tempfile
from contextlib import contextmanager, nullcontext

import build_kernels
import pytest

from search_spaces.records import Status, Workload
from workers.compiling.job import build_kernel
from workers.compiling.process_builder import ProcessBuilder
from workers.device import detect, offline
from workers.job_records import Artifact, BuildJob, Failure, KernelRef
from workers.measure.failure_values import failure_of
from workers.processes.machine_faults import MachineFault, fault_of, is_named_in
from workers.processes.worker_lost import WorkerLost

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")

SPEC = f"{build_kernels.__file__}:two_launches"
CONFIG = {"block": 512, "factor": 2.5, "num_warps": 4}


def job(config=CONFIG, spec=SPEC, device=None):
    workload = Workload.of(n=1024)
    return BuildJob("job", KernelRef(spec), workload, config, device or offline("cuda:90"))


def built(cache):
    return build_kernel(build_kernels.two_launches, job(), cache)


@contextmanager
def few_files(left):
    """Limit this process to a number of further open files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + left, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def small_disk(folder, size="128k"):
    """Mount a disk of this size over the folder."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", f"{folder}"]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", f"{folder}"], check=True)


@contextmanager
def deadly_ptxas(folder, monkeypatch):
    """A ptxas that is killed, as by the system when memory is short."""
    import triton

    real = f"{os.path.dirname(triton.__file__)}/backends/nvidia/bin/ptxas"
    shim = folder / "ptxas"
    shim.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec {real} --version\nkill -9 $$\n')
    shim.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setenv("TRITON_PTXAS_PATH", str(shim))
        patched.setenv(
            "TRITON_PTXAS_BLACKWELL_PATH", str(shim)
        )  # from Triton 3.9 on, also Hopper's
        yield


def deadly_cc1plus(folder):
    """The message of a g++ whose compiler process is killed."""
    shim = folder / "cc1plus"
    shim.write_text("#!/bin/sh\nkill -9 $$\n")
    shim.chmod(0o755)
    return ["g++", f"-B{folder}/"]


@pytest.mark.parametrize("fault", ["disk", "files", "killed"])
def test_a_fault_during_compilation_is_not_a_result_of_the_config(tmp_path, monkeypatch, fault):
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    faults = {
        "disk": lambda: small_disk(cache, "16k"),
        "files": lambda: few_files(0),
        "killed": lambda: deadly_ptxas(tmp_path, monkeypatch),
    }
    said = {"disk": "No space left", "files": "Too many open files", "killed": "error code -9"}
    remedies = {"disk": "TMPDIR", "files": "ulimit -n", "killed": "pool.builders"}
    assert isinstance(built(tmp_path / "warm"), Artifact)
    with faults[fault](), pytest.raises(MachineFault, match=said[fault]) as caught:
        built(cache)
    assert remedies[fault] in caught.value.hint
    assert isinstance(built(cache), Artifact)


@pytest.mark.parametrize("killed", ["cc1plus", "g++"])
def test_a_cpp_compiler_that_is_killed_is_a_fault_of_the_machine(tmp_path, killed):
    from torch._inductor.cpp_builder import run_compile_cmd

    source = tmp_path / "a.cpp"
    source.write_text("int f() { return 1; }\n")
    words = deadly_cc1plus(tmp_path)
    if killed == "g++":
        (tmp_path / "cc1plus").rename(tmp_path / "g++")
        words = [f"{tmp_path}/g++"]
    with pytest.raises(Exception, match="C\\+\\+ compile error") as caught:
        run_compile_cmd(" ".join([*words, "-c", f"{source}"]), f"{tmp_path}")
    fault = fault_of(caught.value)
    assert fault is not None
    assert killed in fault.message
    with pytest.raises(MachineFault):
        failure_of(caught.value)
    source.write_text("int f() { return nothing; }\n")
    with pytest.raises(Exception, match="not declared") as caught:
        run_compile_cmd(f"g++ -c {source}", f"{tmp_path}")
    assert fault_of(caught.value) is None
    assert failure_of(caught.value).status is Status.COMPILE


def test_a_killed_probe_of_the_compiler_has_no_result(tmp_path, monkeypatch):
    words = " ".join(deadly_cc1plus(tmp_path))
    shim = tmp_path / "c++"
    shim.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    shim.chmod(0o755)
    monkeypatch.setenv("CXX", str(shim))
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))  # which has no results yet
    spec = f"{build_kernels.__file__}:pointwise"
    broken = job({"simdlen": 256, "threads": 1}, spec, detect("cpu"))
    builder = ProcessBuilder()
    try:
        with pytest.raises(WorkerLost, match="Killed signal") as caught:
            builder.build(broken)
        assert "memory" in caught.value.remedy
    finally:
        builder.close()


def test_a_builder_that_is_always_killed_is_a_fault_of_the_machine(tmp_path):
    # As by a system that is short of memory, at the same point each time.
    (tmp_path / "deadly.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    builder = ProcessBuilder()
    try:
        with pytest.raises(WorkerLost, match=r"killed \(SIGKILL\) 4 times") as caught:
            builder.build(job(spec=f"{tmp_path}/deadly.py:Kernel"))
        assert "memory" in caught.value.remedy
        assert isinstance(builder.build(job()), Artifact)
    finally:
        builder.close()


def test_too_few_open_files_for_a_child_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    builder, needed = ProcessBuilder(), job()
    before = set(os.listdir("/proc/self/fd"))
    # Some are too few to start the fork server, and some for the pipes of a child.
    for left in range(0, 10, 3):
        with few_files(left), pytest.raises(WorkerLost, match="Too many open files") as caught:
            builder.build(needed)
        assert "ulimit -n" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) <= len(before) + 2
    builder.close()


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (OSError(28, "No space left on device"), True),
        (OSError(2, "No such file"), False),
        (MemoryError(), True),
        (ValueError("No space left on device"), False),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), False),
        (RuntimeError("DefaultCPUAllocator: can't allocate: you tried to allocate 64 bytes"), True),
        (
            RuntimeError(f"DefaultCPUAllocator: no: you tried to allocate {2**60} bytes"),
            False,
        ),
    ],
)
def test_a_fault_is_found_anywhere_in_a_chain_of_errors(error, lost):
    wrapped = RuntimeError("while something else was done")
    wrapped.__context__ = error
    for each in (error, wrapped):
        assert (fault_of(each) is not None) is lost
        with pytest.raises(MachineFault) if lost else nullcontext():
            assert isinstance(failure_of(each), Failure)


@pytest.mark.parametrize(
    ("message", "detail", "lost"),
    [
        ("lost 8 workers in a row; the last: node gone", "", True),
        ("OSError: [Errno 28] No space left on device: '/tmp/x'", "", True),
        ("InductorError: OSError: [Errno 24] Too many open files", "", True),
        ("InductorError: g++: fatal error: Killed signal terminated program cc1plus", "", True),
        ("CppCompileError: C++ compile error", "as: No space left on device", True),
        ("PTXASError: `ptxas` failed with error code -9", "", True),
        ("the compiler crashed (SIGKILL) 4 times", "", True),
        ("PTXASError: ptxas error   : Entry function uses too much shared data", "", False),
        ("relative error 0.3 over 0.01 (seed 1)", "", False),
        ("FileNotFoundError: [Errno 2] No such file", "", False),
        ("the compiler crashed (SIGSEGV) twice", "No space left on device", False),
    ],
)
def test_stored_messages_of_faults_are_recognised(message, detail, lost):
    assert is_named_in(message, detail) is lost
