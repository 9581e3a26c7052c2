"""Finding and detecting devices, limits of targets, and the comparison of toolchains."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.errors import TunerError
from search_spaces.records import Toolchain
from workers import backend_kinds, toolchain
from workers.backends.cuda import driver_facts
from workers.backends.cuda.devices import visible_devices
from workers.device import detect, find_devices, offline
from workers.host import cpu_device, physical_cores

UUIDS = ["GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3"]


@pytest.mark.parametrize(
    ("target", "shared", "warp"),
    [
        ("cuda:80", 166_912, 32),
        ("cuda:89", 101_376, 32),
        ("cuda:90", 232_448, 32),
        ("hip:gfx942", 65_536, 64),
        ("hip:gfx950", 163_840, 64),
        ("hip:gfx1100", 65_536, 32),
    ],
)
def test_limits_of_absent_targets(target, shared, warp):
    device = offline(target, "interpreter")
    assert (device.shared_bytes, device.warp_size, device.target) == (shared, warp, target)
    assert device.kind == "interpreter"
    assert offline(target).kind == target.partition(":")[0]


def test_an_unknown_target_names_the_known_ones():
    with pytest.raises(TunerError, match="hip:42") as unknown:
        offline("hip:42")
    assert "hip:gfx942" in unknown.value.hint
    with pytest.raises(TunerError, match="abacus:1") as unknown:
        offline("abacus:1")
    assert "cuda, hip" in unknown.value.hint
    with pytest.raises(TunerError, match="cuda:42") as unknown:
        offline("cuda:42")
    assert "cuda:90" in unknown.value.hint


@pytest.mark.parametrize(
    ("setting", "visible"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        (" 1 , 2", [1, 2]),
        ("0,7,1", [0]),
        ("0,0,1", [0]),
        ("GPU-cccc-3,GPU-aaaa", [2, 0]),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices_as_cuda_reads_them(setting, visible):
    assert visible_devices(setting, UUIDS) == visible


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("MIG-1f2a-5", "a part of a GPU (MIG), which is not supported"),
        ("MIG-GPU-aaaa-1/7/0", "a part of a GPU (MIG), which is not supported"),
        ("GPU-dddd", "no GPU here"),
        ("GPU-aa,0", "2 GPUs, whose UUIDs begin with it"),
    ],
)
def test_a_setting_that_hides_all_devices_by_mistake_is_refused(setting, words):
    with pytest.raises(TunerError) as refused:
        visible_devices(setting, UUIDS)
    name = setting.partition(",")[0]
    assert refused.value.message == f"CUDA_VISIBLE_DEVICES={setting}: {name} is {words}"


@given(st.text(max_size=30))
def test_any_setting_yields_distinct_devices(setting):
    visible = visible_devices(setting, UUIDS)
    assert len(set(visible)) == len(visible)
    assert all(0 <= index < len(UUIDS) for index in visible)


def test_this_cpu():
    device = detect("cpu")
    assert find_devices("cpu") == [device]
    assert device.name
    assert device.target.startswith("cpu:")
    assert 1 <= device.sm_count <= (os.cpu_count() or 1)
    assert device.memory_bytes > 2**28
    assert detect("interpreter").kind == "interpreter"
    with pytest.raises(TunerError, match="abacus"):
        detect("abacus")


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_control_group_limits_cores_and_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    for cpu in range(8):
        topology = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text("0\n")
        (topology / "core_id").write_text(f"{cpu // 2}\n")
    assert physical_cores(tmp_path) == 4
    write(
        tmp_path,
        **{"sys__fs__cgroup__cpu.max": "250000 100000\n", "sys__fs__cgroup__memory.max": "2048\n"},
        proc__meminfo="MemTotal:       16384 kB\n",
        proc__cpuinfo="processor : 0\nmodel name : Some  CPU @ 3GHz\nflags : fpu avx2 fma\n\n",
    )
    assert physical_cores(tmp_path) == 2
    write(tmp_path, **{"sys__fs__cgroup__cpu.max": "max 100000\n"})
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    device = cpu_device(tmp_path)
    assert (device.sm_count, device.memory_bytes) == (4, 2048)
    assert (device.name, device.target) == ("Some  CPU @ 3GHz", "cpu:x86-64-avx2")


def test_a_machine_without_cpu_information_still_has_a_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    device = cpu_device(tmp_path)
    assert device.sm_count >= 1
    assert device.target == "cpu:aarch64-neon"


def test_a_mismatch_of_toolchains_names_the_difference():
    here = backend_kinds.spec("cuda").toolchain()
    assert here.torch
    assert here.triton
    assert here.ptxas
    assert here.compiler == ""
    assert backend_kinds.spec("cpu").toolchain().compiler
    assert backend_kinds.spec("cpu").toolchain().triton == ""
    assert toolchain.mismatch(here, here) is None
    assert toolchain.mismatch(here, replace(here, driver="1", python=f"{here.python}+")) is None
    other = replace(here, triton="0.1", ptxas="")
    line = toolchain.mismatch(other, here)
    assert f"triton 0.1 -> {here.triton}" in line
    assert f"ptxas none -> {here.ptxas}" in line
    assert "torch" not in line
    assert "python 3.1.4 -> " in toolchain.mismatch(Toolchain(python="3.1.4"), Toolchain())


def test_finding_devices_loads_neither_torch_nor_triton():
    script = (
        "import sys; from workers import backend_kinds, device; import workers.compiling\n"
        "device.find_devices('cuda'); device.detect('cpu'); device.offline('cuda:90')\n"
        "[one.toolchain() for one in backend_kinds.specs()]\n"
        "print([name for name in ('torch', 'triton') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_the_drivers_facts_are_a_program_of_the_standard_library_alone():
    """A process that asks CUDA's driver cannot be forked, so a short program does."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", driver_facts.__file__],
        capture_output=True,
        text=True,
        check=True,
    )
    assert isinstance(json.loads(done.stdout), list)
