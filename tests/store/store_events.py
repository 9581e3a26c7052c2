"""Schedules, exports, calibrations and the health of a store."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import timedelta, timezone

import pytest
from sample_data import CALIBRATION, DEVICE, KEY, NOON, TRIALS, new_task, trial

from results_db import Store, StoreError
from search_spaces.records import Toolchain

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


class Events:
    """A part of `StoreContract`."""

    # -- calibrations --------------------------------------------------------------------------
    def test_calibrations_are_a_history_of_each_device(self, store: Store) -> None:
        assert store.calibrations() == []
        other = replace(DEVICE, power_limit_w=350.0)
        twin = replace(DEVICE, uuid="GPU-2")
        slower = replace(CALIBRATION, copy_bytes_per_us=3e6)
        newer = replace(KEY.toolchain, driver="600")
        for device, tools, host, calibration in (
            (DEVICE, KEY.toolchain, "node-7", CALIBRATION),
            (DEVICE, KEY.toolchain, "node-7", slower),
            (twin, KEY.toolchain, "node-7", CALIBRATION),
            (DEVICE, KEY.toolchain, "node-8", CALIBRATION),
            (DEVICE, newer, "node-7", CALIBRATION),
            (other, Toolchain(), "node-9", CALIBRATION),
        ):
            assert store.record_calibration(device, tools, host, calibration)
            assert not store.record_calibration(device, tools, host, calibration)
        found = store.calibrations(DEVICE.fingerprint)
        assert [(each.device.uuid, each.host, each.toolchain.driver) for each in found] == [
            ("GPU-1", "node-7", "600"),
            ("GPU-1", "node-8", "580"),
            ("GPU-2", "node-7", "580"),
            ("GPU-1", "node-7", "580"),
            ("GPU-1", "node-7", "580"),
        ]
        assert [each.calibration for each in found[3:]] == [slower, CALIBRATION]
        assert found == sorted(found, key=lambda each: each.measured_at, reverse=True)
        assert [each.host for each in store.calibrations(other.fingerprint)] == ["node-9"]
        assert len(store.calibrations()) == 6

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

    def test_a_tag_is_that_of_one_run_and_needs_no_lease(self, store: Store) -> None:
        first = store.begin_run("nightly", "h", 1, {}, {})
        second = store.begin_run("nightly", "h", 1, {}, {})
        assert store.take_run(second, "lease", "host:1")
        assert store.tag_run(first.run_id, "good") is None
        assert store.tag_run(second.run_id, "good") == first.run_id
        assert store.tag_run(second.run_id, "good") is None
        assert store.tags() == {"good": second.run_id}
        assert [run.tag for run in store.runs()] == ["good", None]
        assert store.tag_run(first.run_id, None) is None
        store.tag_run(second.run_id, "better")
        assert store.tags() == {"better": second.run_id}
        store.tag_run(second.run_id, None)
        assert store.tags() == {}
        with pytest.raises(StoreError, match="no run 99"):
            store.tag_run(99, "good")

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
        store.record_trial(task.task_id, trial(7, source="binary", copied_from="nobody"))
        (problem,) = store.check()
        assert "nobody" in problem

    def test_the_database_is_still_there_when_opened_again(self, store: Store, url: str) -> None:
        task = new_task(store)
        store.record_trial(task.task_id, trial(0))
        with Store.open(url, create=False) as again:
            assert again.trials(task.task_id) == [trial(0)]
            assert again.tasks(task.run_id) == [task]
