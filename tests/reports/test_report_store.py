"""The report of a run read from a real results database."""

from __future__ import annotations

from dataclasses import replace

from page_reader import read
from report_samples import MemorySource, sample

import reports
from reports.source import load
from reports.task_data import TaskData
from results_db import Store


def fill(store: Store, made: MemorySource) -> None:
    for run in made.run_list:
        stored = store.begin_run(run.campaign, run.spec_hash, run.seed, run.environment, {})
        for info in made.tasks(run.run_id):
            task = store.ensure_task(
                stored.run_id, info.key, flops=info.flops, bytes=info.bytes, tolerance=0.002
            )
            for trial in made.trials(info.task_id):
                store.record_trial(task.task_id, trial)
            if info.selection is not None:
                store.record_selection(task.task_id, info.selection, info.baselines, info.finals)
            store.set_stage(task.task_id, "done")
        store.finish_run(stored.run_id, "finished", {})
        if run.run_id == 1:
            record = made.calibration_list[0]
            store.record_calibration(
                record.device, record.toolchain, record.host, record.calibration
            )


def test_a_run_written_to_the_store_is_reported(tmp_path):
    with Store.open(f"sqlite:///{tmp_path / 'tuner.db'}") as store:
        fill(store, sample(2, built=1))
        path = reports.write(store, None, tmp_path / "report.html")
        first = reports.render(store)
    page = read(path.read_text(encoding="utf-8"))
    assert first == path.read_text(encoding="utf-8")
    text = page.one("main").text
    assert "NVIDIA H200: 2 workloads tuned." in text
    assert "none timed: the device is absent" in text
    assert "Changed since run 1" in text
    assert "Calibration of the devices" in text
    assert "4,240" in text
    assert len(page.all("div", class_="finals")) == 2
    assert len(page.one("table", id="leaderboard-table").one("tbody").all("tr")) == 2


def test_a_prepared_task_is_kept_until_it_changes(tmp_path):
    with Store.open(f"sqlite:///{tmp_path / 'tuner.db'}") as store:
        fill(store, sample(2, built=1))
        known: dict[int, TaskData] = {}
        begun = load(store, trials_of=())
        for task in begun.tasks:
            reports.prepare(store, begun, task.info.task_id, known)
        assert all(known[task.info.task_id] is task for task in load(store, known=known).tasks)
        assert reports.render(store, known=known) == reports.render(store)
        changed = begun.tasks[0].info.task_id
        trial = store.trials(changed)[0]
        store.record_trial(changed, replace(trial, attempt_id="late", number=9999))
        written = reports.write(store, None, tmp_path / "report.html", known)
        assert written.read_text(encoding="utf-8") == reports.render(store)
