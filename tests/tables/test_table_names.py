"""File names: readable, bounded, different for different kernels; a simulated run's say so."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_documents import H200, WINNER, add_task, document, outcome, written

from search_spaces.records import Workload
from tuner import runtime, tables
from tuner.runtime import DeviceFacts

LONG = "a_name_that_goes_on_" * 20


def workload(**dims):
    return Workload.of(dtype="float16", **dims)


@given(st.text(max_size=400), st.text(max_size=400))
def test_different_kernels_have_different_short_file_names(one, other):
    stems = [runtime.file_stem(name) for name in (one, other)]
    assert all(stem.isascii() and 0 < len(stem) <= 80 for stem in stems)
    assert not any(set(stem) & set("/\\@\0 ") or stem.startswith(".") for stem in stems)
    assert (stems[0].lower() == stems[1].lower()) == (one == other)


def test_plain_names_stay_as_they_are():
    for name in ("softmax", "rms_norm", "_fwd.v2", "a-b"):
        assert runtime.file_stem(name) == name


@pytest.mark.parametrize(
    "names",
    [
        ("行列積", "転置"),
        ("a/b", "a_b"),
        ("scale", "Scale"),
        (LONG + "1", LONG + "2"),
        ("..", "..."),
    ],
    ids=["not ASCII", "replaced", "case", "long", "dots"],
)
@pytest.mark.parametrize("kind", ["tuner", "triton", "t4", "space"])
def test_no_kernel_replaces_anothers_file(store, run_id, tmp_path, names, kind):
    for name in names:
        add_task(store, run_id, workload(n=64), kernel=name, selection=outcome())
    paths = tables.export(store, run_id, tmp_path / "out", kind)
    assert len({path.name.lower() for path in paths}) == len(paths) >= len(names)
    assert {path.name for path in paths} == set(os.listdir(tmp_path / "out"))
    assert all(len(os.fsencode(path.name)) + 10 <= 255 for path in paths)
    if kind != "tuner":
        return
    wanted = {"tables": tmp_path / "out", "device": H200.name, "stale": "use"}
    for name in names:
        assert runtime.lookup(name, workload(n=64).as_dict(), **wanted).config == WINNER
    assert not [finding for finding in tables.check([tmp_path / "out"]) if "malformed" in finding]


def test_no_workload_replaces_anothers_file(store, run_id, tmp_path):
    many = {f"dimension_{number}": number for number in range(12)}
    for last in (1, 2):
        add_task(store, run_id, workload(**many, last=last))
        add_task(store, run_id, workload(text="a/b" if last == 1 else "a_b"))
    for kind in ("t4", "space"):
        paths = tables.export(store, run_id, tmp_path / kind, kind)
        assert len(os.listdir(tmp_path / kind)) == len(paths) == (8 if kind == "t4" else 4)


def test_a_table_under_its_old_name_is_found(tmp_path):
    written(tmp_path / "Scale_it@x.json", document([({"n": 64}, {"BLOCK": 1})], kernel="Scale it"))
    assert runtime.lookup("Scale it", {"n": 64}, tables=tmp_path, device="NVIDIA H200")


def test_checks_read_tables_of_devices_with_dots_in_their_names(store, run_id, tmp_path):
    xeon = replace(H200, kind="cpu", name="Intel(R) Xeon(R) CPU @ 2.50GHz")
    add_task(store, run_id, workload(n=64), device=xeon, selection=outcome())
    for kind in ("tuner", "triton", "t4", "space"):
        tables.export(store, run_id, tmp_path / "out", kind)
    findings = tables.check([tmp_path / "out"])
    assert findings
    assert all("2.50GHz" in finding and "triton.json" not in finding for finding in findings)
    assert not any("schema" in finding for finding in findings)


def test_tables_of_simulated_runs_are_no_tables_of_the_device(store, run_id, tmp_path):
    simulated = replace(H200, kind="simulated")
    add_task(store, run_id, workload(n=64), device=simulated, selection=outcome())
    (path,) = tables.export(store, run_id, tmp_path / "out")
    assert path.name.startswith("scale@simulated-NVIDIA_H200-")
    assert runtime.read(path).device.kind == "simulated"
    (space,) = tables.export(store, run_id, tmp_path / "out", "space")
    assert "@simulated-" in space.name
    requested = workload(n=64).as_dict()
    for device, found in (
        ("NVIDIA H200", False),
        (DeviceFacts("NVIDIA H200", "cuda", "cuda:90", 132, 150_000_000_000), False),
        (DeviceFacts("NVIDIA H200", "simulated"), True),
    ):
        hit = runtime.lookup("scale", requested, tables=path, device=device, stale="use")
        assert bool(hit) == found
