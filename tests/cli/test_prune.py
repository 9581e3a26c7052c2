"""`tuner prune`: old trials go, and nothing that something still refers to."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace

import pytest
from bench_samples import recording
from cli_samples import BEST, _key, eager, fill, replay_campaign
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from made_up_spaces import synthesize
from promotions import only_table
from test_cards import CARD, fill_nights
from test_regressions import add_step, set_state

from results_db import Store, TrialRecord
from results_db.promotion_records import RegressionState
from search_spaces.records import Status, Workload
from tuner.campaign.quarantine import quarantine_outliers


@pytest.fixture
def five_runs(url) -> str:
    """Five finished runs of one campaign, of one trial each."""
    for _ in range(5):
        fill(url)
    return url


def trials_of(url: str) -> dict[int, int]:
    """The number of stored trials of each run."""
    with Store.open(url) as store:
        return {
            run.run_id: sum(task.trials for task in store.overview(run.run_id))
            for run in store.runs()
        }


def test_the_newest_runs_of_each_campaign_are_kept(tuner, five_runs):
    with Store.open(five_runs) as store:
        store.begin_run("other", "spec", 1, {}, {})
    dry = tuner("prune", "--keep", 2, "--dry-run", "-f", "json")
    assert [(row["run"], row["trials"]) for row in json.loads(dry.out)] == [(3, 1), (2, 1), (1, 1)]
    assert "3 trials of 3 runs would be deleted" in dry.err
    assert trials_of(five_runs) == dict.fromkeys(range(1, 6), 1) | {6: 0}
    best, status = tuner("best", "-f", "json").out, json.loads(tuner("status", 1, "-f", "json").out)
    done = tuner("prune", "--keep", 2)
    assert done.err == "3 trials of 3 runs deleted; 0 older runs are kept\n"
    assert trials_of(five_runs) == {1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 0}
    # What was confirmed is not lost, and a pruned run can be shown and exported.
    assert tuner("best", "-f", "json").out == best
    (row,) = json.loads(tuner("status", 1, "-f", "json").out)
    assert row == {**status[0], "trials": 0, "failed": 0}
    for command in (["report", "-o", "r.html"], ["export", "-o", "o"], ["show"]):
        assert tuner(command[0], 1, *command[1:]).code == 0
    assert tuner("db", "check").code == 0
    assert tuner("prune", "--keep", 2).err.startswith("0 trials of 0 runs deleted")


def test_runs_that_are_referred_to_are_kept_and_say_why(tuner, five_runs, folder):
    with Store.open(five_runs) as store:
        running = store.begin_run("nightly", "spec", 1, {}, {})
        assert store.take_run(running, "lease", "host:1")
        (task,) = store.tasks(1)
        held = store.under("lease")
        mine = held.ensure_task(running.run_id, task.key, flops=1.0, bytes=1.0, tolerance=None)
        held.record_trial(mine.task_id, TrialRecord("mine", 0, BEST, Status.CORRECT))
        stopped = store.begin_run("nightly", "spec", 1, {}, {})
        store.finish_run(stopped.run_id, "interrupted", {})
        store.tag_run(1, "baseline")
    for run, place in ((2, "a"), (3, "b"), (4, "b")):
        assert tuner("export", run, "-o", folder / place).code == 0
    fill(five_runs)
    dry = tuner("prune", "--keep", 1, "--dry-run", "-f", "json")
    why = {row["run"]: row["kept_because"].partition(" in /")[0] for row in json.loads(dry.out)}
    assert why == {
        7: "interrupted, can be resumed",
        6: "running, can be resumed",
        5: "",
        4: "published",
        3: "",  # another run's table has replaced its own
        2: "published",
        1: "tagged baseline",
    }
    assert tuner("prune", "--keep", 1).code == 0
    assert trials_of(five_runs) == {1: 1, 2: 1, 3: 0, 4: 1, 5: 0, 6: 1, 7: 0, 8: 1}


def test_a_relative_path_may_be_of_another_folder(tuner, five_runs):
    for run in (1, 2):
        assert tuner("export", run, "-o", "out").code == 0
    assert tuner("prune", "--keep", 1).err == "2 trials of 2 runs deleted; 2 older runs are kept\n"


def test_results_that_a_kept_run_has_taken_over_are_still_known(tuner, url):
    first, last = fill(url), fill(url, kernel="matmul")
    with Store.open(url) as store:
        (task,) = store.tasks(first)
        again = store.begin_run("nightly", "spec", 1, {}, {})
        copy = store.ensure_task(again.run_id, task.key, flops=1.0, bytes=1.0, tolerance=None)
        copied = {"source": "reused", "copied_from": f"run{first}-0"}
        store.record_trial(copy.task_id, TrialRecord("c", 0, BEST, Status.CORRECT, **copied))
    assert tuner("prune", "--keep", 1).code == 0
    assert trials_of(url) == {first: 1, last: 0, again.run_id: 1}
    with Store.open(url) as store:
        assert [each.config for each in store.known_trials(task.key)] == [BEST]


def test_a_campaign_whose_trials_are_gone_is_searched_again(tuner, folder, url):
    synthesize(8, seed=1).save(folder / "space.json.gz", columns=True)
    synthesize(8, seed=2).save(folder / "other.json.gz", columns=True)
    for space in ("space", "other"):
        replay_campaign(folder, f"{space}.json.gz")
        assert tuner("run", "c", "--no-report", "--quiet").code == 0
    # The second run's table has replaced that of the first, whose kernel has the same name.
    assert "trials of 1 runs deleted" in tuner("prune", "--keep", 1).err
    assert trials_of(url)[1] < 8
    replay_campaign(folder, "space.json.gz")
    assert tuner("run", "c", "--no-report", "--quiet").code == 0
    first, again = (json.loads(tuner("status", run, "-f", "json").out)[0] for run in (1, 3))
    assert (again["stage"], again["trials"]) == ("done", 8)
    assert again["config"] == first["config"]


@pytest.mark.parametrize("arguments", [[], ["--keep", "0"], ["--keep", "all"], ["--keep", "-1"]])
def test_what_to_keep_must_be_said(tuner, five_runs, arguments):
    result = tuner("prune", *arguments)
    assert result.code == 2
    assert "--keep" in result.error
    assert set(trials_of(five_runs).values()) == {1}


# -- by age ----------------------------------------------------------------------------------------
def set_ages(url: str, days: Mapping[int, int]) -> None:
    """Let runs have begun and ended that many days ago."""
    ago = "strftime('%Y-%m-%d %H:%M:%f000', 'now', ?)"
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        for run, age in days.items():
            words = f"started_at = {ago}, finished_at = iif(finished_at IS NULL, NULL, {ago})"
            when = f"-{age} days"
            connection.execute(f"UPDATE run SET {words} WHERE id = ?", (when, when, run))


def prune_old(tuner, url: str, commands: Sequence[str] = ()) -> set[int]:
    """Let all runs be old, and prune by age; the runs whose trials are gone.

    commands: what must say the same before and after.
    """
    before = trials_of(url)
    set_ages(url, dict.fromkeys(before, 100))

    def ask() -> list[tuple[int, str]]:
        """Codes and data; what is said of the progress has times."""
        found = [tuner(*command.split(), "--format", "json") for command in commands]
        return [(each.code, each.out) for each in found]

    said = ask()
    assert all(out for _, out in said)
    assert tuner("prune", "--older-than", "90d").code == 0
    assert ask() == said
    assert tuner("db", "check").code == 0
    left = trials_of(url)
    gone = {run for run in before if left[run] < before[run]}
    assert not any(left[run] for run in gone)
    return gone


@pytest.mark.parametrize(
    ("arguments", "pruned"),
    [
        (["--older-than", "90d"], {1, 2, 3, 6}),
        (["--older-than", "2880h"], {1, 2, 6}),
        (["--older-than", "1d"], {1, 2, 3, 4, 6}),
        (["--older-than", "90d", "--keep", 1], {1, 2, 3}),
        (["--older-than", "90d", "--keep", 4], {1}),
        (["--older-than", "120d", "--keep", 1], {1, 2}),
        (["--keep", 1], {1, 2, 3, 4}),
        (["--older-than", "9999999d"], set()),
    ],
)
def test_runs_go_that_are_older_and_behind_the_newest(tuner, five_runs, arguments, pruned):
    fill(five_runs, campaign="other")
    set_ages(five_runs, {1: 200, 2: 150, 3: 100, 4: 50, 5: 0, 6: 365})
    dry = tuner("prune", *arguments, "--dry-run", "-f", "json")
    assert {row["run"] for row in json.loads(dry.out)} == pruned
    assert tuner("prune", *arguments).code == 0
    assert {run for run, trials in trials_of(five_runs).items() if not trials} == pruned


@pytest.mark.parametrize("text", ["soon", "0", "-1d", "1w", "inf", ""])
def test_an_age_is_a_positive_duration(tuner, five_runs, text):
    result = tuner("prune", "--older-than", text)
    assert (result.code, result.error.partition(":")[0]) == (2, "--older-than")
    assert set(trials_of(five_runs).values()) == {1}


def test_history_best_and_notes_stay(tuner, url, folder):
    for gain in (0.5, 0.7, 0.6):
        fill(url, kernel="scale", gain=gain, baselines=eager(0.2))
    commands = ["history scale", "best", "compare 1 3", "note --since 999d", "status --all"]
    assert prune_old(tuner, url, commands) == {1, 2, 3}


def test_a_note_says_what_pruned_runs_cost(tuner, folder, url):
    synthesize(8, seed=1).save(folder / "space.json.gz", columns=True)
    replay_campaign(folder, "space.json.gz", more="paths: {tables: tables}\n")
    for _ in range(2):
        assert tuner("run", "c", "--no-report", "--quiet", "--fresh").code == 0
    counts = json.loads(tuner("note", "--since", "1d", "-f", "json").out)
    assert {"runs": 2, "trials": 16}.items() <= {r["what"]: r["text"] for r in counts}.items()
    assert prune_old(tuner, url, ["note --since 999d"]) == {1}


def test_both_sides_of_a_regression_stay_until_it_is_settled(tuner, url):
    add_step(url)
    assert json.loads(tuner("regressions", "-f", "json").out)[0]["state"] == "candidate"
    dry = json.loads(tuner("prune", "--keep", 1, "--dry-run", "-f", "json").out)
    why = {row["run"]: row["kept_because"] for row in dry if row["kept_because"]}
    assert why == dict.fromkeys((5, 6), "in regression 1, candidate")
    commands = ["regressions", "history scale", "note --since 999d"]
    set_state(url, RegressionState.CONFIRMED)
    assert tuner("regressions").code == 1
    assert prune_old(tuner, url, commands) == {1, 2, 3, 4, 7}
    assert tuner("regressions", "--acknowledge", 1).code == 0
    assert prune_old(tuner, url) == {5, 6}
    assert len(json.loads(tuner("regressions", "-f", "json").out)) == 1


def test_a_refuted_regression_keeps_nothing(tuner, url):
    add_step(url)
    assert tuner("regressions").code == 0
    set_state(url, RegressionState.REFUTED)
    assert prune_old(tuner, url) == set(range(1, 8))


def test_exported_results_can_be_exported_again(tuner, url, folder):
    for gain in (0.5, 0.6, 0.7):
        fill(url, kernel="scale", gain=gain)
    assert tuner("export", 2, "-o", folder / "out").code == 0
    (path,) = (folder / "out").glob("*.json")
    exported = path.read_bytes()
    assert prune_old(tuner, url) == {1, 3}
    assert tuner("export", 2, "-o", folder / "out").code == 0
    assert path.read_bytes() == exported


def test_a_check_still_knows_the_search_behind_a_table(tuner, folder, url):
    recording(folder)
    (folder / "config.yaml").write_text(
        "version: 1\npool: {kind: virtual}\nmeasure: {final_pairs: 8, warm_ms: 1}\n"
        f"paths: {{tables: '{folder / 'tables'}'}}\nkernels: ['recorded:space.json']\n"
        "campaigns: {c: {targets: [simulated], tasks: [{kernel: 'recorded:space.json'}],"
        " budget: {trials: 20}}}\n"
    )
    for _ in range(2):
        assert tuner("run", "c", "--no-report", "--quiet", "--fresh").code == 0
    command = "check tables --level measure"
    assert json.loads(tuner(*command.split(), "-f", "json").out)[0]["search_trials"]
    assert prune_old(tuner, url, [command, "check tables --run 2"]) == {1}


def test_promoted_results_stay_and_a_promotion_can_be_undone(tuner, url, folder):
    wide = {"workload": Workload.of(rows=64, cols=8192, dtype="bfloat16")}
    for facts in ({"gain": 0.3}, {"gain": 0.5}, {"gain": 0.7, "best": {"BLOCK": 2048}}):
        fill(url, kernel="scale", **facts)
    fill(url, kernel="scale", key=wide)

    def promote(run: int) -> str:
        result = tuner("promote", run, "--to", folder / "published", "-f", "json")
        return json.loads(result.out)[0]["outcome"]

    assert promote(2) == "promoted"
    former = only_table(folder)
    assert [promote(run) for run in (3, 4)] == ["promoted"] * 2
    published = only_table(folder)
    # The table holds results of two runs; that of run 2 was replaced by that of run 3.
    assert prune_old(tuner, url, ["check published"]) == {1, 2}
    assert promote(3) == "same"
    assert only_table(folder) == published
    for _ in range(2):
        assert tuner("rollback", folder / "published").code == 0
    assert only_table(folder) == former


def test_a_tagged_run_stays(tuner, url):
    for gain in (0.5, 0.6, 0.7):
        fill(url, gain=gain)
    assert tuner("tag", 1, "baseline").code == 0
    commands = ["compare baseline", "status baseline", "trials baseline", "show baseline"]
    assert prune_old(tuner, url, commands) == {2, 3}


def test_what_does_not_count_still_does_not(tuner, url, folder):
    assert len(fill_nights(url, 6, drifting_from=5)) == 1
    with Store.open(url) as store:
        for run in range(1, 7):
            for task in store.tasks(run):
                name = f"{task.task_id}"
                record = TrialRecord(name, 0, BEST, Status.CORRECT, median_us=50.0)
                store.record_trial(task.task_id, record)
    assert tuner("export", 6, "-o", folder / "out").code == 0
    (table,) = (folder / "out").glob("*.json")
    exported = table.read_bytes()
    commands = [f"workers show {CARD}", "workers list", "best", "history softmax"]
    assert prune_old(tuner, url, commands) == {1, 2, 3, 4, 5}
    assert tuner("export", 6, "-o", folder / "out").code == 0
    assert table.read_bytes() == exported
    with Store.open(url) as store:
        (card,) = store.quarantines()
        suspects = [
            task.note for task in store.tasks(5) if card.covers(task.selection.clocks, card.since)
        ]
        assert suspects == [f"confirmed on {CARD}, which is in quarantine"] * 4
        assert quarantine_outliers(store, 6) == []


#: Campaign, age in days, whether it has a tag, and status of a run; the runs that it copied from.
RUNS = st.tuples(
    st.sampled_from("aab"),
    st.sampled_from([0, 10, 20, 30, 40]),
    st.sampled_from([False, False, False, True]),
    st.sampled_from(["finished", "finished", "failed", "interrupted"]),
    st.lists(st.integers(1, 7), max_size=3, unique=True),
)
PLAIN = "a", 40, False, "finished"


def fill_with(url: str, runs) -> list[dict[str, str]]:
    """Store runs; of each, the sources of its attempts, empty for the first, which was measured.

    The others are copies of the newest attempt of these runs, where they are no later ones.
    """
    stored: list[dict[str, str]] = []
    with Store.open(url) as store:
        for number, (campaign, _, is_tagged, status, copied) in enumerate(runs, start=1):
            run_id = store.begin_run(campaign, f"{number}", 1, {}, {}).run_id
            key = _key("scale")
            task = store.ensure_task(run_id, key, flops=1.0, bytes=1.0, tolerance=None)
            mine = {f"{number}.0": ""}
            stored.append(mine)
            for source in (source for source in copied if source <= number):
                mine[f"{number}.{len(mine)}"] = list(stored[source - 1])[-1]
            for at, (name, source) in enumerate(mine.items()):
                more = {"source": "reused", "copied_from": source} if source else {}
                record = TrialRecord(name, at, {"BLOCK": at}, Status.CORRECT, **more)
                assert store.record_trial(task.task_id, replace(record, median_us=50.0))
            store.finish_run(run_id, status, {})
            if is_tagged:
                store.tag_run(run_id, f"run{number}")
    set_ages(url, {number: age for number, (_, age, *_) in enumerate(runs, start=1)})
    return stored


@given(st.lists(RUNS, min_size=1, max_size=7), st.integers(1, 3), st.sampled_from([5, 15, 25]))
@example([(*PLAIN, []), (*PLAIN, [1]), ("a", 0, False, "finished", [2])], 1, 5)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_kept_keeps_all_that_it_was_copied_from(
    tuner, tmp_path_factory, monkeypatch, runs, keep, days
):
    url = f"sqlite:///{tmp_path_factory.mktemp('law') / 'tuner.db'}"
    monkeypatch.setenv("TUNER__DATABASE__URL", url)
    stored = fill_with(url, runs)
    expected = set()
    for at, (campaign, age, is_tagged, status, _) in enumerate(runs):
        newer = sum(other == campaign for other, *_ in runs[at + 1 :])
        if newer < keep or age < days or is_tagged or status == "interrupted":
            expected |= stored[at].keys()
    sources = {name: source for mine in stored for name, source in mine.items()}
    for name in list(expected):
        while name := sources[name]:
            expected.add(name)
    arguments = "--keep", keep, "--older-than", f"{days}d"
    assert tuner("prune", *arguments).code == 0
    with Store.open(url) as store:
        assert store.check() == []
        tasks = [task for run in store.runs() for task in store.tasks(run.run_id)]
        left = {trial.attempt_id for task in tasks for trial in store.trials(task.task_id)}
    assert left == expected
    assert tuner("prune", *arguments).err.startswith("0 trials of 0 runs deleted")
