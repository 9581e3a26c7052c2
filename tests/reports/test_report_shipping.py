"""Report, status, table and `TuneResult` name the same config, the one that ships, and its time."""

from __future__ import annotations

import json
import math
from dataclasses import astuple
from pathlib import Path

import pytest
from page_reader import read

import reports
from results_db import Store, TrialRecord
from results_db.shipped import select_shipped
from results_db.stored_records import BaselineRecord, FinalRecord, SelectionRecord, TaskKey
from search_spaces.records import Device, Status, Toolchain, Workload
from tuner import tables
from tuner.api.databases import CallDatabase
from tuner.api.stored_results import stored_results
from tuner.base.log_ratio import EQUAL, LogRatio
from tuner.cli import invoke

CPU = Device("cpu", "AMD EPYC 9654", "cpu:x86-64-avx512", 2)
DEFAULT = {"simdlen": 512}
WINNER = {"simdlen": 256}
DEFAULT_US, WINNER_US, EAGER_US = 92.0, 100.0, 184.0


def selection(verdict: str, ratio: float, half: float = 0.01) -> SelectionRecord:
    """An outcome whose winner takes 1/ratio of the default's time."""
    ln = math.log(ratio)
    return SelectionRecord(
        winner=WINNER,
        tie_set=(WINNER,),
        verdict=verdict,
        default=DEFAULT,
        median_us=DEFAULT_US / ratio,
        default_us=DEFAULT_US,
        log_ratio=LogRatio(ln, ln - half, ln + half),
        samples_us=(DEFAULT_US / ratio,) * 20,
    )


def final(config, stage: str, ln: float, median_us: float) -> FinalRecord:
    return FinalRecord(
        stage, config, Status.CORRECT, median_us, LogRatio(ln, ln, ln), (median_us,) * 20
    )


@pytest.fixture
def url(tmp_path, monkeypatch) -> str:
    """A finished run of one task; its default was faster than the winner of its race."""
    found = f"sqlite:///{tmp_path / 'tuner.db'}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNER__DATABASE__URL", found)
    chosen = selection("slower", DEFAULT_US / WINNER_US)
    ln = math.log(EAGER_US / WINNER_US)
    eager = BaselineRecord("eager", Status.CORRECT, EAGER_US, LogRatio(ln, ln - 0.01, ln + 0.01))
    finals = [
        final(WINNER, "race", 0.0, 90.0),
        final(DEFAULT, "race", 0.05, 95.0),
        final(WINNER, "confirm", 0.0, WINNER_US),
        final(DEFAULT, "confirm", -0.083, DEFAULT_US),
    ]
    with Store.open(found) as store:
        run = store.begin_run("nightly", "spec", 7, {}, {})
        tools = Toolchain(python="3.12", torch="2.11")
        workload = Workload.of(n=4096, dtype="float32")
        key = TaskKey("pointwise", "0123456789abcdef", "fe", workload, CPU, tools)
        task = store.ensure_task(run.run_id, key, flops=1e6, bytes=1e6, tolerance=0.01)
        for number, (config, time) in enumerate(((DEFAULT, 95.0), (WINNER, 90.0))):
            trial = TrialRecord(f"a{number}", number, config, Status.CORRECT, median_us=time)
            store.record_trial(task.task_id, trial)
        store.record_selection(task.task_id, chosen, [eager], finals)
        store.set_stage(task.task_id, "done")
        store.finish_run(run.run_id, "finished", {})
    return found


def test_page_and_table_show_that_the_default_ships(url, capsys):
    with Store.open(url) as store:
        page = read(reports.render(store))
        (path,) = tables.export(store, 1, Path("out"))
    entry = json.loads(path.read_text())["entries"][0]
    assert (entry["config"], entry["median_us"]) == (DEFAULT, DEFAULT_US)

    (row,) = page.one("table", id="leaderboard-table").one("tbody").all("tr")
    assert "default kept" in row.text
    assert '{"simdlen":512}' in row.text
    assert "simdlen 512 → 256" not in row.text
    assert "slower than the default" in row.text
    assert "1.00x" in row.text
    assert "0.92x" not in row.text
    assert "▲ faster 2.00x" in row.text, "184 us of the baseline over 92 us"

    summary = page.one("section", id="summary").text
    assert "the default config stays, 2.00x eager (92.00 µs" in summary
    assert "1.00x" in summary
    assert "significantly the fastest" not in page.text
    assert "instead of the fastest of" in page.text

    assert invoke(["status", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["ships"], row["best_us"], row["verdict"]) == ("default", DEFAULT_US, "slower")
    assert "slower than the default" in row["note"]

    (result,) = stored_results(CallDatabase(url), 1, [Workload.of(n=4096, dtype="float32")])
    assert (result.winner, result.ships) == (WINNER, DEFAULT)
    assert (result.median_us, result.speedup) == (DEFAULT_US, 1.0)
    assert result.kept_because


@pytest.mark.parametrize(
    ("verdict", "ratio", "half", "kept"),
    [
        ("faster", 1.2, 0.01, False),
        ("same", 1.0, 0.005, False),
        ("slower", 0.95, 0.01, True),
        ("undecided", 1.0, 0.009, False),
        ("undecided", 1.05, 0.2, True),
    ],
)
def test_a_winner_that_may_be_worse_does_not_ship(verdict, ratio, half, kept):
    chosen = selection(verdict, ratio, half)
    found = select_shipped(chosen)
    assert found.default_kept is kept
    assert found.config == (DEFAULT if kept else WINNER)
    assert found.median_us == (DEFAULT_US if kept else chosen.median_us)
    assert found.log_ratio == (EQUAL if kept else chosen.log_ratio)


def test_the_interval_over_a_baseline_holds_both():
    chosen = selection("slower", 0.95, 0.01)
    baseline = BaselineRecord("eager", Status.CORRECT, 200.0, LogRatio(0.5, 0.48, 0.52))
    value, low, high = astuple(select_shipped(chosen).over(baseline))
    assert value == pytest.approx(0.5 - math.log(0.95))
    assert (value - low, high - value) == pytest.approx((0.03, 0.03))
