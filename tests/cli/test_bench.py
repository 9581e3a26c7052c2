"""`tuner bench` through the real command line: on a recording, and on this machine's processor."""

from __future__ import annotations

import csv
import io
import json
import math
import re

import pytest
from bench_samples import RECORDED, confirm, recording, scale_kernel, text

from search_spaces.records import Status


def rows_of(result):
    return json.loads(result.out)


def refused(result, *words: str) -> None:
    assert (result.code, result.out) == (2, ""), result.err
    for word in words:
        assert word in result.error
    assert result.hint


@pytest.fixture
def space(replay):
    return replay()


def test_a_pass_reproduces_the_recorded_times(tuner, space):
    result = tuner("bench", RECORDED, "--config", text(space.best.config), "-f", "json")
    assert result.code == 0, result.err
    best, default, *baselines = rows_of(result)
    assert (best["variant"], default["variant"]) == ("given", "default")
    assert best["config"] == dict(space.best.config)
    assert default["config"] == dict(space.default)
    assert (best["ratio"], best["verdict"]) == (1.0, None)
    expected = space[space.default].median_us / space.best.median_us
    assert default["ratio"] == pytest.approx(expected, rel=0.03)
    assert default["low"] <= default["ratio"] <= default["high"]
    assert default["verdict"] == "slower"
    assert default["speedup"] == pytest.approx(1.0)
    assert best["speedup"] == pytest.approx(default["ratio"])
    assert best["tflop_per_s"] == pytest.approx(space.flops / best["median_us"] / 1e6)
    assert [(row["variant"], row["kind"]) for row in baselines] == [
        (name, "baseline") for name in sorted(space.baselines)
    ]
    assert all(row["status"] == "correct" for row in rows_of(result))
    # What is clearly slower, with a narrow interval, needs fewer passes.
    assert all(3 <= row["pairs"] <= 16 for row in rows_of(result))
    assert "these results are not stored" in result.err


def test_the_protocol_can_be_chosen_and_samples_kept(tuner, folder, space):
    result = tuner(
        "bench", RECORDED, "--config", "default", "--baseline", "none", "--pairs", 24,
        "--cache", "warm", "--method", "events", "--samples", "raw.json", "--quiet", "-f", "json",
    )  # fmt: skip
    assert result.code == 0, result.err
    (row,) = rows_of(result)
    assert (row["pairs"], row["cache"], row["variant"]) == (24, "warm", "default")
    (raw,) = json.loads((folder / "raw.json").read_text())
    (candidate,) = raw["candidates"]
    assert len(candidate["samples_us"]) == 24
    assert raw["protocol"]["method"] == "events"
    assert raw["device"]["name"] == space.device.name
    assert "building" not in result.err


def test_the_database_is_read_and_not_written(tuner, folder, space):
    refused(tuner("bench", RECORDED, "--config", "best"), "the database has no confirmed winner")
    assert not (folder / "results").exists()
    older, newer, other, loose = [entry.config for entry in space.configs[:4]]
    for winner, facts in (
        (older, {}),
        (newer, {"launch_hash": "older"}),
        (other, {"elsewhere": True}),
        (loose, {"median_us": None}),
    ):
        confirm(folder, winner, **facts)
    before = (folder / "results" / "tuner.db").read_bytes()
    result = tuner("bench", RECORDED, "--config", "best", "--baseline", "none", "-f", "json")
    assert rows_of(result)[0]["config"] == dict(newer)
    assert "other source code" in result.err
    named = tuner("bench", RECORDED, "--baseline", "none", "-f", "json")
    assert [row["variant"] for row in rows_of(named)] == ["best", "default"]
    assert (folder / "results" / "tuner.db").read_bytes() == before


def test_the_best_is_what_ships(tuner, folder, space):
    confirm(folder, space.best.config, verdict="slower")
    result = tuner("bench", RECORDED, "--config", "best", "--baseline", "none", "-f", "json")
    assert rows_of(result)[0]["config"] == dict(space.default)
    assert "slower than the default" in result.err


def test_without_a_winner_the_default_is_measured(tuner, space):
    rows = rows_of(tuner("bench", RECORDED, "--baseline", "eager", "-f", "json"))
    assert [row["variant"] for row in rows] == ["default", "eager"]


def test_an_exported_table_and_a_file_with_a_config(tuner, folder, space):
    run = confirm(folder, space.best.config)
    assert tuner("export", run, "-o", "tables").code == 0
    (table,) = (folder / "tables").glob("*.json")
    (folder / "mine.json").write_text(text(space.default))
    result = tuner(
        "bench", RECORDED, "--config", table, "--config", "mine.json", "--config", "best",
        "--baseline", "none", "-f", "json",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert [(row["variant"], row["config"]) for row in rows_of(result)] == [
        (f"{table.stem}, best", dict(space.best.config)),
        ("mine, default", dict(space.default)),
    ]
    content = json.loads(table.read_text())
    content["entries"][0]["key"]["dtype"] = "none such"
    table.write_text(json.dumps(content))
    refused(tuner("bench", RECORDED, "--config", table), "has no entry for", space.workload.key)
    content["kernel"]["name"] = "other"
    table.write_text(json.dumps(content))
    refused(tuner("bench", RECORDED, "--config", table), "is a table of other")
    del content["entries"]
    table.write_text(json.dumps(content))
    refused(tuner("bench", RECORDED, "--config", table), "entries")


@pytest.mark.parametrize("style", ["table", "csv", "md"])
def test_formats(tuner, space, style):
    result = tuner("bench", RECORDED, "--baseline", "none", "--format", style)
    assert result.code == 0
    if style == "csv":
        (row,) = csv.DictReader(io.StringIO(result.out))
        assert json.loads(row["config"]) == dict(space.default)
        assert float(row["median_us"]) > 0
    else:
        assert re.search(r"\b[\d.]+ us ", result.out)
        assert "default" in result.out


def test_a_config_that_is_wrong_is_a_finding(tuner, replay):
    space = replay(failures=0.5)
    bad = {entry.status: entry for entry in space.configs if entry.status is not Status.CORRECT}
    assert len(bad) > 2
    arguments = [word for entry in bad.values() for word in ("--config", text(entry.config))]
    result = tuner("bench", RECORDED, *arguments, "--baseline", "none", "-f", "json")
    assert result.code == 1, result.err
    *failed, default = rows_of(result)
    assert [row["status"] for row in failed] == [f"{status}" for status in bad]
    assert all(row["median_us"] is None and row["note"] for row in failed)
    assert (default["status"], default["ratio"]) == ("correct", 1.0)


def test_each_workload_is_one_pass_on_a_processor(tuner, folder):
    """A config that is wrong, on the check size too, or a baseline that fails is left out."""
    result = tuner(
        "bench", scale_kernel(folder), "--config", '{"way": "ends"}', "--config", "default",
        "--config", '{"way": "wrong"}', "--workload", "n=1000", "--workload", "n=512",
        "--baseline", "all", "-f", "json",
    )  # fmt: skip
    assert result.code == 1
    rows = rows_of(result)
    statuses = [
        ("given", "correctness"),
        ("default", "correct"),
        ("given", "correctness"),
        ("autotuned", "runtime"),
        ("eager", "correct"),
    ]
    assert [(row["workload"], row["variant"], row["status"]) for row in rows] == [
        (workload, *status) for workload in ("n=1000", "n=512") for status in statuses
    ]
    assert "n=37" in rows[0]["note"]
    assert "takes minutes" in rows[3]["note"]
    assert all(row["method"] == "perf_counter" and row["cache"] == "warm" for row in rows)
    right = [row for row in rows if row["status"] == "correct"]
    assert all(0 <= row["error"] <= 1e-5 and math.isfinite(row["gb_per_s"]) for row in right)
    assert "(cold is not available on it)" in result.err


BAD = {
    "kernel": (["bench", "sofmax"], "unknown kernel 'sofmax'; did you mean 'softmax'"),
    "not JSON": (["bench", "K", "--config", "{way"], "--config {way: is not JSON (line 1, column"),
    "name twice": (["bench", "K", "--config", '{"way": 1, "way": 2}'], "repeats a name"),
    "list": (["bench", "K", "--config", '{"way": ["add"]}'], "way is a list, not one value"),
    "NaN": (["bench", "K", "--config", '{"way": NaN}'], "way is NaN"),
    "deep": (["bench", "K", "--config", '{"way":' + "[" * 99999], "is not JSON of a config"),
    "digits": (["bench", "K", "--config", '{"way":' + "9" * 9999 + "}"], "is not JSON of"),
    "no file": (["bench", "K", "--config", "none.json"], "none.json: cannot be read (No such file"),
    "folder": (["bench", "K", "--config", "."], "--config .: cannot be read (Is a directory"),
    "not text": (["bench", "K", "--config", "bytes"], "--config bytes: not UTF-8 text"),
    "YAML": (["bench", "K", "--config", "config.yaml"], "config.yaml: is not JSON"),
    "number": (["verify", "K", "--config", "five.json"], "is a int, not a config or a table"),
    "unknown parameter": (
        ["bench", "K", "--config", '{"wya": "add"}'],
        "is not feasible for scale [n=1000] on cpu:", "unknown parameter wya; did you mean 'way'?",
    ),
    "unknown value": (["bench", "K", "--config", '{"way": "fly"}'], "way is 'fly', not one of"),
    "infinite": (["bench", "K", "--config", '{"way": Infinity}'], "way is inf, not one of"),
    "missing parameter": (["verify", "K", "--config", "{}"], "way is missing"),
    "constraint": (
        ["verify", "K", "--config", '{"way": "wide"}'],
        "is not feasible for scale [n=1000] on cpu:", "width: under 4096 elements there is nothing",
    ),
    "baseline": (["bench", "K", "--baseline", "vendor"], "scale has no baseline 'vendor'"),
    "target": (["bench", "K", "--target", "cup"], "unknown target 'cup'; did you mean 'cpu'?"),
    "kind": (["bench", "K", "--device", "cuda"], "kernel 'scale' runs on cpu, not on cuda"),
    "code": (["bench", "K", "--target", "cpu:z80"], "there is no cpu:z80 device here"),
    "capability": (["verify", "softmax", "--target", "cuda:9x"], "unknown target 'cuda:9x'"),
    "dims": (["bench", "K", "--workload", "n"], "--workload 'n' is not a list of distinct dims"),
    "no dims": (["bench", "K", "--workload", ""], "--workload '' is not a list of distinct dims"),
    "dims missing": (
        ["verify", "softmax", "--workload", "rows=3"],
        "--workload 'rows=3': softmax lists none with these dims", "also needs cols, dtype",
    ),
    "refused dims": (
        ["verify", "cpu_pointwise", "--workload", "rows=-3 cols=8 dtype=float32"],
        "cpu_pointwise cannot take workload",
    ),
    "samples": (["bench", "K", "--samples", "none/raw.json"], "none/raw.json cannot be written"),
    "pairs": (["bench", "K", "--pairs", "2"], "'--pairs'"),
    "method": (["bench", "K", "--method", "sundial"], "'sundial' is not one of"),
    "both": (["verify", "K", "--all", "--sample", "3"], "exclude each other"),
    "settings": (["bench", "K", "--settings", "none.yaml"], "none.yaml: no such file"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD, ids=lambda name: name.replace(" ", "-"))
def test_bad_input_is_one_line_and_starts_nothing(tuner, folder, case):
    arguments, *words = BAD[case]
    spec = scale_kernel(folder)
    (folder / "bytes").write_bytes(b"\xff\xfe")
    (folder / "five.json").write_text("5")
    result = tuner(*(spec if word == "K" else word for word in arguments))
    refused(result, *words)
    assert "starting" not in result.err


def test_an_absent_device_cannot_be_benched_and_the_hint_names_verify(tuner, folder):
    result = tuner("bench", "softmax", "--target", "cuda:75")
    refused(result, "there is no cuda:75 device here to time it on")
    assert "tuner verify" in result.hint


def test_a_config_that_crashes_the_device_process_is_a_finding(tuner, folder):
    recording(folder)
    devices = "{simulated: {options: {crash: 1.0}}}"
    (folder / "config.yaml").write_text(f"version: 1\npool: {{devices: {devices}}}\n")
    result = tuner("bench", RECORDED)
    assert result.code == 1
    assert "crashed the device process" in result.out + result.err


def test_calibrations_of_workers_are_shown(tuner, folder):
    from results_db import Store
    from search_spaces.records import Toolchain
    from workers.device import detect
    from workers.job_records import Calibration

    found = Calibration(0.032, {"events": 2.5}, 40.0, 4.24e6, {"bfloat16": 7.6e8})
    device = detect("cpu")
    (row,) = [r for r in rows_of(tuner("workers", "list", "-f", "json")) if r["kind"] == "cpu"]
    assert row["copy_tb_s"] is None
    with Store.open(f"sqlite:///{folder / 'results' / 'tuner.db'}") as store:
        store.record_calibration(device, Toolchain(), "here", Calibration())
        store.record_calibration(device, Toolchain(), "here", found)
    (row,) = [r for r in rows_of(tuner("workers", "list", "-f", "json")) if r["kind"] == "cpu"]
    assert (row["clock_step_us"], row["overhead_us"]) == (0.032, {"events": 2.5})
    assert (row["copy_tb_s"], row["peak_tflop_s"]) == (4.24, {"bfloat16": 760.0})
    checks = {row["check"]: row["found"] for row in rows_of(tuner("doctor", "-f", "json"))}
    assert checks["cpu calibration"] == (
        "clock step 0.032 us, events add 2.5 us, copies at 4.24 TB/s, bfloat16 760 TFLOP/s"
    )


UNROLLED = """
        def unrolled(x):
            for step in range(10_000_000):
                x = x * 1.0 + step * 0.0
            return x * 2
        compiled = torch.compile(unrolled, fullgraph=True)
        return {"eager": lambda inputs: {"out": inputs["x"] * 2},
                "compile": lambda inputs: {"out": compiled(inputs["x"])}}
    def cpu_callable"""


@pytest.mark.full
@pytest.mark.slow
def test_only_the_baseline_that_unrolls_for_minutes_fails(tuner, folder):
    spec = scale_kernel(folder)
    kernel = (folder / "scale.py").read_text()
    head, rest = kernel.split("        def autotuned", 1)
    body = rest.split("    def cpu_callable", 1)[1]
    (folder / "scale.py").write_text(f"{head.rstrip()}{UNROLLED}{body}")
    settings = (folder / "config.yaml").read_text()
    limited = settings.replace("builders: 1", "builders: 1, baseline_timeout: 8s")
    (folder / "config.yaml").write_text(limited)
    result = tuner("bench", spec, "--config", "default", "--baseline", "all", "-f", "json")
    assert result.code == 0, result.err
    rows = {row["variant"]: row for row in rows_of(result)}
    assert rows["compile"]["status"] == "timeout"
    assert rows["compile"]["note"] == "timeout: baseline `compile` took longer than 8 s"
    assert rows["default"]["pairs"] > 0
    assert rows["eager"]["pairs"] > 0
