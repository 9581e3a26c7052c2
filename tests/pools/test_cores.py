from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workers.pools.worker_slots import number, shares


def machine(folder, siblings: list[list[int]]):
    for core, processors in enumerate(siblings):
        for processor in processors:
            topology = folder / f"sys/devices/system/cpu/cpu{processor}/topology"
            topology.mkdir(parents=True, exist_ok=True)
            (topology / "physical_package_id").write_text("0\n")
            (topology / "core_id").write_text(f"{core}\n")
    return folder


def test_each_gpu_has_its_own_physical_core(tmp_path):
    root = machine(tmp_path, [[0, 4], [1, 5], [2, 6], [3, 7]])
    assert shares([0, 1], range(8), root) == ({0: 0, 1: 1}, {2, 3, 6, 7})
    assert shares([2], range(8), root) == ({2: 2}, {0, 1, 3, 4, 5, 7})
    # As many GPUs as cores: compilers get the siblings. Without siblings nothing is reserved.
    assert shares(range(4), range(8), root) == ({0: 0, 1: 1, 2: 2, 3: 3}, {4, 5, 6, 7})
    assert shares(range(4), range(4), root) == ({}, {0, 1, 2, 3})
    assert shares([0], [5], root) == ({}, {5})
    assert shares([], range(8), root) == ({}, set(range(8)))
    assert shares([9], range(8), root) == ({}, set(range(8)))


@given(st.sets(st.integers(0, 15)), st.sets(st.integers(0, 31), min_size=1))
def test_launching_and_compiling_never_share_a_processor(tmp_path_factory, numbers, usable):
    base = tmp_path_factory.getbasetemp()
    folder = base / "topology"
    root = folder if folder.exists() else machine(folder, [[i, i + 16] for i in range(16)])
    launch, others = shares(numbers, usable, root)
    assert others
    assert {*launch.values(), *others} <= usable
    assert not others & set(launch.values())
    assert len(set(launch.values())) == len(launch)
    assert set(launch) == numbers or (not launch and others == usable)


def test_a_gpu_has_the_number_that_the_machine_gives_it(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert number("cuda", 1) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 3")
    assert [number("cuda", 0), number("cuda", 1), number("cuda", 2)] == [5, 3, 2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1234")
    assert number("cuda", 0) == 0
