"""What every store does, whatever database it keeps its records in."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from threading import Barrier

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
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

from results_db import (
    BaselineRecord,
    RunInfo,
    SelectionRecord,
    Store,
    StoreError,
    TaskKey,
    TrialRecord,
)
from search_spaces.records import Status, Toolchain, Workload

_unique = itertools.count()

lenient = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
# Anything Python calls text: NUL, lone surrogates, markup, combining characters.
texts = st.text(st.characters(exclude_categories=()), max_size=30)
json_texts = st.text(max_size=20)
counts = st.integers(0, 2**63 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
maybe = st.none() | finite
samples = st.lists(finite | st.floats(width=32, allow_nan=False), max_size=20).map(tuple)
values = st.none() | st.booleans() | st.integers() | finite | json_texts
configs = st.dictionaries(json_texts, values, max_size=5)
instants = st.none() | st.datetimes(
    min_value=datetime(1970, 1, 2),
    max_value=datetime(2200, 1, 1),
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45))]),
)
facts = st.none() | counts
trials = st.builds(
    TrialRecord,
    attempt_id=texts,
    number=counts,
    config=configs,
    status=st.sampled_from(Status),
    source=st.sampled_from(["measured", "built", "binary", "reused"]),
    message=texts,
    detail=texts,
    strategy=texts,
    twin=texts,
    binary_hash=texts,
    registers=facts,
    spill_bytes=facts,
    shared_bytes=facts,
    binary_bytes=facts,
    build_s=finite,
    device_s=finite,
    worker=texts,
    method=texts,
    cache=texts,
    champion=texts,
    median_us=maybe,
    log_ratio=maybe,
    log_ratio_low=maybe,
    log_ratio_high=maybe,
    error=maybe | st.just(math.inf),
    compiled=counts,
    verified_by=texts,
    samples_us=samples,
    champion_samples_us=samples,
    clocks=st.dictionaries(json_texts, finite | json_texts, max_size=3),
    finished_at=instants,
)
selections = st.builds(
    SelectionRecord,
    winner=configs,
    tie_set=st.lists(configs, max_size=3).map(tuple),
    verdict=texts,
    reason=texts,
    runner_up=st.none() | configs,
    default=st.none() | configs,
    median_us=maybe,
    default_us=maybe,
    log_ratio=maybe,
    log_ratio_low=maybe,
    log_ratio_high=maybe,
    samples_us=samples,
    compiled=counts,
    clocks=st.dictionaries(json_texts, finite | json_texts, max_size=3),
    confirmed_at=instants,
)
baselines = st.lists(
    st.builds(
        BaselineRecord,
        name=texts,
        status=st.sampled_from(Status),
        median_us=maybe,
        log_ratio=maybe,
        log_ratio_low=maybe,
        log_ratio_high=maybe,
        error=maybe,
        message=texts,
        samples_us=samples,
    ),
    max_size=3,
    unique_by=lambda baseline: baseline.name,
)

OTHER_KEYS = {
    "kernel": replace(KEY, kernel="matmul"),
    "source": replace(KEY, source_hash="0000"),
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

_CLAIM = """
import sys
from datetime import UTC, datetime, timedelta
from results_db import Store
sys.stdin.readline()
with Store.open(sys.argv[1]) as store:
    for hour in range(20):
        instant = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=hour)
        print(int(store.claim_fire("nightly", instant, sys.argv[2])))
"""


class StoreContract:
    """Subclasses give the fixtures `url` and `store`, a new database each time."""

    # -- round trips ---------------------------------------------------------------------------
    @lenient
    @given(record=trials)
    def test_a_trial_comes_back_as_it_was(self, store: Store, record: TrialRecord) -> None:
        task = new_task(store)
        record = replace(record, attempt_id=f"{record.attempt_id}{next(_unique)}")
        assert store.record_trial(task.task_id, record)
        assert store.trials(task.task_id) == [record]
        assert not store.record_trial(task.task_id, record)
        assert store.trials(task.task_id) == [record]

    @lenient
    @given(selection=selections, others=baselines)
    def test_a_selection_comes_back_as_it_was(
        self, store: Store, selection: SelectionRecord, others: list[BaselineRecord]
    ) -> None:
        task = new_task(store)
        store.record_selection(task.task_id, SELECTION, BASELINES)
        store.record_selection(task.task_id, selection, others)
        (found,) = store.tasks(task.run_id)
        assert found.selection == selection
        assert found.baselines == tuple(others)

    @lenient
    @given(
        key=st.builds(
            TaskKey,
            kernel=texts,
            source_hash=texts,
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
    )
    def test_runs_and_tasks_come_back_as_they_were(
        self, store, key, note, tolerance, campaign, environment
    ) -> None:
        run = store.begin_run(campaign, "spec", 2**40, environment, {"tasks": [1, {"a": None}]})
        arguments = {"flops": 1.5, "bytes": 2.5, "tolerance": tolerance, "note": note}
        task = store.ensure_task(run.run_id, key, **arguments)
        assert task.key == key
        assert (task.stage, task.note, task.tolerance) == ("search", note, tolerance)
        assert store.ensure_task(run.run_id, key, **arguments) == task
        assert store.tasks(run.run_id) == [task]
        assert store.run(run.run_id) == run
        assert run.environment == environment

    # -- what is refused -----------------------------------------------------------------------
    @pytest.mark.parametrize(
        "changes",
        [
            {"median_us": math.nan},
            {"samples_us": (1.0, math.nan)},
            {"champion_samples_us": (math.nan,)},
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

    def test_rows_need_what_they_refer_to(self, store: Store) -> None:
        for write in (
            lambda: store.record_trial(99, trial(0)),
            lambda: store.record_selection(99, SELECTION, BASELINES),
            lambda: store.set_stage(99, "done"),
            lambda: store.set_run_status(99, "failed"),
            lambda: store.run(99),
            lambda: store.ensure_task(99, KEY, flops=1, bytes=1, tolerance=None),
            lambda: store.record_export("t.json", "tuner", 99, "00"),
            lambda: store.finish_fire("nightly", NOON, "finished"),
        ):
            with pytest.raises(StoreError):
                write()
        assert not any(store.stats()["rows"].values())

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

    @pytest.mark.parametrize("part", OTHER_KEYS)
    def test_results_of_another_key_are_not_known(self, store: Store, part: str) -> None:
        task = new_task(store)
        store.record_trial(task.task_id, trial(0))
        assert store.known_trials(OTHER_KEYS[part]) == []
        assert store.known_trials(KEY) == [trial(0)]

    @pytest.mark.parametrize("part", SAME_KEYS)
    def test_results_of_equal_conditions_are_known(self, store: Store, part: str) -> None:
        task = new_task(store)
        store.record_trial(task.task_id, trial(0))
        assert store.known_trials(SAME_KEYS[part]) == [trial(0)]

    def test_known_trials_are_the_newest_real_ones(self, store: Store) -> None:
        old, new, copies = (new_task(store, campaign=name) for name in ("a", "b", "c"))
        for number in range(3):
            store.record_trial(old.task_id, trial(number))
        again = trial(1, attempt_id="again", median_us=1.0)
        store.record_trial(new.task_id, again)
        store.record_trial(new.task_id, trial(9, source="built", attempt_id="built"))
        for number, source in ((0, "reused"), (2, "binary")):
            copy = trial(number, source=source, twin=f"a{number}", attempt_id=f"c{number}")
            store.record_trial(copies.task_id, copy)
        known = {record.attempt_id: record for record in store.known_trials(KEY)}
        assert set(known) == {"a0", "c2", "again", "built"}
        assert known["again"] == again
        mine = store.known_trials(KEY, exclude_task=old.task_id)
        assert {record.attempt_id for record in mine} == {"c2", "again", "built"}

    def test_a_settled_task_is_found_under_the_very_same_key(self, store: Store) -> None:
        old, new = (new_task(store, campaign=name) for name in ("a", "b"))
        assert store.settled(KEY) is None
        store.record_selection(old.task_id, SelectionRecord(DEFAULT, (DEFAULT,), "undecided"), [])
        assert store.settled(KEY) is None
        chosen = SelectionRecord(BEST, (BEST,), "faster", median_us=10.0)
        store.record_selection(old.task_id, chosen, [])
        found = store.settled(KEY, exclude_task=new.task_id)
        assert found is not None
        assert found.selection == chosen
        assert store.settled(KEY, exclude_task=old.task_id) is None
        for part, key in OTHER_KEYS.items():
            assert store.settled(key) is None, part

    def test_a_run_has_one_holder(self, store: Store) -> None:
        run = store.begin_run("nightly", "h", 1, {}, {})
        assert store.hold_run(run.run_id, "a:1")
        assert store.hold_run(run.run_id, "a:1")
        assert not store.hold_run(run.run_id, "b:2")
        assert not store.hold_run(run.run_id, "b:2", instead_of="c:3")
        assert store.hold_run(run.run_id, "b:2", instead_of="a:1")
        assert store.run(run.run_id).holder == "b:2"
        store.finish_run(run.run_id, "interrupted", {})
        assert store.hold_run(run.run_id, "c:3")
        held = store.run(run.run_id)
        assert (held.status, held.finished_at) == ("running", None)

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
        store.set_run_status(first.run_id, "interrupted")
        resumed = store.unfinished_run("nightly", "h1")
        assert resumed is not None
        assert resumed.finished_at is not None
        store.set_run_status(first.run_id, "running")
        assert store.run(first.run_id) == first
        store.set_run_status(first.run_id, "failed")
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

    # -- frames --------------------------------------------------------------------------------
    def test_frames_hold_what_was_recorded(self, store: Store) -> None:
        from results_db import BASELINE_COLUMNS, SELECTION_COLUMNS, TRIAL_COLUMNS

        task, other = new_task(store), new_task(store, OTHER_KEYS["kernel"])
        for record in TRIALS:
            store.record_trial(task.task_id, record)
        store.record_trial(other.task_id, trial(0, config={"BLOCK": 2**80, "SPLIT": "é"}))
        store.record_selection(task.task_id, SELECTION, BASELINES)
        frame = store.trials_frame(task.run_id)
        parameters = ["config.BLOCK", "config.fast", "config.num_warps"]
        assert list(frame.columns) == [*TRIAL_COLUMNS, *parameters]
        assert list(frame["status"]) == ["correct", "correct", "compile"]
        assert list(frame["config.BLOCK"]) == [1024, 4096, 65536]
        assert list(frame["config.fast"]) == [False, True, None]
        assert frame["median_us"].tolist()[:2] == [120.5, 70.1]
        assert math.isnan(frame["median_us"][2])
        assert frame["finished_at"][0] == NOON
        assert frame["workload"][0] == KEY.workload.key
        assert len(store.trials_frame()) == 4
        assert store.trials_frame(task_id=other.task_id)["config.SPLIT"].tolist() == ["é"]
        selected = store.selections_frame(task.run_id)
        assert list(selected.columns) == list(SELECTION_COLUMNS)
        assert selected["verdict"].tolist() == ["faster"]
        compared = store.baselines_frame()
        assert list(compared.columns) == list(BASELINE_COLUMNS)
        assert compared["name"].tolist() == ["vendor", "eager"]
        for empty in (store.trials_frame(99), store.selections_frame(99)):
            assert empty.empty
        assert list(store.trials_frame(99).columns) == list(TRIAL_COLUMNS)

    # -- schedules, exports, health ------------------------------------------------------------
    def test_one_of_several_processes_claims_each_fire(self, store: Store, url: str) -> None:
        command = [sys.executable, "-c", _CLAIM, url]
        racers = [
            subprocess.Popen(
                [*command, f"host{number}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(2)
        ]
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        claims = [[int(line) for line in racer.communicate()[0].split()] for racer in racers]
        assert [sum(hosts) for hosts in zip(*claims, strict=True)] == [1] * 20
        assert len(store.fires()) == 20

    def test_a_fire_is_one_instant_in_any_time_zone(self, store: Store) -> None:
        zone = timezone(timedelta(hours=9))
        assert store.last_fire("nightly") is None
        assert store.claim_fire("nightly", NOON, "host1")
        assert not store.claim_fire("nightly", NOON.astimezone(zone), "host2")
        run = store.begin_run("nightly", "h", 1, {}, {})
        store.finish_fire("nightly", NOON, "finished", run.run_id, "ok")
        missed = [NOON - timedelta(days=1), NOON, NOON + timedelta(days=1)]
        store.record_missed("nightly", missed, "host1")
        assert store.claim_fire("weekly", NOON, "host1")
        fires = store.fires("nightly")
        assert [fire.state for fire in fires] == ["missed", "finished", "missed"]
        assert [fire.instant for fire in fires] == missed[::-1]
        assert (fires[1].run_id, fires[1].host, fires[1].message) == (run.run_id, "host1", "ok")
        assert store.last_fire("nightly") == fires[0]
        assert len(store.fires()) == 4

    def test_exports_are_listed_newest_first(self, store: Store) -> None:
        task = new_task(store)
        store.record_export("a.json", "tuner", task.run_id, "aa", [task.task_id])
        store.record_export("b.json", "vllm", None, "bb")
        found = store.exports()
        assert [export.path for export in found] == ["b.json", "a.json"]
        assert found[1].task_ids == (task.task_id,)

    def test_stats_and_check(self, store: Store) -> None:
        assert store.check() == []
        task = new_task(store)
        for record in TRIALS:
            store.record_trial(task.task_id, record)
        stats = store.stats()
        assert stats["trials"] == {"correct": 2, "compile": 1}
        assert stats["rows"]["trial"] == 3
        assert stats["revision"] == stats["head"]
        assert stats["file_bytes"] > 0
        assert store.check() == []
        store.record_trial(task.task_id, trial(7, source="binary", twin="nobody"))
        (problem,) = store.check()
        assert "nobody" in problem

    def test_the_database_is_still_there_when_opened_again(self, store: Store, url: str) -> None:
        task = new_task(store)
        store.record_trial(task.task_id, trial(0))
        with Store.open(url, create=False) as again:
            assert again.trials(task.task_id) == [trial(0)]
            assert again.tasks(task.run_id) == [task]
