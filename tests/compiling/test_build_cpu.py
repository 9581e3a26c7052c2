"""The Inductor cache in a CPU artifact, with which another process compiles nothing."""

import os
import pickle
import platform
import subprocess
import sys
import textwrap
from pathlib import Path

import build_kernels
import pytest

from search_spaces.records import Status, Workload
from workers.compiling import count_compilations
from workers.compiling.job import build_kernel
from workers.device import detect
from workers.job_records import Artifact, BuildJob, Failure, KernelRef

# torch uses its own deprecated function while Inductor is imported.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")

WORKLOAD = Workload.of(n=512)
CONFIGS = [{"simdlen": 256, "threads": 1}, {"simdlen": 256, "threads": 2}]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("builder")


def built(cache, config):
    ref = KernelRef(f"{build_kernels.__file__}:pointwise")
    job = BuildJob("job", ref, WORKLOAD, config, detect("cpu"))
    return build_kernel(build_kernels.pointwise, job, cache)


@pytest.fixture(scope="module")
def artifacts(cache):
    return [built(cache, config) for config in CONFIGS]


FRESH_PROCESS = textwrap.dedent("""
    import pickle, sys
    from pathlib import Path
    from search_spaces.registry import load
    from search_spaces.records import Workload
    from workers.compiling import count_compilations, install
    from workers.compiling.inductor import cpu_conditions

    spec, artifacts_file, folder = sys.argv[1:]
    kernel = load(spec)
    workload = Workload.of(n=512)
    inputs = kernel.make_inputs(workload, 7, "cpu")

    def run(config):
        with count_compilations() as compiled, cpu_conditions(config["threads"]):
            out = kernel.cpu_callable(workload, config)(inputs)["y"]
        assert abs(float(out.sum()) - len(out)) < 1e-3
        print(compiled.count)

    artifacts = pickle.loads(Path(artifacts_file).read_bytes())
    for artifact in artifacts:
        install(artifact, Path(folder))
    for artifact in artifacts:
        run(artifact.config)
""")


def test_another_process_runs_without_a_compiler(artifacts, tmp_path):
    assert all(isinstance(artifact, Artifact) for artifact in artifacts), artifacts
    file = tmp_path / "artifacts"
    file.write_bytes(pickle.dumps(artifacts))
    spec = f"{build_kernels.__file__}:pointwise"
    done = subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS, spec, str(file), str(tmp_path / "runner")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    # Nor are the probes of the processor made again.
    assert done.stdout.split() == ["0", "0"], done.stderr


def test_an_unchanged_variant_is_not_compiled_again(artifacts, cache):
    with count_compilations() as compiled:
        again = built(cache, CONFIGS[0])
    # A third build may make the header of later ones.
    assert not [name for name in compiled.names if name != "header.i" and ".gch" not in name]
    assert again.binary_hash == artifacts[0].binary_hash
    assert set(again.files) == set(artifacts[0].files)


def test_the_hash_identifies_what_runs(artifacts, cache):
    assert artifacts[0].binary_hash != artifacts[1].binary_hash
    assert built(cache, CONFIGS[0] | {"unused": 1}).binary_hash == artifacts[0].binary_hash


def test_the_hash_of_another_precision_is_another(artifacts, cache):
    half = built(cache, CONFIGS[0] | {"precision": "fp16"})
    assert half.binary_hash != artifacts[0].binary_hash


def test_configs_with_uncompiled_python_share_no_hash(artifacts, cache):
    one, two = (built(cache, CONFIGS[0] | {"copies": count}) for count in (1, 2))
    assert len({one.binary_hash, two.binary_hash, artifacts[0].binary_hash}) == 3


def test_artifacts_contain_binaries_and_no_sources_or_locks(artifacts):
    for artifact in artifacts:
        assert artifact.facts.binary_bytes > 1000
        assert artifact.facts.registers == artifact.facts.shared_bytes == 0
        suffixes = {Path(name).suffix for name in artifact.files}
        assert ".so" in suffixes
        assert not suffixes & {".cpp", ".lock", ".py"}


def test_a_fault_is_a_failure_and_leaves_no_files(cache, artifacts):
    before = sorted((cache / "variants").iterdir())
    failure = built(cache, CONFIGS[0] | {"fault": True})
    assert isinstance(failure, Failure)
    assert failure.status is Status.COMPILE
    assert "\n" not in failure.message
    assert "a fault in the traced function" in failure.detail
    assert sorted((cache / "variants").iterdir()) == before


PROBES = """
import json, sys
from pathlib import Path
from torch._inductor.cpu_vec_isa import valid_vec_isa_list
from workers.compiling import isa

if sys.argv[1] == "ours":
    isa.probe_once(Path(sys.argv[2]))
print([str(found) for found in valid_vec_isa_list()])
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads the flags of x86")
def test_quick_probes_find_the_instructions_that_the_processor_has(artifacts):
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list

    found = {f"{each}" for each in valid_vec_isa_list()}
    flags = set(Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n", 1)[0].split())
    assert ("avx2" in found) == ("avx2" in flags)
    assert any(name.startswith("avx512") for name in found) == ("avx512f" in flags)


@pytest.mark.full
def test_quick_probes_find_the_instructions_that_inductor_finds(tmp_path):
    found = []
    for whose in ("ours", "inductor"):
        done = subprocess.run(
            [sys.executable, "-c", PROBES, whose, f"{tmp_path}"],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{tmp_path / whose}"},
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(done.stdout)
    assert found[0] == found[1]
