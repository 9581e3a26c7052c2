"""Listings: four formats of the same data on stdout, notes on stderr, no control characters."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest
from cli_samples import HOSTILE, campaign_file, fill, kernel_file
from hypothesis import given
from hypothesis import strategies as st

from results_db import Store, StoreError
from results_db.spreadsheet import inert_cell
from search_spaces import registry
from tuner.base.inert_text import inert


def test_status_lists_the_tasks_of_the_latest_run(tuner, url):
    fill(url, kernel="old")
    fill(url)
    rows = json.loads(tuner("status", "--format", "json").out)
    assert [(row["kernel"], row["stage"], row["trials"], row["best_us"]) for row in rows] == [
        ("softmax", "done", 1, 70.0)
    ]
    assert json.loads(tuner("status", 1, "-f", "json").out)[0]["kernel"] == "old"
    runs = json.loads(tuner("status", "--all", "--format", "json").out)
    assert {row["run"] for row in runs} == {1, 2}
    assert tuner("status", "--watch").code == 0


@pytest.mark.parametrize("style", ["table", "json", "csv", "md"])
def test_hostile_names_are_inert_in_every_format(tuner, url, style):
    fill(url, kernel=HOSTILE)
    for command in ("best", "status"):
        result = tuner(command, "--format", style)
        assert result.code == 0
        assert not set(result.out + result.err) & set("\x1b\u202e\r")
    if style == "json":
        assert json.loads(result.out)[0]["kernel"] == HOSTILE
    elif style == "csv":
        (row,) = csv.DictReader(io.StringIO(result.out))
        assert row["kernel"] == inert(HOSTILE)
    elif style == "md":
        assert r"\[red\]\\u202ename\|\*" in result.out
    else:
        assert "[red]" in result.out


FORMULA = "=HYPERLINK(1)"


def test_no_text_of_a_csv_listing_is_a_formula(tuner, url):
    fill(url, kernel=FORMULA)
    (row,) = csv.DictReader(io.StringIO(tuner("status", "--format", "csv").out))
    assert row["kernel"] == f"'{FORMULA}"
    assert float(row["best_us"]) == 70.0
    assert json.loads(tuner("status", "--format", "json").out)[0]["kernel"] == FORMULA


@pytest.mark.parametrize(
    "text", ["=1+1", "+1-1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "--1"]
)
def test_a_formula_is_made_text(text):
    assert inert_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", ["softmax", "", "M=32", "-1.5", "+2e3", -1.5, 0, None, True])
def test_texts_and_numbers_stay_as_they_are(value):
    assert inert_cell(value) is value


@given(st.text())
def test_inert_text_is_one_printable_line(text):
    shown = inert(text)
    assert len(shown.splitlines()) <= 1
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in shown)
    assert inert(shown) == shown


def test_spaces(tuner, folder, monkeypatch):
    names = {row["kernel"] for row in json.loads(tuner("spaces", "list", "-f", "json").out)}
    assert set(registry.BUILT_IN) <= names
    # Those of all kernels are counted by their own tests.
    some = {name: registry.BUILT_IN[name] for name in ("softmax", "matmul", "cpu_pointwise")}
    monkeypatch.setattr(registry, "available", lambda: some)
    counted = tuner("spaces", "list", "--sizes", "--target", "cuda:90", "-f", "json").out
    sizes = {row["kernel"]: row for row in json.loads(counted)}
    assert sizes.keys() == some.keys()
    for row in sizes.values():
        assert row["workloads"] >= 6
        assert row["configs"] * row["share"] == pytest.approx(row["feasible"])
        assert 0.02 <= row["share"] <= 1
    spec = kernel_file(folder, body="return config['a'] == 1")
    (row,) = json.loads(tuner("spaces", "show", spec, "-f", "json").out)
    assert (row["workload"], row["configs"], row["feasible"]) == ("n=4", 2, 1)
    (row,) = json.loads(tuner("spaces", "show", spec, "--workload", "n=4", "-f", "json").out)
    assert (row["parameter"], row["values"]) == ("a", "1, 2")
    assert tuner("spaces", "show", spec, "--validate").code == 0
    assert tuner("spaces", "show", spec, "--workload", "n=5").code == 2


def test_a_space_with_a_fault_is_a_finding(tuner, folder):
    spec = kernel_file(folder, "faulty.py", body="return config['a'] == 2")
    result = tuner("spaces", "show", spec, "--validate")
    assert result.code == 1
    assert "small n=4: the default config is not feasible" in result.out


def test_workers(tuner):
    rows = json.loads(tuner("workers", "list", "--format", "json").out)
    assert "cpu" in {row["kind"] for row in rows}


def test_schedules(tuner, folder):
    (folder / "config.yaml").write_text(
        "version: 1\ncampaigns:\n"
        "  a: {tasks: [{kernel: softmax}], schedule: {cron: '0 2 * * *'}}\n"
        "  b: {tasks: [{kernel: softmax}], schedule: {cron: '* * * * *', enabled: false}}\n"
    )
    rows = json.loads(tuner("schedule", "list", "--format", "json").out)
    assert [(row["schedule"], row["enabled"], row["next"] is None) for row in rows] == [
        ("a", True, False),
        ("b", False, True),
    ]
    rows = json.loads(tuner("schedule", "next", "-n", "3", "--format", "json").out)
    assert [row["schedule"] for row in rows] == ["a"] * 3
    assert rows == sorted(rows, key=lambda row: row["instant"])


def test_nothing_due_is_fine_and_says_so(tuner):
    result = tuner("schedule", "tick")
    assert (result.code, result.out) == (0, "")
    assert "nothing is due" in result.err


def test_the_database(tuner, url):
    assert tuner("db", "upgrade").code == 0
    fill(url)
    assert tuner("db", "check").code == 0
    rows = {row["what"]: row["value"] for row in json.loads(tuner("db", "stats", "-f", "json").out)}
    assert rows["rows of run"] == 1
    assert rows["trials correct"] == 1


def test_a_plan_needs_no_database_and_writes_nothing(tuner, folder):
    campaign_file(folder, kernel_file(folder), "budget: {trials: 1}")
    before = set(folder.iterdir())
    (row,) = json.loads(tuner("run", "c", "--dry-run", "-f", "json").out)
    assert (row["kernel"], row["mode"], row["configs"], row["budget"]) == ("small", "measure", 2, 1)
    assert {path for path in folder.iterdir() if path.name != "__pycache__"} == before


@pytest.mark.parametrize(
    ("budget", "counted"), [("budget: {trials: 1}", False), ("budget: {trials: null}", True)]
)
def test_a_long_plan_counts_spaces_only_where_trials_have_no_limit(tuner, folder, budget, counted):
    kernel = kernel_file(folder)
    workloads = ", ".join(f"{{n: {size}}}" for size in range(1, 202))
    (folder / "config.yaml").write_text(
        f"version: 1\ncampaigns:\n  c:\n    {budget}\n    strategy: {{name: exhaustive}}\n"
        f"    tasks: [{{kernel: '{kernel}', targets: [cpu], workloads: [{workloads}]}}]\n"
    )
    rows = json.loads(tuner("run", "c", "--dry-run", "-f", "json").out)
    assert len(rows) == 201
    assert {row["configs"] for row in rows} == ({2} if counted else {None})
    assert {row["budget"] for row in rows} == ({2} if counted else {1})


def test_a_report_is_written_to_the_given_file(tuner, folder, url):
    fill(url)
    result = tuner("report", "-o", "out/r.html")
    assert (result.code, result.out) == (0, "out/r.html\n")
    assert (folder / "out" / "r.html").read_text().lstrip().lower().startswith("<!doctype html")
    result = tuner("report", "--all")
    assert result.code == 0
    assert result.out == f"{folder / 'results' / 'reports' / 'index.html'}\n"
    assert len(list((folder / "results" / "reports").glob("*-1.html"))) == 1
    assert tuner("report", 1, "--all").code == 2


def test_doctor_says_what_to_do(tuner, folder, monkeypatch):
    monkeypatch.setenv("TUNER_CACHE_DIR", f"{folder / 'cache'}")
    rows = json.loads(tuner("doctor", "--format", "json").out)
    by_name = {row["check"]: row for row in rows}
    assert by_name["torch"]["state"] == "ok"
    assert by_name["config"]["state"] == "warn"
    assert all(row["remedy"] for row in rows if row["state"] != "ok")
    assert by_name["cache"]["found"] == f"{folder / 'cache'}: 0 calibrations"
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("TUNER__POOL__ADDRESS", "127.0.0.1:1")
    result = tuner("doctor", "--format", "json")
    rows = {row["check"]: row for row in json.loads(result.out)}
    assert result.code == 1
    assert rows["C++ compiler"]["state"] == "fail"
    assert rows["pool"]["state"] == "fail"


@contextmanager
def mounted_read_only(place):
    """A read-only view of a folder, or of a file in a writable folder."""
    done = subprocess.run(
        ["mount", "--bind", "-o", "ro", place, place], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("this process may not mount")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
        yield
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("part", ["folder", "file"])
def test_results_in_a_read_only_place_are_shown_and_exported(tuner, url, folder, part):
    fill(url)
    place = folder / "results" / ("" if part == "folder" else "tuner.db")
    with mounted_read_only(place):
        assert json.loads(tuner("status", "-f", "json").out)[0]["best_us"] == 70.0
        assert json.loads(tuner("best", "-f", "json").out)[0]["kernel"] == "softmax"
        assert tuner("report", "-o", folder / "page.html").code == 0
        exported = tuner("export", "-f", "csv", "-o", folder / "out")
        assert exported.code == 0
        assert "is not recorded" in exported.err
        assert tuner("db", "check").code == 0
        with Store.open(url) as store, pytest.raises(StoreError) as caught:
            store.begin_run("c", "ff", 0, {}, {})
        assert "writable" in caught.value.hint


def test_a_read_only_place_shows_what_a_living_writer_has_committed(url, folder):
    fill(url)
    with Store.open(url) as writer:
        writer.begin_run("later", "ff", 0, {}, {})
        with mounted_read_only(folder / "results"):
            command = [sys.executable, "-m", "tuner", "status", "--all", "-f", "json"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert {row["campaign"] for row in json.loads(done.stdout)} == {"nightly", "later"}
        # A snapshot that lacks the index of the log.
        shutil.copytree(folder / "results", folder / "copy")
    (folder / "copy" / "tuner.db-shm").unlink()
    with mounted_read_only(folder / "copy"), pytest.raises(StoreError, match="write-ahead log"):
        Store.open(f"sqlite:///{folder / 'copy' / 'tuner.db'}")
