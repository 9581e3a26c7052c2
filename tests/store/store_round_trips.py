"""Every record comes back as it was, or is refused whole."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_strategies import (
    baselines,
    calibrations,
    configs,
    counts,
    finals,
    finite,
    json_texts,
    lenient,
    maybe,
    selections,
    texts,
    trials,
    values,
)
from sample_data import (
    BASELINES,
    DEVICE,
    FINALS,
    KEY,
    NOON,
    SELECTION,
    TIMELINE,
    new_task,
    trial,
)

from results_db import Store, StoreError, TrialRecord
from results_db.stored_records import BaselineRecord, FinalRecord, SelectionRecord, TaskKey
from search_spaces.records import Toolchain, Workload
from search_spaces.size_range import Range, RangePlace
from workers.job_records import Calibration

_unique = itertools.count()


class RoundTrips:
    """Any record comes back unchanged."""

    @lenient
    @given(record=trials)
    def test_a_trial_round_trips_unchanged(self, store: Store, record: TrialRecord) -> None:
        task = new_task(store)
        record = replace(record, attempt_id=f"{record.attempt_id}/{next(_unique)}")
        assert store.record_trial(task.task_id, record)
        assert store.trials(task.task_id) == [record]
        assert not store.record_trial(task.task_id, record)
        assert store.trials(task.task_id) == [record]

    @lenient
    @given(selection=selections, others=baselines, raced=finals)
    def test_a_selection_round_trips_unchanged(
        self,
        store: Store,
        selection: SelectionRecord,
        others: list[BaselineRecord],
        raced: list[FinalRecord],
    ) -> None:
        task = new_task(store)
        store.record_selection(task.task_id, SELECTION, BASELINES, FINALS)
        store.record_selection(task.task_id, selection, others, raced)
        (found,) = store.tasks(task.run_id)
        assert found.selection == selection
        assert found.baselines == tuple(others)
        assert found.finals == tuple(raced)

    @lenient
    @given(calibration=calibrations, host=texts)
    def test_a_calibration_round_trips_unchanged(
        self, store: Store, calibration: Calibration, host: str
    ) -> None:
        known = store.calibrations()
        new = store.record_calibration(DEVICE, KEY.toolchain, host, calibration)
        assert not store.record_calibration(DEVICE, KEY.toolchain, host, calibration)
        found = store.calibrations(DEVICE.fingerprint)
        assert (found[1:] if new else found) == known
        (same,) = [each for each in found if (each.host, each.calibration) == (host, calibration)]
        assert (same.device, same.toolchain) == (DEVICE, KEY.toolchain)

    @lenient
    @given(
        key=st.builds(
            TaskKey,
            kernel=texts,
            launch_hash=texts,
            kernel_hashes=st.just(("00",)),
            space_hash=texts,
            workload=configs.map(Workload.from_mapping),
            device=st.builds(
                lambda name, facts, watts, uuid: replace(
                    DEVICE, name=name, memory_bytes=facts, power_limit_w=watts, uuid=uuid
                ),
                json_texts,
                counts,
                finite,
                json_texts,
            ),
            toolchain=st.builds(Toolchain, json_texts, json_texts, json_texts, json_texts),
            protocol=texts,
        ),
        note=texts,
        tolerance=maybe,
        campaign=texts,
        environment=st.dictionaries(json_texts, values, max_size=3),
        place=st.none()
        | st.builds(
            RangePlace,
            st.tuples(st.tuples(json_texts, st.builds(Range, st.just(1), st.integers(1, 99)))),
            finite,
            st.integers(2, 9),
            st.none() | st.tuples(st.integers(1, 9), st.integers(1, 9)),
            st.booleans(),
        ),
    )
    def test_runs_and_tasks_come_back_as_they_were(
        self, store, key, note, tolerance, campaign, environment, place
    ) -> None:
        run = store.begin_run(campaign, "spec", 2**40, environment, {"tasks": [1, {"a": None}]})
        arguments = {"flops": 1.5, "bytes": 2.5, "tolerance": tolerance, "note": note}
        arguments["place"] = place
        task = store.ensure_task(run.run_id, key, **arguments)
        assert task.key == key
        assert (task.stage, task.note, task.tolerance) == ("search", note, tolerance)
        assert task.place == place
        assert store.ensure_task(run.run_id, key, **arguments) == task
        assert store.tasks(run.run_id) == [task]
        assert store.run(run.run_id) == run
        assert run.environment == environment


class Refusals:
    """A part of `StoreContract`."""

    @pytest.mark.parametrize(
        "changes",
        [
            {"median_us": math.nan},
            {"timing_s": math.nan},
            {"samples_us": (1.0, math.nan)},
            {"incumbent_samples_us": (math.nan,)},
            {"error": math.nan},
            {"config": {"x": math.nan}},
            {"clocks": {"sm_mhz": math.nan}},
            {"clocks": {"sm_mhz": object()}},
            {"finished_at": datetime(2026, 1, 1)},
            {"status": "great"},
            {"source": "guessed"},
            {"registers": 2**70},
        ],
        ids=lambda changes: next(iter(changes)),
    )
    def test_what_cannot_be_kept_is_refused_whole(self, store: Store, changes) -> None:
        task = new_task(store)
        with pytest.raises(StoreError) as caught:
            store.record_trial(task.task_id, trial(0, **changes))
        assert caught.value.hint
        assert "\n" not in caught.value.message
        assert store.trials(task.task_id) == []
        assert store.stats()["rows"]["measurement"] == 0
        assert store.record_trial(task.task_id, trial(0))

    @pytest.mark.parametrize(
        "changes",
        [
            {"stage": "heats"},
            {"status": "great"},
            {"median_us": math.nan},
            {"samples_us": (1.0, math.nan)},
            {"config": {"x": math.nan}},
        ],
        ids=lambda changes: next(iter(changes)),
    )
    def test_an_outcome_with_a_bad_finalist_leaves_the_earlier_one(
        self, store: Store, changes
    ) -> None:
        task = new_task(store)
        store.record_selection(task.task_id, SELECTION, BASELINES, FINALS)
        (before,) = store.tasks(task.run_id)
        raced = (FINALS[1], replace(FINALS[0], **changes))
        with pytest.raises(StoreError):
            store.record_selection(task.task_id, replace(SELECTION, verdict="same"), (), raced)
        assert store.tasks(task.run_id) == [before]

    def test_a_calibration_that_is_no_number_is_refused(self, store: Store) -> None:
        for bad in (
            Calibration(quantum_us=math.nan),
            Calibration(overhead_us={"events": math.nan}),
            Calibration(flops_per_us={"float16": math.inf}),
        ):
            with pytest.raises(StoreError):
                store.record_calibration(DEVICE, KEY.toolchain, "node-7", bad)
        assert not any(store.stats()["rows"].values())

    def test_rows_need_what_they_refer_to(self, store: Store) -> None:
        for write in (
            lambda: store.record_trial(99, trial(0)),
            lambda: store.record_selection(99, SELECTION, BASELINES),
            lambda: store.set_stage(99, "done"),
            lambda: store.finish_run(99, "failed", {}),
            lambda: store.run(99),
            lambda: store.ensure_task(99, KEY, flops=1, bytes=1, tolerance=None),
            lambda: store.record_export("t.json", "tuner", 99, "00"),
            lambda: store.finish_fire("nightly", NOON, "finished"),
        ):
            with pytest.raises(StoreError):
                write()
        assert not any(store.stats()["rows"].values())

    def test_the_time_line_of_a_run_is_that_of_its_last_driver(self, store: Store) -> None:
        first, second = new_task(store), new_task(store)
        hostile = {**TIMELINE, "lanes": ["\x00 \ud800 </script>"]}
        store.record_timeline(first.run_id, TIMELINE)
        store.record_timeline(first.run_id, hostile)
        assert store.timeline(first.run_id) == hostile
        assert store.timeline(second.run_id) is None
        assert store.stats()["rows"]["timeline"] == 1
