"""`tuner note`: everything that happened since a time, and nothing before it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from cli_samples import HOSTILE, fill

from results_db import Store
from results_db.promotion_records import PromotionOutcome, PromotionRecord, RegressionState
from search_spaces.records import Workload
from tuner.base.log_ratio import LogRatio
from tuner.views.news import list_events

EVER, NEVER = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
SIZES = "rows=8192 cols=8192 dtype=bfloat16"


def add_everything(url: str) -> None:
    """Three finished runs, of which the last is faster, one that failed, and all else there is."""
    for gain in (0.5, 0.5, 0.7):
        fill(url, kernel="scale", gain=gain)
    with Store.open(url) as store:
        key = store.task(1).key
        run = store.begin_run("nightly", "spec", 7, {}, {}).run_id
        notes = ("given up: no memory", "left out: no time", "left out: no time")
        for rows, note in enumerate(notes, start=1):
            other = replace(key, workload=Workload.of(rows=rows))
            task = store.ensure_task(run, other, flops=0.0, bytes=0.0, tolerance=None)
            store.set_stage(task.task_id, "done", note)
        facts = {"summary": "out of disk", "device_s": 5400.0, "elapsed_s": 9000.0}
        store.finish_run(run, "failed", facts)
        for number, state in enumerate(("confirmed", "refuted", None), start=1):
            store.raise_regression(number, 1, 3, LogRatio(0.03, 0.02, 0.04))
            if state:
                store.decide_regression(
                    number, RegressionState(state), "", LogRatio(0.05, 0.04, 0.06)
                )
        outcomes = PromotionOutcome.PROMOTED, PromotionOutcome.SAME
        store.record_promotions(
            [
                PromotionRecord(3, f"{n}.json", "scale", SIZES, outcome, "", {})
                for n, outcome in enumerate(outcomes)
            ]
        )
        for card in ("GPU-1", "GPU-2"):
            store.quarantine(card, "NVIDIA H200", f"drifts {HOSTILE}", EVER)
        store.admit_card("GPU-2")
        store.claim_fire("nightly", EVER, "a")
        store.finish_fire("nightly", EVER, "failed", run, "no such kernel")
        store.record_missed("weekly", [EVER], "a")


def list_lines(store, since) -> list[str]:
    return [" ".join(f"{part}" for part in each.values()) for each in list_events(store, since)]


def test_a_note_has_all_that_happened_and_nothing_that_did_before(url):
    add_everything(url)
    with Store.open(url) as store:
        lines = list_lines(store, EVER)
        later = list_lines(store, NEVER)
    faster = next(line for line in lines if line.startswith("faster"))
    assert faster.startswith("faster -18.1% [")  # exp(0.5 - 0.7) - 1
    assert faster.endswith(f"3 scale {SIZES} NVIDIA H200")
    expected = [
        "runs 4",
        "trials 3",
        "device hours 1.5",
        "run hours 2.5",
        faster,
        f"slower +3.0% [+2.0%, +4.1%] candidate 3 scale {SIZES} NVIDIA H200",
        f"slower +5.1% [+4.1%, +6.2%] confirmed 1 scale {SIZES} NVIDIA H200",
        f"promoted to 0.json 3 scale {SIZES}",
        f"quarantine NVIDIA H200 GPU-1: drifts {HOSTILE}",
        "failed 4 nightly of 2000-01-01 00:00Z no such kernel",
        "missed None weekly of 2000-01-01 00:00Z",
        "failed 4 out of disk",
        "left out 4 2 sizes of ranges",
        "no winner given up: no memory 4 scale rows=1 NVIDIA H200",
    ]
    assert sorted(lines) == sorted(expected)
    # A card in quarantine is news until it is admitted.
    assert later == ["runs 0", "trials 0", "device hours 0.0", "run hours 0.0", expected[8]]


def test_it_is_printed_for_people_and_for_programs(tuner, url):
    add_everything(url)
    result = tuner("note", "--since", "99d")
    assert (result.code, result.err) == (0, "")
    assert "no such kernel" in result.out
    assert "\x1b[31m" not in result.out
    rows = json.loads(tuner("note", "--format", "json").out)
    assert rows[0] == {
        "what": "runs", "run": None, "kernel": None, "workload": None, "device": None, "text": 4,
    }  # fmt: skip
    assert len(rows) == 14


@pytest.mark.parametrize("since", ["-1h", "soon", "", "nan"])
def test_a_time_that_is_none_is_one_line(tuner, url, since):
    fill(url)
    result = tuner("note", f"--since={since}")
    assert result.code == 2
    assert result.error.startswith("--since: ")


def test_without_a_webhook_nothing_is_sent(tuner, url):
    fill(url)
    assert tuner("note", "--send").error == "notify.webhook was not told: it is not set"
    with Store.open(url) as store:
        assert store.fires() == []


def test_the_scheduler_sends_it_once_a_morning(tuner, url, folder, webhook):
    add_everything(url)
    address = f"http://127.0.0.1:{webhook.server_port}/hook"
    notify = f"{{webhook: '{address}', morning: '* * * * *', timezone: Asia/Tokyo}}"
    (folder / "config.yaml").write_text(f"version: 1\nnotify: {notify}\n")
    rows = json.loads(tuner("schedule", "tick", "--format", "json").out)
    assert [(row["schedule"], row["state"]) for row in rows] == [("tuner note", "finished")]
    (text,) = webhook.texts
    assert text.startswith("tuner since ")
    assert "failed 4 nightly of 2000-01-01" not in text.partition("\n")[0]
    assert "GPU-1: drifts" in text
    (folder / "config.yaml").write_text("version: 1\nnotify: {morning: '* * * * * *'}\n")
    assert "notify.morning: " in tuner("note").error
