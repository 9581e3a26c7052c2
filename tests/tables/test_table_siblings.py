"""Tables of a sibling card: the same code target, another number of multiprocessors or memory."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_documents import document, written

from tuner import runtime
from tuner.runtime import DeviceFacts

HERE = DeviceFacts("NVIDIA H20", "cuda", "cuda:90", sm_count=78, memory_bytes=96 << 30)


def table(folder, name: str, block: int, **facts):
    content = document([({"n": 64}, {"BLOCK": block})], device=name)
    content["device"].update(facts)
    return written(folder / f"scale@{name.replace(' ', '_')}.json", content)


def find(folder, device, monkeypatch, here=HERE):
    monkeypatch.setattr("tuner.runtime._lookup.current_device", lambda: here)
    runtime.clear()
    return runtime.lookup("scale", {"n": 64}, tables=str(folder), device=device)


def test_the_nearest_sibling_serves_a_card_without_a_table(tmp_path, monkeypatch, caplog):
    table(tmp_path, "NVIDIA H200", 1)
    table(tmp_path, "NVIDIA H100 PCIe", 2, sm_count=114)
    table(tmp_path, "NVIDIA A100", 3, target="cuda:80", sm_count=78)
    table(tmp_path, "NVIDIA L40S", 4, target="cuda:89", sm_count=78)
    assert find(tmp_path, None, monkeypatch) is None
    caplog.clear()
    assert find(tmp_path, "nearest", monkeypatch).config == {"BLOCK": 2}
    assert len(caplog.records) == 1
    assert "no table for NVIDIA H20 (78 multiprocessors)" in caplog.text
    assert "that of NVIDIA H100 PCIe (114) is the nearest" in caplog.text
    table(tmp_path, "NVIDIA H20", 5, sm_count=78, memory_bytes=96 << 30)
    assert find(tmp_path, "nearest", monkeypatch).config == {"BLOCK": 5}


def test_the_environment_variable_admits_siblings_too(tmp_path, monkeypatch):
    table(tmp_path, "NVIDIA H200", 1)
    assert find(tmp_path, None, monkeypatch) is None
    monkeypatch.setenv("TUNER_DEVICE", "nearest")
    assert find(tmp_path, None, monkeypatch).config == {"BLOCK": 1}


@pytest.mark.parametrize(
    "facts",
    [
        {"target": "cuda:100"},
        {"kind": "simulated"},
        {"kind": "hip", "target": "hip:gfx942"},
        {"target": ""},
        {"sm_count": 0},
    ],
    ids=str,
)
def test_what_is_no_sibling_is_not_used(tmp_path, monkeypatch, facts):
    table(tmp_path, "NVIDIA H200", 1, **facts)
    assert find(tmp_path, "nearest", monkeypatch) is None


def test_a_stale_table_of_a_sibling_is_not_used(tmp_path, monkeypatch):
    content = document([({"n": 64}, {"BLOCK": 1})], toolchain={"triton": "2.0.0"})
    written(tmp_path / "scale@NVIDIA_H200.json", content)
    assert find(tmp_path, "nearest", monkeypatch) is None


counts = st.integers(1, 300)


@given(counts, counts)
def test_the_distance_is_one_of_ratios(one, other):
    first = DeviceFacts("a", "cuda", "cuda:90", sm_count=one)
    second = DeviceFacts("b", "cuda", "cuda:90", sm_count=other)
    assert first.distance_to_sibling(second) == pytest.approx(abs(math.log2(one / other)))
    assert first.distance_to_sibling(second) == pytest.approx(second.distance_to_sibling(first))


# -- launches --------------------------------------------------------------------------------------
def test_a_decorated_kernel_launches_from_a_siblings_table(library, monkeypatch, caplog):
    monkeypatch.setattr("tuner.runtime._launch.current_device", lambda: HERE)
    library.load()
    library.table(({"n": 100, "dtype": "float32"}, {"BLOCK": 128, "num_warps": 4}))
    monkeypatch.setenv("TUNER_DEVICE", "nearest")
    assert library.launch(100) == [128]
    assert library.module.BENCHED == []
    assert "that of NVIDIA H200 (132) is the nearest; using " in caplog.text
    monkeypatch.delenv("TUNER_DEVICE")
    runtime.clear()
    library.load()
    library.launch(100)
    assert len(library.module.BENCHED) == 2


def test_an_applied_kernel_launches_from_a_siblings_table(applied_library, monkeypatch, caplog):
    from applied_library import key

    monkeypatch.setattr("tuner.runtime._applied_kernel.current_device", lambda: HERE)
    path = applied_library.table("tuned", (key(), {"BLOCK": 32}))
    for variable, block in (("nearest", 32), ("", 64)):
        monkeypatch.setenv("TUNER_DEVICE", variable)
        with runtime.applied(path):
            assert applied_library.launch("tuned") == block
    assert "that of NVIDIA H200 (132) is the nearest" in caplog.text
