"""`tuner promote` and `tuner rollback`: published tables change entry by entry, and back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from bench_samples import RECORDED, SETTINGS, confirm
from cli_samples import BEST, DEVICE, HOSTILE, fill
from promotions import only_table, promote

from results_db import Store
from results_db.promotion_records import PromotionOutcome
from search_spaces.records import Toolchain, Workload
from tuner.tables.published_versions import KEPT

OTHER = {"BLOCK": 2048}
TOOLCHAIN = Toolchain(python="3.12", torch="2.11", triton="3.6")


def sized(rows: int) -> dict:
    return {"workload": Workload.of(rows=rows, cols=8192, dtype="bfloat16")}


def test_the_first_promotion_writes_what_export_writes(tuner, url, folder):
    run = fill(url, kernel="scale")
    (row,) = promote(tuner, run)
    assert (row["outcome"], row["reason"], row["former"]) == ("promoted", "new table", None)
    assert tuner("export", run, "-o", "exported").code == 0
    (exported,) = (folder / "exported").iterdir()
    assert (folder / "published" / exported.name).read_bytes() == exported.read_bytes()


@pytest.mark.parametrize(
    ("gain", "half_width", "outcome", "reason"),
    [
        (0.55, 0.002, "promoted", "1.051x as fast [1."),
        (0.55, 0.2, "refused", "it is not faster beyond its interval"),
        (0.505, 0.001, "refused", "it is not faster beyond its interval"),
        (0.45, 0.002, "refused", "it is slower"),
    ],
)
def test_an_entry_is_replaced_only_where_it_is_faster_beyond_its_interval(
    tuner, url, folder, gain, half_width, outcome, reason
):
    promote(tuner, fill(url, kernel="scale", gain=0.5))
    (row,) = promote(tuner, fill(url, kernel="scale", gain=gain, half_width=half_width, best=OTHER))
    assert row["outcome"] == outcome
    assert row["reason"].startswith(reason)
    assert row["low"] < row["ratio"] < row["high"]
    (entry,) = only_table(folder).entries
    assert entry.config == (OTHER if outcome == "promoted" else BEST)


def test_entries_of_other_workloads_stay_and_new_ones_come(tuner, url, folder):
    promote(tuner, fill(url, kernel="scale", key=sized(32)))
    (row,) = promote(tuner, fill(url, kernel="scale", key=sized(64), best=OTHER))
    assert (row["outcome"], row["reason"]) == ("promoted", "new workload")
    configs = {entry.key["rows"]: entry.config for entry in only_table(folder).entries}
    assert configs == {32: BEST, 64: OTHER}


def test_the_config_that_is_published_stays_with_its_evidence(tuner, url, folder):
    promote(tuner, fill(url, kernel="scale"))
    before = only_table(folder)
    (row,) = promote(tuner, fill(url, kernel="scale", gain=0.9))
    assert row["outcome"] == "same"
    assert only_table(folder) == before


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ({"launch_hash": "f" * 16}, "code of the kernel"),
        ({"toolchain": replace(TOOLCHAIN, triton="3.8")}, "triton (3.6, not 3.8)"),
        ({"protocol": "p2"}, "measuring protocol"),
    ],
)
def test_results_of_another_environment_are_refused(tuner, url, folder, key, reason):
    promote(tuner, fill(url, kernel="scale"))
    before = only_table(folder)
    (row,) = promote(tuner, fill(url, kernel="scale", gain=0.9, best=OTHER, key=key))
    assert row["outcome"] == "refused"
    assert reason in row["reason"]
    assert only_table(folder) == before


def test_another_device_has_a_table_of_its_own(tuner, url, folder):
    promote(tuner, fill(url, kernel="scale"))
    key = {"device": replace(DEVICE, power_limit_w=600.0)}
    (row,) = promote(tuner, fill(url, kernel="scale", key=key))
    assert row["reason"] == "new table"
    assert len(list((folder / "published").glob("*@*.json"))) == 2


def test_a_table_of_another_database_cannot_be_compared_from_records(tuner, url, folder):
    promote(tuner, fill(url, kernel="scale"))
    (folder / "results" / "tuner.db").unlink()
    (row,) = promote(tuner, fill(url, kernel="scale", gain=0.9, best=OTHER))
    assert row["outcome"] == "refused"
    assert "--remeasure" in row["reason"]


def test_remeasuring_decides_what_stored_times_cannot(tuner, folder, replay):
    """The stored times contradict the recording that is measured."""
    space = replay()
    (folder / "config.yaml").write_text(f"{SETTINGS}kernels: ['{RECORDED}']\n")
    confirm(folder, space.default, median_us=10.0)
    confirm(folder, space.best.config, median_us=90.0)
    promote(tuner, 1)
    assert promote(tuner, 2)[0]["outcome"] == "refused"
    (row,) = promote(tuner, 2, "--remeasure")
    assert row["outcome"] == "promoted"
    assert "measured again" in row["reason"]
    assert only_table(folder).entries[0].config == space.best.config
    (row,) = promote(tuner, 1, "--remeasure")
    assert (row["outcome"], row["reason"].partition(":")[0]) == ("refused", "it is slower")


def test_decisions_are_stored_and_published_runs_are_not_pruned(tuner, url, folder):
    first = fill(url, kernel="scale", key=sized(32))
    promote(tuner, first)
    second = fill(url, kernel="scale", key=sized(32), gain=0.4, best=OTHER)
    promote(tuner, second)
    with Store.open(url) as store:
        refused, promoted = store.promotions()
    assert (promoted.run_id, promoted.outcome) == (first, PromotionOutcome.PROMOTED)
    assert (refused.run_id, refused.outcome) == (second, PromotionOutcome.REFUSED)
    assert (refused.config, refused.former) == (OTHER, BEST)
    fill(url, kernel="scale")
    assert "published" in tuner("prune", "--keep", 1, "--dry-run").out


def test_a_dry_run_writes_nothing(tuner, url, folder):
    run = fill(url, kernel="scale")
    assert promote(tuner, run, "--dry-run")[0]["outcome"] == "promoted"
    assert not (folder / "published").exists()
    with Store.open(url) as store:
        assert store.promotions() == []


GATE = """
import os, pathlib
first = pathlib.Path(os.environ["TUNER_TABLES"].split(os.pathsep)[0])
published = first.resolve() == pathlib.Path("published").resolve()
text = "".join(path.read_text() for path in first.glob("*.json"))
print(10 if published else {new} if text else 0)
"""


@pytest.mark.parametrize(
    ("new", "code", "figures"),
    [(9, 0, "not slower: 0.9000 of the time [0.9000, 0.9000]"), (10, 0, "not slower: 1.0000"),
     (11, 1, "slower: 1.1000 of the time [1.1000, 1.1000], 5 rounds")],
)  # fmt: skip
def test_a_gate_publishes_only_what_is_surely_not_slower(tuner, url, folder, new, code, figures):
    promote(tuner, fill(url, kernel="scale"))
    before = only_table(folder)
    (folder / "gate.py").write_text(GATE.format(new=new))
    run = fill(url, kernel="scale", gain=0.55, best=OTHER)
    arguments = ("promote", run, "--to", "published", "--gate", f"{sys.executable} gate.py")
    for more in (("--dry-run",), ()):
        result = tuner(*arguments, "-f", "json", *more)
        (row,) = json.loads(result.out)
        assert result.code == code, result.err
        assert f"the gate is {figures}" in result.err
        assert row["outcome"] == ("refused" if code else "promoted")
        assert ("the gate is" in row["reason"]) is bool(code)
        if more:
            assert only_table(folder) == before
    assert (only_table(folder) == before) is bool(code)
    with Store.open(url) as store:
        assert store.promotions()[0].outcome == row["outcome"]


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ("no_such_program", "no_such_program: there is no such program"),
        (f"{sys.executable} -c raise(SystemExit(7))", "exit code 7 with the new tables"),
        (f"{sys.executable} -c 'print(chr(27))'", r"no positive number: '\x1b'"),
        ("' '", "no such program"),
        ("'python", "--gate"),
    ],
)
def test_a_gate_that_says_nothing_publishes_nothing(tuner, url, folder, gate, message):
    run = fill(url, kernel="scale")
    result = tuner("promote", run, "--to", "published", "--gate", gate)
    assert (result.code, result.out) == (2, "")
    assert message in result.error
    assert result.hint
    assert not (folder / "published").exists()


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("way", ["nothing", "gate"])
def test_a_promotion_of_nothing_leaves_nothing(tuner, url, folder, way, made):
    if made:
        (folder / "new" / "published").mkdir(parents=True)
    before = sorted(folder.rglob("new*/**"))
    (folder / "gate.py").write_text(GATE.format(new=11).replace('"published"', '"new/published"'))
    run = fill(url, kernel="scale")
    gate = ("--gate", f"{sys.executable} gate.py") if way == "gate" else ()
    if way == "nothing":
        with Store.open(url) as store:
            run = store.begin_run("c", "spec", 7, {}, {"tasks": []}).run_id
            store.finish_run(run, "finished", {})
    result = tuner("promote", run, "--to", "new/published", *gate)
    assert result.code == (1 if gate else 2)
    assert ("the gate is slower" if gate else "has nothing to promote") in result.err
    assert sorted(folder.rglob("new*/**")) == before


def test_a_gate_is_not_asked_where_nothing_is_new(tuner, url, folder):
    promote(tuner, run := fill(url, kernel="scale"))
    result = tuner("promote", run, "--to", "published", "--gate", f"{sys.executable} -c 1/0")
    assert (result.code, result.out.count("same")) == (0, 1)


def test_rollback_brings_back_what_was_there(tuner, url, folder):
    run = fill(url, kernel="scale")
    assert "no promotion" in tuner("rollback", "published").error
    assert not (folder / "published").exists()
    promote(tuner, run)
    before = only_table(folder)
    promote(tuner, fill(url, kernel="scale", gain=0.6, best=OTHER))
    promote(tuner, fill(url, kernel="other"))
    assert json.loads(tuner("rollback", "published", "-f", "json").out)[0]["done"] == "deleted"
    assert only_table(folder).entries[0].config == OTHER
    assert json.loads(tuner("rollback", "published", "-f", "json").out)[0]["done"] == "restored"
    assert only_table(folder) == before
    assert tuner("rollback", "published").code == 0
    assert tuner("rollback", "published").code == 2


def test_rollback_touches_no_file_that_somebody_else_changed(tuner, url, folder):
    promote(tuner, fill(url, kernel="scale"))
    (path,) = (folder / "published").glob("*@*.json")
    path.write_text(path.read_text() + "\n")
    changed = path.read_bytes()
    result = tuner("rollback", "published")
    assert "has changed since" in result.error
    assert path.read_bytes() == changed


def test_a_promotion_that_was_killed_half_way_is_rolled_back(tuner, url, folder):
    promote(tuner, fill(url, kernel="scale"))
    (path,) = (folder / "published").glob("*@*.json")
    before = path.read_bytes()
    promote(tuner, fill(url, kernel="scale", gain=0.6, best=OTHER))
    path.write_bytes(before)  # the version was kept, but the table not yet replaced
    assert tuner("rollback", "published").code == 0
    assert path.read_bytes() == before


def test_only_the_last_versions_are_kept(tuner, url, folder):
    for number in range(KEPT + 3):
        promote(tuner, fill(url, kernel="scale", key=sized(2**number)))
    assert len(list((folder / "published" / ".promotions").glob("0*"))) == KEPT
    for _ in range(KEPT):
        assert tuner("rollback", "published").code == 0
    assert len(only_table(folder).entries) == 3


def test_concurrent_promotions_lose_nothing(tuner, url, folder):
    runs = [fill(url, kernel="scale", key=sized(2**number)) for number in range(4)]
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "tuner", "promote", f"{run}", "--to", "published", "-q"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ},
        )
        for run in runs
    ]
    said = [child.communicate()[1].decode() for child in children]
    assert [child.returncode for child in children] == [0] * len(runs), said
    assert {entry.key["rows"] for entry in only_table(folder).entries} == {1, 2, 4, 8}


def test_what_is_no_table_is_not_replaced(tuner, url, folder):
    run = fill(url, kernel="scale")
    promote(tuner, run)
    (path,) = (folder / "published").glob("*@*.json")
    path.write_text("{}")
    assert "tuner export" in tuner("promote", run, "--to", "published").hint
    assert path.read_text() == "{}"


def test_hostile_text_is_inert(tuner, url, folder):
    promote(tuner, fill(url, kernel=HOSTILE))
    result = tuner("promote", fill(url, kernel=HOSTILE, best=OTHER), "--to", "published")
    assert "evil" in result.out
    assert not set(result.out + result.err) & set("\x1b\u202e")
