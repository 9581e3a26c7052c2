"""Contract: failures are found by what is wrong with them and can be forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sample_data import KEY, new_task, trial

from results_db import Store
from results_db.errors import LeaseLostError
from results_db.stored_records import BaselineRecord, FinalRecord, SelectionRecord, TrialFilter
from search_spaces.records import Status

FULL = {"status": Status.COMPILE, "message": "OSError: [Errno 28] No space left on device"}
WRONG = {"status": Status.CORRECTNESS, "message": "relative error 0.3", "detail": "at (3, 4)"}
CONFIG = trial(1).config
SELECTION = SelectionRecord(CONFIG, (CONFIG,), "faster", median_us=10.0)
EAGER = BaselineRecord("eager", Status.CORRECT, 20.0)
RACED = FinalRecord("race", CONFIG, median_us=10.0)
MATMUL = replace(KEY, kernel="matmul")


def found(store: Store, **conditions: object) -> set[str]:
    which = TrialFilter(**conditions)  # type: ignore[arg-type]
    return {each.attempt_id for each in store.find_trials(which)}


class Forgetting:
    def test_failures_match_every_condition_of_the_filter(self, store: Store) -> None:
        one, two = new_task(store), new_task(store, MATMUL)
        store.record_trial(one.task_id, trial(0))
        store.record_trial(one.task_id, trial(1, **FULL))
        store.record_trial(one.task_id, trial(2, **WRONG))
        store.record_trial(two.task_id, trial(3, **FULL))
        assert found(store) == {"a1", "a2", "a3"}
        assert found(store, kernel="matmul") == {"a3"}
        assert found(store, run_id=one.run_id) == {"a1", "a2"}
        assert found(store, statuses=(Status.CORRECTNESS,)) == {"a2"}
        assert found(store, text="no SPACE left") == {"a1", "a3"}
        assert found(store, text="(3, 4)") == {"a2"}
        assert found(store, text="100%") == set()
        word = KEY.workload.key.split()[0]
        assert found(store, words=(word,)) == {"a1", "a2", "a3"}
        assert found(store, words=(word, "M=77777")) == set()
        assert found(store, statuses=tuple(Status)) == {"a0", "a1", "a2", "a3"}

    def test_the_best_time_is_that_of_the_trials_that_are_left(self, store: Store) -> None:
        task = new_task(store)
        for number, median_us in enumerate((30.0, 10.0, 20.0)):
            store.record_trial(task.task_id, trial(number, median_us=median_us))
        right = store.find_trials(TrialFilter(statuses=(Status.CORRECT,)))
        for gone, best_us in (([right[1]], 20.0), (right, None)):
            store.forget(gone)
            assert [each.best_us for each in store.overview(task.run_id)] == [best_us]
            assert store.check() == []

    def test_what_is_forgotten_is_not_known_and_may_come_again(self, store: Store) -> None:
        task = new_task(store)
        store.record_trial(task.task_id, trial(0))
        store.record_trial(task.task_id, trial(1, **FULL))
        store.set_stage(task.task_id, "done")
        assert store.forget(store.find_trials(TrialFilter())) == 1
        assert store.forget(store.find_trials(TrialFilter())) == 0
        assert [record.attempt_id for record in store.known_trials(KEY)] == ["a0"]
        assert store.tasks(task.run_id)[0].stage == "search", "the run is resumed"
        assert store.record_trial(task.task_id, trial(1))
        assert store.check() == []

    def test_copies_go_with_what_they_were_copied_from(self, store: Store) -> None:
        first, second, third = (new_task(store) for _ in range(3))
        store.record_trial(first.task_id, trial(1, **FULL))
        store.record_trial(first.task_id, trial(2, source="binary", copied_from="a1", **FULL))
        copy = trial(1, source="reused", copied_from="a1", attempt_id="c1", **FULL)
        store.record_trial(second.task_id, copy)
        store.record_trial(third.task_id, trial(4, **FULL))
        store.finish_run(first.run_id, "finished", {})
        store.set_stage(first.task_id, "done")
        matching = store.find_trials(TrialFilter(run_id=second.run_id))
        assert [each.attempt_id for each in matching] == ["a1", "a2", "c1"]
        assert store.forget(matching) == 3
        assert found(store) == {"a4"}
        assert store.tasks(first.run_id)[0].stage == "done", "a finished run stays so"

    def test_a_run_under_way_forgets_for_its_driver_alone(self, store: Store) -> None:
        task = new_task(store)
        store.record_trial(task.task_id, trial(1, **FULL))
        assert store.take_run(store.run(task.run_id), "mine", "a:1", "boot 1")
        matching = store.find_trials(TrialFilter())
        with pytest.raises(LeaseLostError):
            store.forget(matching)
        assert found(store) == {"a1"}
        assert store.under("mine").forget(matching) == 1

    def test_what_a_kept_run_has_taken_over_stays_with_its_sources(self, store: Store) -> None:
        runs = [new_task(store) for _ in range(3)]
        store.record_trial(runs[0].task_id, trial(1))
        store.record_trial(runs[0].task_id, trial(2))
        for task, name, source in ((runs[1], "b1", "a1"), (runs[2], "c1", "b1")):
            copy = trial(1, source="reused", copied_from=source, attempt_id=name)
            store.record_trial(task.task_id, copy)
        numbers = [task.run_id for task in runs]
        assert store.count_prunable([]) == {}
        assert store.count_prunable(numbers) == {numbers[0]: 2, numbers[1]: 1, numbers[2]: 1}
        assert store.count_prunable(numbers[:2]) == {numbers[0]: 1}
        assert store.prune(numbers[:2]) == 1
        assert found(store, statuses=(*Status,)) == {"a1", "b1", "c1"}
        assert store.prune(numbers) == 3
        assert found(store, statuses=(*Status,)) == set()
