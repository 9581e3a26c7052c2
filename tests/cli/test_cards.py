"""Cards in quarantine: found after a run, shown, kept from work, and admitted again."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from bench_samples import RECORDED
from cli_samples import BEST, DEFAULT, DEVICE, _key

from results_db import Store
from results_db.stored_records import BaselineRecord, SelectionRecord
from search_spaces.records import Status, Workload
from tuner.base.log_ratio import LogRatio
from tuner.campaign.quarantine import describe_quarantine, quarantine_outliers

CARD, OTHER = "GPU-1", "GPU-2"


def fill_nights(url, nights, drifting_from, cards=()):
    """Runs of four tasks of each of two cards, of which the first one drifts.

    cards: one for each run, which confirms all tasks.
    """
    lines = []
    with Store.open(url) as store:
        for night in range(1, nights + 1):
            run = store.begin_run("nightly", "spec", 7, {}, {"tasks": []})
            for number in range(8):
                of = (CARD, OTHER)[number % 2]
                card = cards[night - 1] if cards else of
                slower = 1.03 if card == CARD and night >= drifting_from else 1.0
                us = 50.0 * (1 + number // 2) * slower
                key = replace(_key("softmax"), workload=Workload.of(rows=number // 2 + 1, of=of))
                task = store.ensure_task(run.run_id, key, flops=1.0, bytes=1.0, tolerance=0.01)
                selection = SelectionRecord(
                    winner=BEST, tie_set=(BEST,), verdict="faster", default=DEFAULT,
                    median_us=us / 2, default_us=us, log_ratio=LogRatio(0.7, 0.69, 0.71),
                    confirmed_at=datetime.now(UTC), clocks={"card": card, "copy_tb_s": 4.3},
                )  # fmt: skip
                eager = BaselineRecord("eager", Status.CORRECT, median_us=us)
                store.record_selection(task.task_id, selection, [eager])
                store.set_stage(task.task_id, "done")
            store.finish_run(run.run_id, "finished", {})
            lines += quarantine_outliers(store, run.run_id)
    return lines


def test_a_drifting_card_goes_with_its_results(tuner, folder, url):
    (line,) = fill_nights(url, 6, drifting_from=5)
    assert line == (
        "tuner: NVIDIA H200 GPU-1 is in quarantine: 3.0% slower than in its earlier runs "
        "(times of two runs)"
    )
    rows = json.loads(tuner("workers", "show", CARD, "--format", "json").out)
    assert [row["times"] for row in rows[:3]] == [None] * 3
    assert rows[-1]["times"].startswith("+3.00% ± 0.")
    assert rows[-1]["state"].startswith("in quarantine: 3.0% slower")
    with Store.open(url) as store:
        for run_id in range(1, 7):
            notes = [task.note for task in store.tasks(run_id)]
            marked = [f"confirmed on {CARD}, which is in quarantine", ""] * 4
            assert notes == (marked if run_id >= 5 else [""] * 8)
    result = tuner("export", "6", "-o", "out")
    assert result.code == 0, result.err
    (path,) = (folder / "out").rglob("*.json")
    entries = json.loads(path.read_text())["entries"]
    assert {entry["key"]["of"] for entry in entries} == {OTHER}
    assert {entry["provenance"]["cards"] for entry in entries} == {1}


def test_a_healthy_farm_keeps_all(url):
    assert fill_nights(url, 6, drifting_from=99) == []


def test_a_table_says_how_many_cards_confirmed_an_entry(tuner, folder, url):
    fill_nights(url, 3, drifting_from=99, cards=("GPU-1", "GPU-2", "GPU-3"))
    assert tuner("export", "3", "-o", "out").code == 0
    (path,) = (folder / "out").rglob("*.json")
    assert {e["provenance"]["cards"] for e in json.loads(path.read_text())["entries"]} == {3}


def test_what_a_card_in_quarantine_confirms_counts_nowhere(tuner, folder, url):
    """Drivers that began before go on, and what they confirm counts after an admission alone."""

    def export(run_id):
        found = tuner("export", run_id, "-o", f"out{run_id}")
        entries = [
            entry["provenance"]["cards"]
            for path in (folder / f"out{run_id}").rglob("*.json")
            for entry in json.loads(path.read_text())["entries"]
        ]
        return entries, found.err

    fill_nights(url, 2, drifting_from=99, cards=("GPU-1", "GPU-2"))
    with Store.open(url) as store:
        store.quarantine("GPU-4", DEVICE.name, "smells of smoke", datetime.now(UTC))
    fill_nights(url, 2, drifting_from=99, cards=("GPU-4", "GPU-3"))
    entries, warned = export(3)
    assert not entries
    assert "confirmed on GPU-4, in quarantine then" in warned
    assert export(4)[0] == [3] * 8
    assert tuner("workers", "admit", "GPU-4").code == 0
    fill_nights(url, 1, drifting_from=99, cards=("GPU-4",))
    assert export(5)[0] == [4] * 8
    assert not export(3)[0]


def test_cards_are_listed_where_the_database_cannot_be_read(tuner, folder, url):
    (folder / "results").mkdir(exist_ok=True)
    (folder / "results" / "tuner.db").write_bytes(b"no database" * 100)
    result = tuner("workers", "list")
    assert (result.code, "calibrations are left out" in result.err) == (0, True)


#: The card of a simulated runner.
SIMULATED = "SIM-0"


def test_a_card_is_kept_from_work_by_hand_and_admitted(tuner, replay, url):
    replay()
    assert tuner("run", RECORDED, "--trials", 10).code == 0
    with Store.open(url) as store:
        (task,) = store.tasks(1)
        assert task.selection.clocks["card"] == SIMULATED
        store.quarantine(SIMULATED, task.key.device.name, "smells of smoke", datetime.now(UTC))
        (away,) = store.quarantines()
    assert "smells of smoke" in describe_quarantine(away)
    refused = tuner("run", RECORDED, "--trials", 12)
    assert refused.code == 2
    assert refused.error.startswith("every device here is in quarantine; ")
    assert refused.error.endswith(f" {SIMULATED}: smells of smoke")
    assert refused.hint == f"once it is sound, `tuner workers admit {SIMULATED}`"
    for command in ("bench", "verify"):
        passed = tuner(command, RECORDED)
        assert (passed.code, passed.error, passed.hint) == (2, refused.error, refused.hint)
    assert tuner("workers", "admit", SIMULATED).code == 0
    assert tuner("run", RECORDED, "--trials", 12).code == 0


def test_a_pass_runs_on_the_card_that_is_in_no_quarantine(tuner, folder, replay, url):
    replay()
    settings = "pool: {kind: virtual, devices: {simulated: {runners: 2}}}"
    text = (folder / "config.yaml").read_text().replace("pool: {kind: virtual}", settings)
    (folder / "config.yaml").write_text(text)
    for away, code in ((SIMULATED, 0), ("SIM-1", 2)):
        with Store.open(url) as store:
            store.quarantine(away, "Simulated Device", "smells of smoke", datetime.now(UTC))
        assert tuner("bench", RECORDED).code == code


def test_a_history_tells_what_a_card_in_quarantine_confirmed_and_leaves_it_out(tuner, url):
    fill_nights(url, 2, drifting_from=99, cards=("GPU-1", "GPU-4"))
    with Store.open(url) as store:
        store.quarantine("GPU-4", DEVICE.name, "smells of smoke", datetime.now(UTC))
    fill_nights(url, 1, drifting_from=99, cards=("GPU-4",))
    rows = json.loads(tuner("history", "softmax", "-f", "json").out)
    assert {(row["run"], row["median_us"] is None) for row in rows} == {
        (1, False), (2, False), (3, True),
    }  # fmt: skip
    assert {row["note"] for row in rows if row["run"] == 3} == {"confirmed on a card in quarantine"}


def test_what_a_suspect_card_has_measured_is_measured_again(tuner, replay, url):
    replay()
    sources = []
    for number in range(3):
        assert tuner("run", RECORDED, "--trials", 10 + number).code == 0
        with Store.open(url) as store:
            (task,) = store.tasks(number + 1)
            sources.append({trial.source for trial in store.trials(task.task_id)[:9]})
            if not number:
                since = datetime.now(UTC) - timedelta(hours=1)
                store.quarantine(SIMULATED, "a card", "smells of smoke", since)
                store.admit_card(SIMULATED)
    assert sources == [{"measured"}, {"measured"}, {"reused"}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("quarantine", "GPU-9", "--reason", "why"), "no card 'GPU-9' is here or in the database"),
        (("quarantine", "", "--reason", "why"), "no card '' is here or in the database"),
        (("admit", "GPU-9"), "GPU-9 is in no quarantine"),
        (("quarantine", CARD, "--reason", "why"), "GPU-1 is in quarantine"),
    ],
)
def test_mistakes_are_named(tuner, url, arguments, message):
    fill_nights(url, 2, drifting_from=99)
    with Store.open(url) as store:
        store.quarantine(CARD, DEVICE.name, "smells of smoke", datetime.now(UTC))
    result = tuner("workers", *arguments)
    assert (result.code, result.error) == (2, message)


def test_a_card_of_the_database_goes_by_hand(tuner, url):
    fill_nights(url, 2, drifting_from=99)
    result = tuner("workers", "quarantine", OTHER, "--reason", "smells of smoke")
    assert result.code == 0, result.err
    again = [row["state"] for row in json.loads(tuner("workers", "show", "--format", "json").out)]
    assert again == ["sound", "in quarantine: smells of smoke"] * 2
