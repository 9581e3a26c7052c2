"""Triton variants are cross-compiled, checked against limits, and launched elsewhere from cache."""

import itertools
import json
import math
import pickle
import subprocess
import sys
import tempfile
import textwrap
import zlib
from dataclasses import replace
from pathlib import Path

import build_kernels
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from triton import knobs
from triton.backends.nvidia.compiler import CUDABackend

from search_spaces.errors import KernelError, TunerError
from search_spaces.records import Device, Status, Workload
from workers.compiling import binary as binaries
from workers.compiling import build, count_compilations, install
from workers.compiling.absent_target import use_target
from workers.compiling.carried_registers import least_spill
from workers.compiling.job import build_kernel
from workers.compiling.process_builder import ProcessBuilder
from workers.device import offline
from workers.job_records import Artifact, BuildJob, Failure, KernelRef, StaticFacts
from workers.processes.fork_server import ForkServer

CONFIG = {"block": 512, "factor": 2.5, "num_warps": 4}
DOT = {"bm": 128, "bn": 256, "bk": 64, "num_warps": 8, "num_stages": 3}
ROWS = Workload.of(n=1024)
SQUARE = Workload.of(n=4096)
ELF_MACHINES = {"cuda": 190, "hip": 224}


def job(config, target="cuda:90", workload=ROWS, device=None):
    ref = KernelRef(f"{build_kernels.__file__}:two_launches")
    return BuildJob("job", ref, workload, config, device or offline(target))


def built(cache, config=CONFIG, kernel=build_kernels.two_launches, **options):
    result = build_kernel(kernel, job(config, **options), cache)
    assert isinstance(result, Artifact), result
    return result


def binaries_of(artifact):
    return [
        zlib.decompress(data)
        for name, data in artifact.files.items()
        if name.endswith((".cubin", ".hsaco"))
    ]


def test_each_launch_fits_by_itself(tmp_path):
    """The registers of one launch do not count for the threads of another."""
    config = {**CONFIG, "block": 4096, "first_warps": 1, "num_warps": 8}
    registers = -(-built(tmp_path, config).facts.registers // 8) * 8
    device = replace(offline("cuda:90"), registers=registers * 8 * 32 - 1)
    assert built(tmp_path, config, device=device).facts.registers <= registers
    few = replace(device, registers=registers * 32 - 1)
    refused = build_kernel(build_kernels.two_launches, job(config, device=few), tmp_path)
    assert refused.status == Status.CONSTRAINTS
    assert f"{registers} registers x 32 threads" in refused.message


def test_targets_do_not_leak_into_one_another(tmp_path):
    order = ["cuda:90", "hip:gfx942", "cuda:80", "cuda:90", "hip:gfx942", "cuda:100"]
    with count_compilations(import_inductor=False) as compiled:
        artifacts = [built(tmp_path, target=target) for target in order]
    assert compiled.names == ["scale", "rows_softmax"] * 4
    for target, artifact in zip(order, artifacts, strict=True):
        backend, _, arch = target.partition(":")
        assert artifact.target == target
        for binary in binaries_of(artifact):
            assert int.from_bytes(binary[18:20], "little") == ELF_MACHINES[backend]
        described = [
            json.loads(zlib.decompress(data))["target"]
            for name, data in artifact.files.items()
            if name.endswith(".json") and "__grp__" not in name
        ]
        assert [(d["backend"], str(d["arch"])) for d in described] == [(backend, arch)] * 2
    hashes = [artifact.binary_hash for artifact in artifacts]
    assert hashes[0] == hashes[3]
    assert hashes[1] == hashes[4]
    assert len(set(hashes)) == 4


def test_facts_are_read_from_the_binaries(tmp_path):
    roomy = built(tmp_path, DOT, build_kernels.dot_kernel, workload=SQUARE)
    assert roomy.facts.shared_bytes == 3 * (128 * 64 + 64 * 256) * 2
    assert roomy.facts.num_warps == 8
    assert 100 < roomy.facts.registers <= 255
    assert roomy.facts.spill_bytes == 0
    narrow = {"bm": 64, "bn": 64, "bk": 32, "num_warps": 4, "maxnreg": 32}
    options = {"target": "cuda:80", "workload": SQUARE}
    tight = built(tmp_path, narrow, build_kernels.dot_kernel, **options)
    assert tight.facts.registers <= 32
    assert tight.facts.spill_bytes > 0
    for artifact in (roomy, tight):
        for cubin in binaries_of(artifact):
            assert binaries.cubin_resources(cubin) == binaries.resources_of_attributes(cubin)


def test_the_hash_identifies_what_runs(tmp_path):
    reference = built(tmp_path / "one")
    assert built(tmp_path / "two").binary_hash == reference.binary_hash
    # Another run-time argument or grid makes another variant of the same binary.
    assert built(tmp_path / "one", CONFIG | {"factor": 3.5}).binary_hash != reference.binary_hash
    assert built(tmp_path / "one", CONFIG | {"block": 256}).binary_hash != reference.binary_hash
    # A parameter that no launch uses does not.
    assert built(tmp_path / "one", CONFIG | {"unused": 1}).binary_hash == reference.binary_hash


SOURCE = Path(build_kernels.__file__).read_text()
FAULT_IN_SOURCE = (
    f"in broken (build_kernels.py:{SOURCE[: SOURCE.index('undefined_name)')].count(chr(10)) + 1})"
)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (CONFIG | {"fault": "raise"}, ["ValueError", "no such <tile> (build_kernels.py:"]),
        (
            CONFIG | {"fault": "source"},
            ["CompilationError", "undefined_name is not defined", FAULT_IN_SOURCE],
        ),
        (
            CONFIG | {"fault": "ptxas"},
            ["PTXASError", "no-such-option", "in scale (build_kernels.py:"],
        ),
        (CONFIG | {"num_warps": 3}, ["num_warps must be a power of 2"]),
        ({"factor": 1.0, "num_warps": 4}, ["KeyError", "'block' (build_kernels.py:"]),
    ],
)
def test_a_config_that_does_not_compile_is_a_failure(tmp_path, capfd, config, words):
    failure = build_kernel(build_kernels.two_launches, job(config), tmp_path)
    assert isinstance(failure, Failure)
    assert failure.status is Status.COMPILE
    assert "\n" not in failure.message
    for word in words:
        assert word in failure.message
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (DOT | {"num_stages": 5}, "shared memory 245,760 B over the 232,448 B"),
        (DOT | {"bk": 16, "num_warps": 64}, "2,048 threads over the 1,024"),
    ],
)
def test_a_binary_that_cannot_run_is_refused_with_its_facts(tmp_path, config, words):
    failure = build_kernel(build_kernels.dot_kernel, job(config, workload=SQUARE), tmp_path)
    assert isinstance(failure, Failure)
    assert failure.status is Status.CONSTRAINTS
    assert words in failure.message
    assert failure.message.endswith("cuda:90")
    assert failure.facts is not None


@pytest.mark.parametrize(("stages", "linked"), [(5, 0), (3, 1)])
def test_what_shared_memory_refuses_is_not_linked(tmp_path, monkeypatch, stages, linked):
    calls, link = [], CUDABackend.make_cubin

    def make_cubin(*given):
        calls.append(given)
        return link(*given)

    monkeypatch.setattr(CUDABackend, "make_cubin", make_cubin)
    config = DOT | {"num_stages": stages}
    build_kernel(build_kernels.dot_kernel, job(config, workload=SQUARE), tmp_path / "cache")
    assert len(calls) == linked


@pytest.mark.parametrize(
    ("config", "carried"), [({"num_warps": 4}, 256), ({"bm": 64, "num_warps": 1}, 512)]
)
def test_a_suggestion_that_has_to_spill_is_refused_before_ptxas(tmp_path, config, carried):
    given = replace(job(DOT | {"bk": 32} | config, workload=SQUARE), refuse_spills=True)
    failure = build_kernel(build_kernels.dot_kernel, given, tmp_path / "suggested")
    assert isinstance(failure, Failure)
    assert failure.status is Status.CONSTRAINTS
    spill = 4 * (carried - 255)
    assert f"a loop carries {spill:,} B more than" in failure.message
    assert failure.facts == StaticFacts(spill_bytes=spill, num_warps=config["num_warps"])


class _AfterAnother(build_kernels.Dot):
    def launches(self, workload, config, tensors):
        fits = super().launches(workload, config | {"bm": 64, "num_warps": 8}, tensors)
        return [*fits, *super().launches(workload, config, tensors)]


def test_the_facts_of_a_refusal_are_those_of_the_launch_that_is_refused(tmp_path):
    """With the registers of another, it would seem impossible, and not slow."""
    given = replace(job(DOT | {"bk": 32, "num_warps": 4}, workload=SQUARE), refuse_spills=True)
    failure = build_kernel(_AfterAnother(), given, tmp_path)
    assert failure.facts == StaticFacts(spill_bytes=4, num_warps=4)


def test_a_config_that_somebody_asked_for_spills_and_the_rest_is_built(tmp_path):
    config = DOT | {"bk": 32, "num_warps": 4}
    asked = build_kernel(build_kernels.dot_kernel, job(config, workload=SQUARE), tmp_path / "asked")
    assert asked.facts.spill_bytes > 0
    for suggested in (
        replace(job(DOT, workload=SQUARE), refuse_spills=True),
        replace(job(config, target="hip:gfx942", workload=SQUARE), refuse_spills=True),
    ):
        made = build_kernel(build_kernels.dot_kernel, suggested, tmp_path / "suggested")
        assert isinstance(made, Artifact), made


@given(
    st.lists(st.sampled_from([16, 32, 64, 128, 256]), min_size=1, max_size=3),
    st.sampled_from(["f64", "f32", "bf16", "f8E4M3FN"]),
    st.sampled_from([1, 2, 4, 8, 16, 32]),
    st.sampled_from([1, 2]),
)
def test_what_must_spill_is_the_excess_over_all_registers(shape, dtype, warps, blocks):
    """The law counts bits over all blocks of a cluster, and ignores pointers and integers."""
    device, shaped = offline("cuda:90"), "x".join(map(str, shape))
    sizes = {"num-ctas": blocks, "num-warps": warps, "threads-per-warp": 32}
    head = ", ".join(f'"ttg.{name}" = {size} : i32' for name, size in sizes.items())
    carried = [f"tensor<{shaped}x{dtype}, #mma>", f"tensor<{shaped}x!tt.ptr<f32>, #a>", "i32"]
    loop = f"  %1:3 = scf.for %2 = %3 to %4 iter_args(%5 = %6) -> ({', '.join(carried)})  : i32 {{"
    bits = math.prod(shape) * int("".join(itertools.takewhile(str.isdigit, dtype.lstrip("bf"))))
    threads = 32 * warps
    words = -(-bits // (32 * threads * blocks))
    most = min(255, device.registers // threads)
    assert least_spill(f"module attributes {{{head}}}\n{loop}", device) == 4 * max(0, words - most)
    roles = f"module attributes {{{head}}}\nttg.warp_specialize\n{loop}"
    assert least_spill(roles, device) == 0


def test_registers_times_threads_is_a_limit_where_the_device_states_one(tmp_path):
    small = Device("cuda", "small", "cuda:90", shared_bytes=232_448, registers=4096)
    failure = build_kernel(build_kernels.two_launches, job(CONFIG, device=small), tmp_path / "a")
    assert isinstance(failure, Failure) is (failure.facts.registers * 128 > 4096)
    unknown = Device("cuda", "unknown", "cuda:90")
    assert isinstance(
        build_kernel(build_kernels.dot_kernel, job(DOT, workload=SQUARE, device=unknown), tmp_path),
        Artifact,
    )


def test_faults_not_caused_by_the_config_raise(tmp_path):
    with pytest.raises(TunerError, match="cpu:elsewhere") as wrong_machine:
        build_kernel(
            build_kernels.pointwise, job({}, device=Device("cpu", "x", "cpu:elsewhere")), tmp_path
        )
    assert wrong_machine.value.hint
    for target in ("tpu:5", "cuda:ninety", "hip:942"):
        with pytest.raises(TunerError, match="target"):
            build_kernel(
                build_kernels.two_launches, job(CONFIG, device=Device("x", "x", target)), tmp_path
            )
    missing = BuildJob("j", KernelRef("no_such_module:kernel"), ROWS, CONFIG, offline("cuda:90"))
    with pytest.raises(KernelError, match="no_such_module"):
        build(missing, tmp_path)


FRESH_PROCESS = textwrap.dedent("""
    import pickle, sys
    from pathlib import Path
    from search_spaces.registry import load
    from search_spaces.records import Workload
    from workers.compiling import count_compilations, install
    from workers.compiling.absent_target import use_target
    from workers.compiling.cache import use_cache
    from workers.compiling.gpu import meta_tensors
    from workers.job_records import BuildJob, KernelRef

    spec, artifact_file, folder = sys.argv[1:]
    artifact = pickle.loads(Path(artifact_file).read_bytes())
    kernel = load(spec)
    job = BuildJob("j", KernelRef(spec), Workload.of(n=1024), artifact.config, None)

    def launch():
        with count_compilations(import_inductor=False) as compiled, use_target(artifact.target):
            for one in kernel.launches(job.workload, job.config, meta_tensors(kernel, job)):
                one.fn.warmup(*one.args, grid=one.grid, **one.kwargs)
        return compiled.count

    use_cache(Path(folder, "without"))
    without = launch()
    install(artifact, Path(folder, "with"))
    print(without, launch())
""")


def test_another_process_launches_without_compiling(tmp_path):
    artifact = build(job(CONFIG), tmp_path / "builder")
    assert isinstance(artifact, Artifact), artifact
    file = tmp_path / "artifact"
    file.write_bytes(pickle.dumps(artifact))
    spec = f"{build_kernels.__file__}:two_launches"
    done = subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS, spec, str(file), str(tmp_path / "runner")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["2", "0"], done.stderr


def test_installing_is_idempotent_and_leaves_no_partial_files(tmp_path, monkeypatch):
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS"):
        monkeypatch.setenv(name, "")
    artifact = built(tmp_path / "builder")
    install(artifact, tmp_path / "runner")
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "runner").rglob("*")}
    install(artifact, tmp_path / "runner")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runner").rglob("*")} == files
    inside = {path.relative_to(tmp_path / "runner").as_posix() for path in files if path.is_file()}
    assert inside == set(artifact.files)
    for path in files:
        if path.name.startswith("__grp__"):
            members = json.loads(path.read_text())["child_paths"]
            assert all(Path(member).is_file() for member in members.values())


def test_builders_of_one_server_compile_equal_launches_once(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # The width of a row is a constant of `rows_softmax` and an argument at run time of `scale`.
    workloads = [Workload.of(n=2048), Workload.of(n=4096)]
    server = ForkServer("builders", shared=True)
    builders = [ProcessBuilder(server=server) for _ in workloads]
    try:
        artifacts = [
            builder.build(job(CONFIG, workload=workload))
            for builder, workload in zip(builders, workloads, strict=True)
        ]
        names = [path.name for path in tmp_path.rglob("*.cubin")]
    finally:
        for builder in builders:
            builder.close()
        server.close()
    assert sorted(names) == ["rows_softmax.cubin", "rows_softmax.cubin", "scale.cubin"]
    first, second = (
        {name: data for name, data in artifact.files.items() if "scale" in name}
        for artifact in artifacts
    )
    assert first == second
    assert artifacts[0].binary_hash != artifacts[1].binary_hash
    assert [len(artifact.keys) for artifact in artifacts] == [2, 2]


def artifact_of(files):
    return Artifact({}, "cuda:90", None, "hash", files=files)


@pytest.mark.parametrize(
    "name", ["../outside", "/outside", "triton/../../outside", "", ".", "a\\..\\b", "C:x", "a\0b"]
)
def test_hostile_names_write_nothing(tmp_path, name):
    data = zlib.compress(b"x")
    with pytest.raises(TunerError, match="outside the cache"):
        install(artifact_of({"triton/ok": data, name: data}), tmp_path / "cache")
    assert not list(tmp_path.rglob("*"))


def test_links_do_not_lead_out_of_the_cache(tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache" / "triton").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TunerError, match="outside the cache"):
        install(artifact_of({"triton/x": zlib.compress(b"x")}), tmp_path / "cache")
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(
    ("name", "data", "word"),
    [
        ("triton/K/x.cubin", b"not zlib", "damaged"),
        ("triton/K/x.cubin", zlib.compress(b"x" * 999)[:-3], "truncated"),
        ("triton/K/__grp__x.json", zlib.compress(b"{"), "damaged"),
        ("triton/K/__grp__x.json", zlib.compress(b'{"child_paths": 3}'), "damaged"),
        (
            "triton/K/__grp__x.json",
            zlib.compress(b'{"child_paths": {"x": "../../../y"}}'),
            "outside the cache",
        ),
    ],
)
def test_damaged_artifacts_are_refused(tmp_path, name, data, word):
    with pytest.raises(TunerError, match=word) as refused:
        install(artifact_of({name: data}), tmp_path)
    assert refused.value.hint


@example(b"\0\x80" + bytes(13) + b"\1\0\0", 40)  # a table beyond what an index can be
@given(st.binary(max_size=300), st.integers(0, 200))
def test_any_bytes_have_a_hash(data, length):
    for content in (data, b"\x7fELF\x02\x01" + data, b"\x7fELF\x02\x01" + bytes(length) + data):
        assert len(binaries.code_hash(content)) == 64


def test_blocks_restore_the_driver_and_nest():
    from triton.runtime import driver

    before = vars(driver).get("_active"), knobs.compilation.listener
    with use_target("cuda:90") as outer, count_compilations(import_inductor=False):
        with use_target("hip:gfx90a") as inner, count_compilations(import_inductor=False):
            assert driver.active is inner
        assert driver.active is outer
        assert outer.get_current_device() != inner.get_current_device()
    assert (vars(driver).get("_active"), knobs.compilation.listener) == before


def test_run_time_arguments_are_part_of_the_hash(tmp_path):
    """Which part of a tensor is passed, and defaults of arguments that are not passed."""
    usual = {"of": "a", "row": 0, "two": False}
    hashes = []
    for change in ({}, {"of": "b"}, {"row": 1}, {"two": True}):
        asked = job({**usual, **change}, workload=Workload.of(n=64))
        artifact = build_kernel(build_kernels.Parts(), asked, tmp_path)
        assert isinstance(artifact, Artifact), artifact
        hashes.append(artifact.binary_hash)
    assert len(set(hashes)) == 4


def test_arguments_from_heuristics_are_part_of_the_hash(tmp_path):
    built = [
        build_kernel(
            build_kernels.Shifted(), job({"steps": steps}, workload=Workload.of(n=64)), tmp_path
        )
        for steps in (1, 1, 2)
    ]
    one, same, other = (artifact.binary_hash for artifact in built)
    assert one == same != other
