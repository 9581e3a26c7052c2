"""`tuner check --level build|measure` by the command line: on recordings and this processor."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_samples import PROCESSES, SETTINGS, confirm
from cli_samples import replay_campaign
from cpu_samples import KERNEL as DOUBLE
from made_up_spaces import synthesize

from results_db import Store
from results_db.stored_records import TrialRecord
from search_spaces.recorded.recorded_kernel import RecordedSpace
from search_spaces.records import Status, Workload, digest
from tuner.runtime import Entry, Table, read
from tuner.tables import file_name, text_of
from tuner.tables.results import device_facts
from workers.device import find_devices

CONFIG = f"{SETTINGS}kernels: ['recorded:space.json']\n"


def rows_of(result):
    return json.loads(result.out)


@pytest.fixture
def space(folder, tuner, replay) -> RecordedSpace:
    """A recording whose fastest config is in a table, and in the database."""
    space = replay()
    (folder / "config.yaml").write_text(CONFIG)
    run = confirm(folder, space.best.config, median_us=space.best.median_us)
    assert tuner("export", run, "-o", "tables").code == 0
    return space


def table_of(folder: Path) -> Path:
    (table,) = (folder / "tables").glob("*.json")
    return table


def edited(folder: Path, name: str, edit, table: Path | None = None) -> None:
    """A copy of the table with changed content."""
    document = json.loads((table or table_of(folder)).read_text())
    edit(document)
    (folder / "tables" / name).write_text(json.dumps(document))


def store_binary(folder: Path, space: RecordedSpace, binary: str, config=None) -> None:
    """A trial of the run, of the winner or of another config, with that digest of its binary."""
    config = config or space.best.config
    with Store.open(f"sqlite:///{folder / 'results' / 'tuner.db'}") as store:
        number = len(store.trials(1))
        trial = TrialRecord(f"1:{number}:0", number, config, Status.CORRECT, binary_hash=binary)
        store.record_trial(1, trial)


def rerecord(folder: Path, space: RecordedSpace, change) -> None:
    """The recording with each config as `change` returns it, under another toolchain."""
    tools = replace(space.toolchain, triton="99.0")
    configs = tuple(change(entry) for entry in space.configs)
    replace(space, configs=configs, toolchain=tools).save(folder / "space.json")


def slowed(space: RecordedSpace, factor: float, *, only_best: bool = False):
    def change(entry):
        if entry.median_us is None or (only_best and entry != space.best):
            return entry
        return replace(entry, median_us=entry.median_us * factor)

    return change


def test_of_several_kernels_of_one_name_each_table_has_its_own(tuner, folder):
    for name, size in (("a", 1024), ("b", 2048), ("c", 4096)):
        space = synthesize(20, seed=size)
        workload = Workload.from_mapping(space.workload.as_dict() | {"cols": size})
        replace(space, workload=workload).save(folder / f"{name}.json")
    replay_campaign(folder, "a.json", "b.json", "c.json", more="kernels: ['recorded:a.json']\n")
    assert tuner("run", "c", "--no-report", "--quiet").code == 0
    result = tuner("check", "results/tables", "--level", "measure", "-f", "json")
    assert result.code == 0, result.err
    assert [row["result"] for row in rows_of(result)] == ["same"] * 3


def test_a_winner_that_still_wins_is_the_same(tuner, folder, space):
    before = table_of(folder).read_bytes()
    result = tuner("check", "tables", "--level", "measure", "-f", "json")
    assert result.code == 0, result.err
    (row,) = rows_of(result)
    assert (row["result"], row["better"]) == ("same", None)
    assert row["config"] == dict(space.best.config)
    assert (row["built"], row["measured"]) == (2, 2)
    assert row["change"] == pytest.approx(1.0, rel=0.03)
    assert row["low_us"] <= row["median_us"] <= row["high_us"]
    assert "1 entries: 1 same" in result.err
    assert table_of(folder).read_bytes() == before


@pytest.mark.parametrize(("factor", "word", "code"), [(1.3, "slower", 1), (0.7, "faster", 0)])
def test_times_are_compared_with_those_of_the_table(tuner, folder, space, factor, word, code):
    rerecord(folder, space, slowed(space, factor))
    result = tuner("check", "tables", "--level", "measure", "-f", "json")
    (row,) = rows_of(result)
    assert (row["result"], result.code) == (word, code)
    assert row["change"] == pytest.approx(factor, rel=0.03)


def test_a_flipped_winner_is_tuned_again_and_the_table_written(tuner, folder, space):
    rerecord(folder, space, slowed(space, 30.0, only_best=True))
    now = RecordedSpace.load(folder / "space.json")
    found = tuner("check", "tables", "--level", "measure", "-f", "json")
    (row,) = rows_of(found)
    assert (found.code, row["result"], row["better"]) == (1, "flipped", dict(space.default))
    expected = space.best.median_us * 30 / space[space.default].median_us
    assert row["gain"] == pytest.approx(expected, rel=0.05)
    assert "`tuner check tables --retune`" in found.err

    tuned = tuner("check", "tables", "--retune", "--trials", 60, "-f", "json", "-q")
    assert tuned.code == 0, tuned.err
    assert rows_of(tuned)[0]["retuned"] is True
    document = json.loads(table_of(folder).read_text())
    assert document["entries"][0]["config"] == dict(now.best.config)
    assert document["toolchain"]["triton"] == "99.0"
    assert "triton 99.0" in document["provenance"]["upgrade_check"]

    # The database now has the binaries of the search, and none has changed since.
    again = tuner("check", "tables", "--level", "measure", "-f", "json")
    (row,) = rows_of(again)
    assert (again.code, row["result"], row["measured"]) == (0, "same", 0)
    assert row["built"] >= 2  # the winner and the default; a search may confirm no more
    assert row["search_trials"] > row["built"]
    assert "100% saved" in again.err


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (Status.COMPILE, "no longer builds"),
        (Status.CONSTRAINTS, "no longer builds"),
        (Status.CORRECTNESS, "wrong"),
        (Status.RUNTIME, "fails"),
    ],
)
def test_a_winner_that_no_longer_works(tuner, folder, space, status, word):
    def change(entry):
        failed = replace(entry, status=status, median_us=None, message="as the test wants it")
        return failed if entry == space.best else entry

    rerecord(folder, space, change)
    result = tuner("check", "tables", "--level", "measure", "-f", "json")
    (row,) = rows_of(result)
    assert (result.code, row["result"]) == (1, word)
    assert "as the test wants it" in row["note"]
    assert (row["better"], row["median_us"]) == (dict(space.default), None)


def test_a_config_that_the_space_no_longer_has(tuner, folder, space):
    edited(folder, table_of(folder).name, lambda d: d["entries"][0]["config"].update(BLOCK_M=7))
    result = tuner("check", "tables", "--level", "measure", "-f", "json")
    (row,) = rows_of(result)
    assert (result.code, row["result"], row["built"]) == (1, "no longer builds", 0)
    assert "not valid" in row["note"]


def test_members_of_the_tie_set_are_measured_and_bounded(tuner, folder, space):
    ties = [dict(entry.config) for entry in space.configs if entry.median_us is not None][:8]
    edited(folder, table_of(folder).name, lambda d: d["entries"][0].update(tie_set=ties))
    (row,) = rows_of(tuner("check", "tables", "--level", "measure", "-f", "json"))
    assert row["measured"] == 5
    few = tuner("check", "tables", "--level", "measure", "--runners-up", 0, "-f", "json")
    assert rows_of(few)[0]["measured"] == 2


def test_tables_that_cannot_be_checked_have_a_line_each(tuner, folder, space):
    good = table_of(folder)
    edited(folder, "other@card.json", lambda d: d["device"].update(name="Other Card"), good)
    edited(folder, "gone@card.json", lambda d: d["kernel"].update(name="none_such"), good)
    (folder / "tables" / "cut@card.json").write_text(good.read_text()[:300])
    result = tuner("check", "tables", "--level", "measure", "-f", "json")
    assert result.code == 1
    assert [row["result"] for row in rows_of(result)] == ["same"]
    lines = [line for line in result.err.splitlines() if line.startswith("not checked: ")]
    assert len(lines) == 3
    for line, words in zip(
        sorted(lines),
        ("is not JSON", "its kernel is gone", "is of Other Card"),
        strict=True,
    ):
        assert words in line


def test_a_table_of_another_card_is_checked_on_request(tuner, folder, space):
    edited(folder, table_of(folder).name, lambda d: d["device"].update(name="Other Card"))
    refused = tuner("check", "tables", "--level", "measure")
    assert refused.code == 2
    assert "none of the tables can be checked here" in refused.error
    assert "--any-device" in refused.hint
    result = tuner("check", "tables", "--level", "measure", "--any-device", "-f", "json")
    assert (result.code, rows_of(result)[0]["result"]) == (0, "same")


def test_build_only_measures_nothing(tuner, folder, space):
    unknown = tuner("check", "tables", "--level", "build", "-f", "json")
    (row,) = rows_of(unknown)
    assert (unknown.code, row["result"], row["built"], row["measured"]) == (0, "builds", 2, 0)
    assert "does not have" in row["note"]
    store_binary(folder, space, "another")
    changed = tuner("check", "tables", "--level", "build", "-f", "json")
    assert (changed.code, rows_of(changed)[0]["result"]) == (0, "changed")


def test_nothing_is_measured_where_all_binaries_are_known(tuner, folder, space):
    for config in (space.best.config, space.default):
        store_binary(folder, space, space[config].binary or digest(dict(config)), config)
    (row,) = rows_of(tuner("check", "tables", "--level", "measure", "-f", "json"))
    assert (row["result"], row["built"], row["measured"]) == ("same", 2, 0)
    assert "have not changed" in row["note"]


def test_usage(tuner, folder):
    (folder / "empty").mkdir()
    missing = tuner("check", "none.json", "--level", "measure")
    assert missing.code == 2
    assert "none.json: there are no tables" in missing.error
    assert "there are no tables" in tuner("check", "empty", "--level", "measure").error
    assert "--retune measures" in tuner("check", "empty", "--retune", "--level", "build").error
    assert "--trials" in tuner("check", "empty", "--trials", 3).error


@pytest.mark.slow
def test_a_kernel_on_this_processor(tuner, folder):
    (folder / "double.py").write_text(DOUBLE)
    (folder / "config.yaml").write_text(f"{PROCESSES}kernels: ['double.py:Double']\n")
    entry = Entry({"n": 1000}, {"way": "slow"}, tie_set=({"way": "add"}, {"way": "wrong"}))
    (device,) = find_devices("cpu")
    table = Table("double", "", device_facts(device), {}, (entry,), launch_hash="earlier")
    path = folder / file_name(table)
    path.write_text(text_of(table))
    result = tuner("check", path, "--retune", "-f", "json", "-q")
    assert result.code == 0, result.err
    (row,) = rows_of(result)
    assert (row["result"], row["better"], row["measured"]) == ("flipped", {"way": "add"}, 2)
    assert "runner-up 2: correctness" in row["note"]
    assert row["gain"] > 1.01
    written = read(path)
    assert [dict(each.config) for each in written.entries] == [{"way": "add"}]
    assert written.toolchain["torch"]
    assert tuner("check", path).code == 0
