"""The section "How it was measured": devices, samples per trial, finals, calibrations."""

from __future__ import annotations

import random
from dataclasses import astuple, replace
from datetime import timedelta

import pandas as pd
import pytest
from page_reader import Element, figures_of, read
from report_samples import (
    CPU,
    H200,
    START,
    MemorySource,
    calibration,
    final_list,
    measured_task,
    run_info,
    sample,
    trial_list,
)

import reports
from reports import figures
from reports.source import load
from reports.subjects.measuring import depths_frame
from reports.subjects.tasks.finals import finalists, finals_frame
from reports.task_data import TaskData
from search_spaces.records import Workload
from tuner.base.log_ratio import LogRatio


@pytest.fixture(scope="module")
def source() -> MemorySource:
    return sample(2, built=1, cpu=1)


@pytest.fixture(scope="module")
def section(source) -> Element:
    return read(reports.render(source)).one("section", id="measuring")


def _one(**changes) -> tuple[MemorySource, TaskData]:
    """A run of one measured task, changed."""
    source = MemorySource([run_info(1)])
    info = measured_task(source, 1, "matmul", Workload.of(M=64, dtype="float16"))
    source.task_lists[1] = [replace(info, **changes)]
    return source, load(source).tasks[0]


def _rows(section: Element) -> dict[str, list[str]]:
    table = section.one("table", id="measuring-table")
    cells = [row.all("th") + row.all("td") for row in table.one("tbody").all("tr")]
    return {row[0].text: [cell.text for cell in row[1:]] for row in cells}


# -- the whole run -------------------------------------------------------------------------------
def test_tiles_tell_device_time_and_busy_shares(section, source):
    (tiles,) = section.all("dl", class_="tiles")
    trials = [
        trial
        for info in source.task_lists[2]
        for trial in source.trial_lists[info.task_id]
        if trial.method and trial.source == "measured"
    ]
    per_config_ms = 1e3 * sum(trial.device_s for trial in trials) / len(trials)
    timing = sum(trial.timing_s for trial in trials) / sum(trial.device_s for trial in trials)
    assert (
        f"of device time per config {per_config_ms:.1f} ms {timing:.0%} of it timing" in tiles.text
    )
    assert "with a job 87% 96% of it at work" in tiles.text
    assert "spent timing 2.50 s of 8.00 s held; finals included" in tiles.text
    capped = sum("cap" in trial.clocks["throttle"] for trial in trials)
    assert f"at the power limit {capped / len(trials):.0%}" in tiles.text
    repeated = sum("repeated" in trial.clocks for trial in trials)
    assert repeated
    assert f"voided by throttling {repeated}" in tiles.text


def test_what_the_run_did_is_no_change_of_its_environment(source):
    busy = {
        "device_busy_share": 0.5,
        "busy_share_while_ready": 0.6,
        "timing_s": 1.0,
        "configs": 7.0,
    }
    source = MemorySource([run_info(1, **busy)], dict(source.task_lists), source.trial_lists)
    source.run_list.append(run_info(2, **{name: value / 2 for name, value in busy.items()}))
    page = read(reports.render(source))
    text = page.one("section", id="environment").text
    assert "busy share" not in text
    assert "configs" not in text
    assert "with a job 25% 30% of it at work" in page.text


def test_each_task_shows_its_timing_method(section, source):
    rows = _rows(section)
    assert len(rows) == 3
    assert not any("float32" in name and "softmax" in name for name in rows)
    for info in source.task_lists[2]:
        trials = [t for t in source.trial_lists[info.task_id] if t.method]
        name = f"{info.key.kernel} {info.key.workload.key}"
        if info.selection is None:
            continue
        cells = rows[name]
        assert cells[:3] == ["events", "cold", f"{len(trials)}"]
        unstable = sum(trial.deterministic is False for trial in trials)
        assert unstable
        assert cells[6] == f"{unstable} of {len(trials)}"
        assert cells[7] == f"{sum(bool(trial.spill_bytes) for trial in trials)}"


def test_unstable_and_spilling_variants_are_listed(section, source):
    trials = [
        trial
        for info in source.task_lists[2]
        for trial in source.trial_lists[info.task_id]
        if trial.method
    ]
    for what, expected in (
        ("not bitwise repeatable", [t for t in trials if t.deterministic is False]),
        ("spill registers", [t for t in trials if t.spill_bytes]),
    ):
        (part,) = [d for d in section.all("details") if what in d.all("summary")[0].text]
        assert len(part.one("tbody").all("tr")) == len(expected)


def test_reused_trials_took_no_device_time_in_this_run():
    source, task = _one()
    trials = [replace(trial, source="reused") for trial in task.trials]
    source.trial_lists[task.info.task_id] = trials
    source.task_lists[1] = [replace(task.info, finals=())]
    page = read(reports.render(source))
    assert not page.all("section", id="measuring")


def test_a_run_from_before_finals_and_calibrations_is_still_reported():
    source, task = _one(finals=())
    source.trial_lists[task.info.task_id] = [
        replace(trial, timing_s=0.0, deterministic=None) for trial in task.trials
    ]
    section = read(reports.render(source)).one("section", id="measuring")
    assert [cells[6] for cells in _rows(section).values()] == ["—"]
    assert "of it timing" not in section.text
    for absent in ("Finals", "Calibration", "not bitwise repeatable"):
        assert absent not in section.text
    assert len(section.all("figure")) == 1


def test_throttling_is_not_shown_without_a_device_monitor():
    source, task = _one()
    source.trial_lists[task.info.task_id] = [replace(trial, clocks={}) for trial in task.trials]
    text = read(reports.render(source)).one("section", id="measuring").text
    assert "throttling" not in text
    assert "at the power limit" not in text


# -- calibrations --------------------------------------------------------------------------------
def test_a_card_shows_its_calibration_during_the_run(section):
    text = section.text
    assert "Calibration of the devices" in text
    assert "2026-11-05 02:01:00 UTC" in text
    assert "2026-11-04" not in text
    assert "cupti 0, events 2.40, graph 0.310" in text
    assert "4,240 bfloat16 790, float32 51.0" in text


def test_calibrations_of_each_card_and_host_and_never_of_the_future():
    source, _ = _one()
    other = replace(H200, uuid="GPU-other")
    early, late = calibration(days=0.5), calibration(days=9)
    during = [
        calibration(days=1),
        calibration(other, days=1),
        calibration(host="node-8", days=1),
    ]
    source.calibration_list = [early, calibration(CPU, days=1), late]
    (ended,) = [
        replace(run, finished_at=run.started_at + timedelta(hours=1)) for run in source.runs()
    ]
    source.run_list = [ended]
    assert load(source).calibrations == (early,)
    source.calibration_list += during
    assert _same(load(source).calibrations, during)
    newer = replace(during[0], measured_at=START + timedelta(days=1, minutes=30))
    source.calibration_list.append(newer)
    assert _same(load(source).calibrations, [newer, *during[1:]])


def _same(found, expected) -> bool:
    return len(found) == len(expected) and all(each in found for each in expected)


def test_what_could_not_be_calibrated_is_not_a_zero():
    source, _ = _one()
    record = calibration(days=1)
    empty = replace(record.calibration, quantum_us=0.0, copy_bytes_per_us=0.0, flops_per_us={})
    source.calibration_list = [replace(record, calibration=empty, host="")]
    (table,) = [
        t
        for t in read(reports.render(source)).one("section", id="measuring").all("table")
        if "clock resolution" in t.text
    ]
    cells = [cell.text for cell in table.one("tbody").all("td")]
    assert [cells[place] for place in (2, 4, 7, 8)] == ["—"] * 4


# -- finals --------------------------------------------------------------------------------------
def test_finalists_have_their_places():
    _, task = _one()
    ranked = sorted((t for t in task.trials if t.median_us), key=lambda t: t.median_us)
    race = finalists(task, "race")
    selection = task.info.selection
    assert [f.record.config for f in race[:-1]] == sorted(
        (f.record.config for f in race[:-1]),
        key=lambda config: [t.config for t in ranked].index(config),
    )
    assert race[0].place == "winner"
    assert race[-1].place == "failed"
    for finalist in race[1:-1]:
        tied = finalist.record.config in selection.tie_set
        assert finalist.place == (
            "tied" if tied else "dropped" if finalist.record.dropped else "slower"
        )
    assert [f.record.stage for f in finalists(task, "confirm")] == ["confirm"] * 2


def test_the_forest_plot_shows_every_timed_finalist_with_its_interval():
    _, task = _one()
    frame = finals_frame(finalists(task, "race"))
    before = frame.copy(deep=True)
    figure = figures.finals(frame)
    assert figures.finals(frame).to_json(engine="json") == figure.to_json(engine="json")
    pd.testing.assert_frame_equal(frame, before)
    drawn = {}
    for trace in figure.data:
        for x, y, up, down in zip(
            trace.x, trace.y, trace.error_x.array, trace.error_x.arrayminus, strict=True
        ):
            drawn[round(y)] = (x, x - down, x + up)
    raced = sorted(
        (r for r in task.info.finals if r.stage == "race" and r.log_ratio is not None),
        key=lambda r: r.log_ratio.value,
    )
    assert len(drawn) == len(raced) > 3
    for place, record in enumerate(raced):
        expected = astuple(record.log_ratio)
        assert drawn[place] == pytest.approx(expected, abs=2e-6)


def test_labels_are_the_parameters_in_which_finalists_differ():
    _, task = _one()
    configs = [{"A": 1, "B": place, "C": True if place else 1} for place in range(3)]
    finals = tuple(
        replace(task.info.finals[place], config=config) for place, config in enumerate(configs)
    )
    task = replace(task, info=replace(task.info, finals=finals))
    assert {f.label for f in finalists(task, "race")} == {"B=0 C=1", "B=1 C=True", "B=2 C=True"}
    alone = replace(task, info=replace(task.info, finals=finals[:1]))
    assert [f.label for f in finalists(alone, "race")] == ["A=1 B=0 C=1"]


def test_an_unknown_interval_has_no_whisker_and_a_race_without_times_no_figure():
    source, task = _one()
    finals = final_list(random.Random(1), trial_list(random.Random(1), 5.0, 9)[:2])
    unknown = tuple(
        replace(f, log_ratio=f.log_ratio and LogRatio.of(f.log_ratio.value)) for f in finals
    )
    source.task_lists[1] = [replace(task.info, finals=unknown)]
    page = read(reports.render(source))
    (figure,) = figures_of(page.one("div", class_="finals")).values()
    for trace in figure["data"]:
        assert set(trace["error_x"]["array"]) == {0}
    failed = tuple(f for f in finals if f.log_ratio is None)
    assert failed
    source.task_lists[1] = [replace(task.info, finals=failed)]
    part = read(reports.render(source)).one("div", class_="finals")
    assert not part.all("figure")
    assert "timeout" in part.text
    assert "no answer in 60 s" in part.text


def test_finals_without_a_race_show_the_confirmation():
    source, task = _one()
    confirmed = tuple(f for f in task.info.finals if f.stage == "confirm")
    source.task_lists[1] = [replace(task.info, finals=confirmed)]
    page = read(reports.render(source))
    caption = page.one("div", class_="finals").one("figcaption").text
    assert "95 % intervals" in caption


# -- depths --------------------------------------------------------------------------------------
def test_depths_are_the_shares_of_a_task():
    _, task = _one()
    frame = depths_frame([task])
    assert frame["samples"].tolist() == [1, 3, 9, 24]
    assert frame["share"].sum() == pytest.approx(1.0)
    ones = sum(len(trial.samples_us) == 1 for trial in task.trials)
    assert frame["share"][0] == ones / len(task.screened)
    figure = figures.depths(frame)
    assert [bar.name for bar in figure.data] == ["1 sample", "3 samples", "9 samples", "24 samples"]
    assert len({bar.marker.pattern.shape for bar in figure.data}) == 4
