"""From stored results to tables: grouping, never worse, provenance, stable bytes, the rule."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import triton
import triton.language as tl
from table_documents import DEFAULT, H200, SCHEMA, TIE, TOOLCHAIN, WINNER, add_task, outcome

from search_spaces.adoption.adopt import adopt
from search_spaces.errors import TunerError
from search_spaces.kernel import Cost
from search_spaces.records import Device, TensorSpec, Workload
from search_spaces.registry import load
from tuner import runtime, tables
from tuner.base.log_ratio import LogRatio
from tuner.runtime import DeviceFacts
from tuner.tables.results import launch_dtypes


def workload(n=1024, **dims):
    return Workload.of(n=n, dtype="float16", **dims)


def only(found):
    (one,) = found
    return one


def test_a_table_contains_results_and_provenance(store, run_id):
    task = add_task(store, run_id, workload(), selection=outcome())
    table = only(tables.build(store, run_id))
    assert table.kernel == "scale"
    assert table.device.matches(DeviceFacts("NVIDIA H200", target="cuda:90", sm_count=132))
    assert table.device.fingerprint == H200.fingerprint
    assert table.toolchain["triton"] == "3.6.0"
    assert table.default == DEFAULT
    assert table.provenance["git_sha"] == "abc123"
    assert table.provenance["campaign"] == "nightly"
    entry = only(table.entries)
    assert entry.config == WINNER
    assert entry.tie_set == (WINNER, TIE)
    assert entry.median_us == 10.0
    assert entry.speedup_over_default == pytest.approx(1.5, abs=1e-3)
    assert entry.interval == pytest.approx((math.exp(0.39), math.exp(0.42)), abs=1e-3)
    assert entry.provenance["task"] == task.task_id
    assert entry.provenance["attempt"] == f"{task.task_id}-1"


@pytest.mark.parametrize(
    ("verdict", "low", "config"),
    [
        ("faster", 0.1, WINNER),
        ("same", -0.005, WINNER),
        ("undecided", -0.005, WINNER),
        ("undecided", -0.05, DEFAULT),
        ("slower", -0.2, DEFAULT),
    ],
)
def test_never_worse_than_the_default(store, run_id, verdict, low, config):
    chosen = outcome(verdict, log_ratio=LogRatio(low + 0.01, low, low + 0.02))
    add_task(store, run_id, workload(), selection=chosen)
    entry = only(only(tables.build(store, run_id)).entries)
    assert entry.config == config
    assert entry.verdict == verdict
    if config == DEFAULT:
        assert (entry.median_us, entry.speedup_over_default) == (15.0, 1.0)
        assert entry.interval == (1.0, 1.0)
        assert entry.tie_set == (DEFAULT,)


def test_one_table_per_kernel_device_and_toolchain(store, run_id):
    other_card = replace(H200, name="NVIDIA H100", uuid="GPU-2")
    same_card = replace(H200, uuid="GPU-3")
    newer = replace(TOOLCHAIN, triton="3.7.1")
    add_task(store, run_id, workload(1), selection=outcome())
    add_task(store, run_id, workload(2), selection=outcome(), device=same_card)
    add_task(store, run_id, workload(1), selection=outcome(), device=other_card)
    add_task(store, run_id, workload(1), selection=outcome(), kernel="other")
    add_task(store, run_id, workload(1), selection=outcome(), toolchain=newer)
    found = {
        (t.kernel, t.device.name, t.toolchain["triton"]): len(t.entries)
        for t in tables.build(store, run_id)
    }
    assert found == {
        ("scale", "NVIDIA H200", "3.6.0"): 2,
        ("scale", "NVIDIA H200", "3.7.1"): 1,
        ("scale", "NVIDIA H100", "3.6.0"): 1,
        ("other", "NVIDIA H200", "3.6.0"): 1,
    }


def test_what_was_never_timed_is_in_no_table(store, run_id):
    interpreter = Device(kind="interpreter", name="interpreter", target="cuda:90")
    add_task(store, run_id, workload(1))
    add_task(store, run_id, workload(2), selection=outcome(median_us=None))
    add_task(store, run_id, workload(3), selection=outcome(), device=interpreter)
    assert tables.build(store, run_id) == []
    assert tables.export(store, run_id, "nowhere") == []


def test_bytes_are_stable_sorted_and_fit_the_schema(store, run_id, tmp_path):
    for n in (4096, 7, 512):
        add_task(store, run_id, workload(n), selection=outcome())
    first = only(tables.export(store, run_id, tmp_path / "a"))
    store.finish_run(run_id, "finished", {})
    second = only(tables.export(store, run_id, tmp_path / "b"))
    assert first.read_bytes() == second.read_bytes()
    assert first.name == f"scale@NVIDIA_H200-{H200.fingerprint[:8]}.json"
    document = json.loads(first.read_text())
    jsonschema.validate(document, SCHEMA, cls=jsonschema.Draft202012Validator)
    assert [entry["key"]["n"] for entry in document["entries"]] == [7, 512, 4096]
    assert [list(entry["key"]) for entry in document["entries"]] == [["n", "dtype"]] * 3
    for entry in document["entries"]:
        entry["key"] = dict(sorted(entry["key"].items()))
    assert json.dumps(document, indent=2) == json.dumps(document, indent=2, sort_keys=True)
    assert tables.text_of(runtime.read(first)) == first.read_text()
    noted = store.exports()
    assert {Path(export.path) for export in noted} == {first, second}
    assert len(noted[0].task_ids) == 3
    assert len({export.sha256 for export in noted}) == 1


def test_what_is_exported_is_what_the_runtime_finds(store, run_id, tmp_path):
    """Two toolchains of one card make two files; a process finds the one that is its own."""
    from importlib.metadata import version

    ours = replace(TOOLCHAIN, triton=version("triton"))
    add_task(store, run_id, workload(), selection=outcome())
    add_task(store, run_id, workload(), toolchain=ours, selection=outcome(winner=TIE))
    assert len(tables.export(store, run_id, tmp_path)) == 2
    hit = runtime.lookup("scale", workload().as_dict(), tables=tmp_path, device="NVIDIA H200")
    assert hit.config == TIE


def test_a_full_disk_leaves_the_old_table(store, run_id, tmp_path, monkeypatch):
    import errno
    import os

    add_task(store, run_id, workload(), selection=outcome())
    path = only(tables.export(store, run_id, tmp_path / "out"))
    before = path.read_bytes()
    add_task(store, run_id, workload(2), selection=outcome())

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TunerError, match="No space left"):
        tables.export(store, run_id, tmp_path / "out")
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == before
    with pytest.raises(TunerError, match="cannot be written"):
        tables.export(store, run_id, path / "below-a-file")


def softmax_tasks(store, run_id, *, launch_hash=None):
    """Tasks of a registered kernel, with its default configs as winners."""
    kernel = load("softmax")
    for sized in list(kernel.workloads())[:2]:
        config = dict(kernel.default_config(sized, H200))
        add_task(
            store,
            run_id,
            sized,
            kernel="softmax",
            selection=outcome(winner=config, tie_set=(config,), default=config),
            launch_hash=launch_hash or kernel.launch_hash(),
            kernel_hashes=kernel.kernel_hashes(),
        )
    return kernel


def test_a_table_serves_the_sizes_for_which_a_config_is_valid(store, run_id):
    """By the law itself: whatever the table serves is valid there."""
    kernel = softmax_tasks(store, run_id)
    table = only(tables.build(store, run_id))
    assert table.rule.rule == "sizes"
    for entry in table.entries:
        for name in entry.sizes:
            for factor in (0.01, 0.55, 0.8, 1.3, 7):
                near = Workload.from_mapping(entry.key)
                near = near.with_dims(**{name: max(1, int(near.size(name) * factor))})
                hit = table.find(near.as_dict())
                if near.size(name) in entry.sizes[name]:
                    assert hit is not None
                elif hit is None:
                    continue
                assert kernel.space(near).bind(near, H200).why_invalid(hit.config) is None


def test_a_table_says_where_its_kernel_is_and_which_arguments_are_free(store, run_id):
    kernel = softmax_tasks(store, run_id)
    assert {"place", "free"}.isdisjoint(only(tables.build(store, run_id)).provenance)
    kernel.place, kernel.free = "library.ops:softmax", ("scale", "step")  # as of a captured call
    table = only(tables.build(store, run_id, kernels={"softmax": kernel}))
    assert (table.provenance["place"], table.provenance["free"]) == (kernel.place, "scale,step")


def test_an_unknown_kernel_is_looked_up_exactly(store, run_id):
    add_task(store, run_id, workload(), selection=outcome())
    assert only(tables.build(store, run_id)).rule.rule == "exact"


def test_check_finds_what_has_changed(store, run_id, tmp_path, monkeypatch):
    kernel = softmax_tasks(store, run_id)
    (path,) = tables.export(store, run_id, tmp_path)
    text = path.read_text()
    spaces = {kernel.space_hash(w) for w in list(kernel.workloads())[:2]}
    assert len(spaces) == 1
    from importlib.metadata import version

    fresh = text.replace('"triton": "3.6.0"', f'"triton": "{version("triton")}"')
    fresh = fresh.replace('"abcd"', f'"{spaces.pop()}"')
    path.write_text(fresh)
    assert tables.check([path]) == tables.check([tmp_path]) == []
    findings = {
        "triton": fresh.replace(version("triton"), "2.0.0"),
        "it can reach has changed": fresh.replace(kernel.launch_hash(), "feed"),
        "device code has changed": fresh.replace(kernel.kernel_hashes()[0], "feed"),
        "launch_hash is not text": fresh.replace("launch_hash", "source_hash"),
        "search space": fresh.replace('"space_hash": "', '"space_hash": "00'),
        "not registered": fresh.replace('"name": "softmax"', '"name": "sofmax"'),
        "name the device": fresh.replace(H200.fingerprint, ""),
        "not JSON": fresh[:-20],
    }
    for word, changed in findings.items():
        path.write_text(changed)
        found = tables.check([path])
        assert len(found) == 1
        assert word in found[0]
        assert found[0].startswith(str(path))
    assert "cannot be read" in only(tables.check([tmp_path / "absent.json"]))


def test_check_export_compares_disk_and_results(store, run_id, tmp_path):
    add_task(store, run_id, workload(), selection=outcome())
    assert "is missing" in only(tables.check_export(store, run_id, tmp_path, "csv"))
    (path,) = tables.export(store, run_id, tmp_path, "csv")
    assert tables.check_export(store, run_id, tmp_path, "csv") == []
    path.write_text("edited")
    assert "differs" in only(tables.check_export(store, run_id, tmp_path, "csv"))


@pytest.mark.parametrize("reset", [[], ["y_ptr"]])
def test_entries_of_declared_kernels_have_the_dtypes_of_their_launches(reset):
    dtypes = {"x": "bfloat16", "at": "int64", "y": "float32"}
    specs = {name: TensorSpec((64,), dtype) for name, dtype in dtypes.items()}

    @triton.jit
    def gather(x_ptr, at_ptr, bias_ptr, y_ptr, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(y_ptr + at, tl.load(x_ptr + tl.load(at_ptr + at)), mask=at < n)

    kernel = adopt(
        triton.autotune([triton.Config({"BLOCK": 64})], key=["n"], reset_to_zero=reset)(gather),
        name="gather",
        workloads=[Workload.of(n=64, dtype="bfloat16")],
        inputs=lambda w: {name: specs[name] for name in ("x", "at")},
        outputs=lambda w: {"y": specs["y"]},
        arguments=lambda w, t: {f"{name}_ptr": t[name] for name in specs} | {
            "bias_ptr": None, "n": 64
        },
        grid=lambda meta: (1,),
        reference=lambda w, t: t["x"][t["at"]],
        cost=lambda w: Cost(1.0, 1.0),
        small={"n": 32},
    )  # fmt: skip
    (workload,) = kernel.workloads()
    config = kernel.default_config(workload, H200)
    found = launch_dtypes(kernel, workload, config, H200)
    assert found == {f"{name}_ptr": dtype for name, dtype in dtypes.items()}
    softmax = load("softmax")
    assert launch_dtypes(softmax, softmax.workloads()[0], {}, H200) is None, "it is looked up"
