"""What every store does, whatever database it keeps its records in."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
from sample_data import (
    BASELINES,
    BEST,
    DEFAULT,
    DEVICE,
    KEY,
    NOON,
    SELECTION,
    TRIALS,
    new_task,
    trial,
)
from store_events import Events
from store_forget import Forgetting
from store_round_trips import Refusals

from results_db import RunInfo, Store
from results_db.errors import LeaseLostError
from results_db.stored_records import SelectionRecord
from search_spaces.records import Status
from search_spaces.size_range import Range, RangePlace

OTHER_KEYS = {
    "kernel": replace(KEY, kernel="matmul"),
    "code": replace(KEY, launch_hash="0000"),
    "workload": replace(KEY, workload=KEY.workload.with_dims(M=1)),
    "workload type": replace(KEY, workload=KEY.workload.with_dims(M="8192")),
    "device": replace(KEY, device=replace(DEVICE, power_limit_w=350.0)),
    "toolchain": replace(KEY, toolchain=replace(KEY.toolchain, driver="600")),
    "protocol": replace(KEY, protocol="p2"),
}
SAME_KEYS = {
    "space": replace(KEY, space_hash="narrowed"),
    "card": replace(KEY, device=replace(DEVICE, uuid="GPU-2")),
}


class StoreContract(Refusals, Events, Forgetting):
    """Subclasses give the fixtures `url` and `store`, a new database each time."""

    # -- trials --------------------------------------------------------------------------------
    def test_nothing_is_stored_twice(self, store: Store) -> None:
        task, other = new_task(store), new_task(store)
        assert store.record_trial(task.task_id, trial(0))
        assert not store.record_trial(other.task_id, trial(5, attempt_id="a0"))
        assert not store.record_trial(task.task_id, trial(1, config=trial(0).config))
        assert not store.record_trial(task.task_id, trial(0, attempt_id="a2", config={"BLOCK": 2}))
        assert store.record_trial(other.task_id, trial(0, attempt_id="b0"))
        assert store.trials(task.task_id) == [trial(0)]
        assert store.stats()["rows"]["measurement"] == 2

    def test_trials_are_listed_by_number(self, store: Store) -> None:
        task = new_task(store)
        for number in (3, 0, 2, 1):
            store.record_trial(task.task_id, trial(number))
        assert [record.number for record in store.trials(task.task_id)] == [0, 1, 2, 3]

    def test_results_are_known_under_equal_conditions_only(self, store: Store) -> None:
        task = new_task(store)
        store.record_trial(task.task_id, trial(0))
        for part, key in OTHER_KEYS.items():
            assert store.known_trials(key) == [], part
        for part, key in {"the same": KEY, **SAME_KEYS}.items():
            assert store.known_trials(key) == [trial(0)], part

    def test_known_trials_are_the_newest_real_ones(self, store: Store) -> None:
        old, new, copies = (new_task(store, campaign=name) for name in ("a", "b", "c"))
        for number in range(3):
            store.record_trial(old.task_id, trial(number))
        again = trial(1, attempt_id="again", median_us=1.0)
        store.record_trial(new.task_id, again)
        store.record_trial(new.task_id, trial(9, source="built", attempt_id="built"))
        for number, source in ((0, "reused"), (2, "binary")):
            copy = trial(number, source=source, copied_from=f"a{number}", attempt_id=f"c{number}")
            store.record_trial(copies.task_id, copy)
        known = {record.attempt_id: record for record in store.known_trials(KEY)}
        assert set(known) == {"a0", "c2", "again", "built"}
        assert known["again"] == again
        mine = store.known_trials(KEY, exclude_task=old.task_id)
        assert {record.attempt_id for record in mine} == {"c2", "again", "built"}

    def test_a_settled_task_is_found_under_the_very_same_key(self, store: Store) -> None:
        old, new = (new_task(store, campaign=name) for name in ("a", "b"))
        assert store.find_settled(KEY) is None
        store.record_selection(old.task_id, SelectionRecord(DEFAULT, (DEFAULT,), "undecided"), [])
        assert store.find_settled(KEY) is None
        chosen = SelectionRecord(BEST, (BEST,), "faster", median_us=10.0)
        store.record_selection(old.task_id, chosen, [])
        found = store.find_settled(KEY, exclude_task=new.task_id)
        assert found is not None
        assert found.selection == chosen
        assert store.find_settled(KEY, exclude_task=old.task_id) is None
        for part, key in OTHER_KEYS.items():
            assert store.find_settled(key) is None, part

    def test_a_run_has_one_holder(self, store: Store) -> None:
        run = store.begin_run("nightly", "h", 1, {}, {})
        assert (run.lease, run.silent_s) == ("", None)
        assert store.take_run(run, "t1", "a:1", "boot 1")
        held = store.run(run.run_id)
        assert (held.lease, held.holder, held.process) == ("t1", "a:1", "boot 1")
        assert held.silent_s is not None
        assert abs(held.silent_s) < 60
        assert not store.take_run(run, "t2", "b:2")
        store.under("t1").beat(run.run_id)
        assert not store.take_run(held, "t2", "b:2"), "it has given a sign of life since"
        assert store.take_run(store.run(run.run_id), "t2", "b:2")
        assert store.run(run.run_id).holder == "b:2"
        store.under("t2").finish_run(run.run_id, "interrupted", {})
        ended = store.run(run.run_id)
        assert (ended.lease, ended.holder, ended.process) == ("", "", "")
        assert store.take_run(ended, "t3", "c:3")
        held = store.run(run.run_id)
        assert (held.status, held.finished_at) == ("running", None)
        store.under("t3").finish_run(run.run_id, "finished", {})
        assert not store.take_run(store.run(run.run_id), "t4", "d:4"), "it has ended"

    @pytest.mark.parametrize("mine", ["", "earlier"])
    def test_a_driver_without_the_lease_writes_nothing(self, store: Store, mine: str) -> None:
        task = new_task(store)
        assert store.take_run(store.run(task.run_id), "earlier", "a:1")
        seen = store.run(task.run_id)
        assert store.take_run(seen, "later", "b:2")
        before, frozen = store.run(task.run_id), store.under(mine)
        other = replace(KEY, kernel="matmul")
        for write in (
            lambda: frozen.record_trial(task.task_id, trial(0)),
            lambda: frozen.set_stage(task.task_id, "done"),
            lambda: frozen.record_selection(task.task_id, SELECTION, BASELINES),
            lambda: frozen.ensure_task(task.run_id, other, flops=1, bytes=1, tolerance=None),
            lambda: frozen.beat(task.run_id),
            lambda: frozen.finish_run(task.run_id, "finished", {}),
        ):
            with pytest.raises(LeaseLostError, match="held by b:2"):
                write()
        assert (store.run(task.run_id), store.tasks(task.run_id)) == (before, [task])
        assert store.trials(task.task_id) == []
        holder = store.under("later")
        assert holder.record_trial(task.task_id, trial(0))
        holder.record_selection(task.task_id, SELECTION, BASELINES)
        holder.finish_run(task.run_id, "finished", {})
        with pytest.raises(LeaseLostError, match="is finished"):
            frozen.under("later").record_selection(task.task_id, SELECTION, ())

    # -- runs and tasks ------------------------------------------------------------------------
    def test_the_newest_unfinished_run_is_resumed(self, store: Store) -> None:
        assert store.last_run() is None
        first = store.begin_run("nightly", "h1", 1, {}, {})
        second = store.begin_run("nightly", "h1", 1, {}, {})
        store.begin_run("nightly", "h2", 1, {}, {})
        store.begin_run("weekly", "h1", 1, {}, {})
        assert store.unfinished_run("nightly", "h1") == second
        store.finish_run(second.run_id, "finished", {"trials": 3})
        assert store.unfinished_run("nightly", "h1") == first
        store.finish_run(first.run_id, "interrupted", {})
        resumed = store.unfinished_run("nightly", "h1")
        assert resumed is not None
        assert resumed.finished_at is not None
        store.finish_run(first.run_id, "failed", {})
        assert store.unfinished_run("nightly", "h1") is None
        assert store.run(second.run_id).summary == {"trials": 3}
        assert [run.campaign for run in store.runs(limit=2)] == ["weekly", "nightly"]
        assert [run.run_id for run in store.runs("nightly")] == [3, second.run_id, first.run_id]
        last = store.last_run("nightly")
        assert last is not None
        assert last.spec_hash == "h2"

    def test_drivers_that_start_at_once_get_one_run(self, store: Store, url: str) -> None:
        together = Barrier(4)

        def begin() -> RunInfo:
            with Store.open(url) as own:
                together.wait()
                return own.begin_run("nightly", "h1", 1, {}, {}, resume=True)

        with ThreadPoolExecutor(4) as threads:
            begun = [each.result() for each in [threads.submit(begin) for _ in range(4)]]
        assert begun == store.runs() * 4
        assert store.begin_run("nightly", "h2", 1, {}, {}, resume=True) != begun[0]
        assert store.begin_run("nightly", "h1", 1, {}, {}) != begun[0]
        assert len(store.runs()) == 3

    def test_a_task_is_found_again_with_its_progress(self, store: Store) -> None:
        task = new_task(store)
        store.set_stage(task.task_id, "confirm")
        store.set_stage(task.task_id, "done", note="no device")
        other_card = replace(KEY, device=replace(DEVICE, uuid="GPU-2"))
        for key in (KEY, other_card):
            found = store.ensure_task(task.run_id, key, flops=0, bytes=0, tolerance=None)
            assert (found.task_id, found.stage, found.note) == (task.task_id, "done", "no device")
            assert (found.flops, found.key) == (task.flops, KEY)
        for key in (*OTHER_KEYS.values(), SAME_KEYS["space"]):
            store.ensure_task(task.run_id, key, flops=0, bytes=0, tolerance=None)
        assert len(store.tasks(task.run_id)) == len(OTHER_KEYS) + 2
        assert store.stats()["rows"]["toolchain"] == 2

    def test_winners_come_newest_first_and_once(self, store: Store) -> None:
        best = replace(SELECTION, winner=BEST)
        default = replace(SELECTION, winner=DEFAULT)
        first, again = new_task(store), new_task(store)
        elsewhere = new_task(store, OTHER_KEYS["device"])
        store.record_selection(first.task_id, best, ())
        store.record_selection(elsewhere.task_id, default, ())
        store.record_selection(again.task_id, best, ())
        store.record_selection(new_task(store, OTHER_KEYS["kernel"]).task_id, default, ())
        assert store.winners("softmax") == [(KEY.workload, BEST), (KEY.workload, DEFAULT)]
        assert store.winners("softmax", limit=1) == [(KEY.workload, BEST)]
        assert store.winners("softmax", DEVICE.fingerprint) == [(KEY.workload, BEST)]
        assert store.winners("softmax", before_run=elsewhere.run_id) == [(KEY.workload, BEST)]
        assert store.winners("softmax", before_run=first.run_id) == []
        assert store.winners("unknown") == []

    def test_winners_of_sizes_that_were_held_out_are_kept_apart(self, store: Store) -> None:
        for held_out, key in ((False, KEY), (True, OTHER_KEYS["device"])):
            place = RangePlace((("rows", Range(1, 99)),), 0.02, 8, held_out=held_out)
            run = store.begin_run("range", "spec", 7, {}, {}).run_id
            facts = {"flops": 0.0, "bytes": 0.0, "tolerance": None, "place": place}
            task = store.ensure_task(run, key, **facts)
            assert task.place == place
            winner = DEFAULT if held_out else BEST
            store.record_selection(task.task_id, replace(SELECTION, winner=winner), ())
        assert store.winners("softmax") == [(KEY.workload, BEST)]

    def test_an_overview_sums_up_what_the_trials_say(self, store: Store) -> None:
        task, empty = new_task(store), new_task(store, OTHER_KEYS["kernel"])
        for number, us in enumerate((9.0, 7.0, 8.0)):
            store.record_trial(task.task_id, trial(number, median_us=us, compiled=number))
        wrong = {"status": Status.CORRECTNESS, "median_us": 1.0}
        store.record_trial(task.task_id, trial(3, **wrong))
        (found,) = store.overview(task.run_id)
        assert (found.kernel, found.workload) == (KEY.kernel, KEY.workload.key)
        assert (found.device, found.stage) == (DEVICE.name, "search")
        assert (found.trials, found.correct, found.best_us) == (4, 3, 7.0)
        assert (found.selection, found.failure) == (None, "")
        assert store.count_device_compiles(task.run_id) == (3, "")
        store.record_selection(task.task_id, SELECTION, BASELINES)
        (found,) = store.overview(task.run_id)
        assert (found.selection, found.best_us) == (SELECTION, 7.0)
        (found,) = store.overview(empty.run_id)
        assert (found.trials, found.correct, found.best_us, found.failure) == (0, 0, None, "")
        assert store.overview(99) == []

    def test_an_overview_of_one_task_leaves_out_the_others(self, store: Store) -> None:
        task = new_task(store)
        facts = {"flops": 0.0, "bytes": 0.0, "tolerance": None}
        other = store.ensure_task(task.run_id, OTHER_KEYS["kernel"], **facts)
        store.record_trial(task.task_id, trial(0))
        store.record_selection(task.task_id, SELECTION, BASELINES)
        first, second = store.overview(task.run_id)
        assert (first.trials, second.trials) == (1, 0)
        assert store.overview(task.run_id, task.task_id) == [first]
        assert store.overview(task.run_id, other.task_id) == [second]
        assert store.overview(task.run_id, 99) == store.overview(99, task.task_id) == []

    def test_an_overview_gives_the_reason_when_no_trial_is_correct(self, store: Store) -> None:
        task = new_task(store)
        for number, message in enumerate("abbc"):
            failed = {"status": Status.COMPILE, "message": message, "median_us": None}
            store.record_trial(task.task_id, trial(number, **failed))
        (found,) = store.overview(task.run_id)
        assert (found.trials, found.correct) == (4, 0)
        assert (found.failure, found.failures) == ("compile: b", 2)

    # -- frames --------------------------------------------------------------------------------
    def test_the_frame_holds_what_was_recorded(self, store: Store) -> None:
        from results_db import TRIAL_COLUMNS

        task, other = new_task(store), new_task(store, OTHER_KEYS["kernel"])
        for record in TRIALS:
            store.record_trial(task.task_id, record)
        store.record_trial(other.task_id, trial(0, config={"BLOCK": 2**80, "SPLIT": "é"}))
        frame = store.trials_frame(task.run_id)
        parameters = ["config.BLOCK", "config.fast", "config.num_warps"]
        assert list(frame.columns) == [*TRIAL_COLUMNS, *parameters]
        assert list(frame["status"]) == ["correct", "correct", "compile"]
        assert list(frame["config.BLOCK"]) == [1024, 4096, 65536]
        assert list(frame["config.fast"]) == [False, True, None]
        assert frame["median_us"].tolist()[:2] == [120.5, 70.1]
        assert math.isnan(frame["median_us"][2])
        assert frame["timing_s"].tolist()[:2] == [0.0125, 0.0]
        assert frame["deterministic"][0]
        assert frame["deterministic"].isna().tolist() == [False, True, True]
        assert frame["finished_at"][0] == NOON
        assert frame["workload"][0] == KEY.workload.key
        assert len(store.trials_frame()) == 4
        assert store.trials_frame(task_id=other.task_id)["config.SPLIT"].tolist() == ["é"]
        assert store.trials_frame(99).empty
        assert list(store.trials_frame(99).columns) == list(TRIAL_COLUMNS)
