"""`tuner compare`: what two runs ship, task by task."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from bench_samples import RECORDED, SETTINGS, confirm
from cli_samples import DEVICE, eager, fill
from hypothesis import given
from hypothesis import strategies as st

from results_db import Store
from results_db.run_comparison import compare_runs


@pytest.mark.parametrize(
    ("gain", "verdict", "code"),
    [(0.6, "faster", 0), (0.4, "slower", 1), (0.501, "same", 0)],
)
def test_compare_is_relative_to_the_common_default(tuner, url, gain, verdict, code):
    fill(url, gain=0.5)
    fill(url, gain=gain)
    result = tuner("compare", 1, 2, "--format", "json")
    (row,) = json.loads(result.out)
    assert (row["verdict"], result.code) == (verdict, code)
    assert "only a new pass is conclusive" in result.err


def test_compare_judges_what_ships(tuner, url):
    fill(url, gain=0.5)
    fill(url, gain=-0.3)  # a winner that the confirmation found slower: the default is kept
    (row,) = json.loads(tuner("compare", 1, 2, "--format", "json").out)
    assert (row["verdict"], row["b_us"]) == ("slower", 115.0)
    assert row["ratio"] == pytest.approx(math.exp(0.5), rel=1e-3)


def test_the_default_config_is_no_reference_of_itself(tuner, url):
    """Where both ship it, a baseline that both measured says how they compare, or nothing does."""
    for baselines in ((), (), eager(0.30), eager(0.25)):
        fill(url, gain=-0.1, baselines=baselines)
    (row,) = json.loads(tuner("compare", 1, 2, "--format", "json").out)
    assert (row["verdict"], row["a_us"], row["b_us"]) == ("undecided", 115.0, 115.0)
    assert row["low"] is row["high"] is None
    assert "both ship the default config" in row["why"]
    (row,) = json.loads(tuner("compare", 3, 4, "--format", "json").out)
    assert row["verdict"] == "slower"
    assert row["low"] < row["ratio"] < row["high"]
    history = json.loads(tuner("history", "softmax", "--format", "json").out)
    assert [each["change"] is None for each in history] == [False, True, True, True]
    assert {each["anchor"] for each in history} == {None, "eager"}


def test_an_unchanged_run_is_the_same_within_its_interval(tuner, url):
    fill(url, gain=0.5, half_width=0.01)
    fill(url, gain=0.502, half_width=0.01)
    (row,) = json.loads(tuner("compare", 1, 2, "--format", "json").out)
    assert row["verdict"] == "undecided"
    within = f"same within {100 * (1 / row['low'] - 1):.1f} %"
    result = tuner("compare", 1, 2)
    assert within in result.out
    assert f": 0 faster, 0 slower, 1 {within}\n" in result.err
    assert within in tuner("history", "softmax").out
    assert "undecided" not in result.out


def test_compare_says_when_it_cannot_tell(tuner, url):
    fill(url, gain=0.5)
    fill(url, gain=0.52, half_width=0.05)
    fill(url, kernel="other")
    (row,) = json.loads(tuner("compare", 1, 2, "--format", "json").out)
    assert row["verdict"] == "undecided"
    assert "undecided" in tuner("compare", 1, 2).out
    result = tuner("compare", 1, 3, "--format", "json")
    assert result.code == 0
    assert "no task in common" in result.err
    assert [(row["kernel"], row["verdict"], row["why"]) for row in json.loads(result.out)] == [
        ("other", None, "only in B"),
        ("softmax", None, "only in A"),
    ]


def test_a_run_is_the_same_as_itself(tuner, url):
    fill(url, gain=0.5, half_width=0.2)  # against another run of equal noise: undecided
    result = tuner("compare", 1, 1)
    assert result.code == 0
    assert "same record" in result.out
    assert ": 0 faster, 0 slower, 1 same\n" in result.err


def test_the_change_of_the_measured_times_is_shown_beside_the_ratio(tuner, url):
    fill(url, gain=0.5, median_us=16445.0)
    fill(url, gain=0.45, half_width=0.2, median_us=22297.0)
    table = tuner("compare", 1, 2).out
    assert "16.45 ms" in table
    assert "22.30 ms" in table
    assert "+35.6%" in table
    markdown = tuner("compare", 1, 2, "--format", "md").out.splitlines()
    assert markdown[0].startswith("| kernel | workload |")
    assert len({line.count(" | ") for line in markdown}) == 1


@pytest.mark.parametrize(
    ("gain", "fail_on", "code"),
    [
        (0.48, "slower", 1),
        (0.48, "slower:1%", 1),
        (0.48, "slower:3%", 0),
        (0.46, "slower:3%", 1),
        (0.46, "never", 0),
        (0.7, "slower:0.5%", 0),
    ],
)
def test_what_fails_is_chosen(tuner, url, gain, fail_on, code):
    fill(url, gain=0.5)
    fill(url, gain=gain)
    assert tuner("compare", 1, 2, "--fail-on", fail_on).code == code


def test_undecided_fails_where_that_is_asked(tuner, url):
    fill(url, gain=0.5)
    fill(url, gain=0.5001, half_width=0.1)
    assert tuner("compare", 1, 2).code == 0
    assert tuner("compare", 1, 2, "--fail-on", "undecided").code == 1


@pytest.mark.parametrize("word", ["", "faster", "slower:", "slower:3", "slower:-3%", "slower:3%%"])
def test_a_word_that_says_nothing_is_refused(tuner, url, word):
    fill(url)
    result = tuner("compare", 1, 1, "--fail-on", word)
    assert result.code == 2
    assert "slower:3%" in result.err


def test_a_table_is_compared_like_a_run(tuner, url):
    """Also where a table does not have all facts of the device."""
    key = {"device": replace(DEVICE, registers=65536)}
    fill(url, gain=0.5, key=key)
    fill(url, gain=0.6, key=key)
    for run in (1, 2):
        assert tuner("export", run, "-f", "tuner", "-o", f"tables{run}").code == 0
    same = tuner("compare", 1, "tables1", "-f", "json")
    assert [row["why"] for row in json.loads(same.out)] == ["same record"], same.err
    assert "tables1 against run 1: 0 faster, 0 slower, 1 same" in same.err
    same = tuner("compare", "tables1", 1, "-f", "json")
    assert [row["why"] for row in json.loads(same.out)] == ["same record"], same.err
    (row,) = json.loads(tuner("compare", "tables1", "tables2", "-f", "json").out)
    assert (row["verdict"], row["a_us"], row["change"]) == ("undecided", 70.0, 0.0)
    assert "no common default config is known" in row["why"]


@pytest.mark.parametrize("side", ["empty", "missing.json", "bad.json"])
def test_what_is_no_table_is_refused(tuner, folder, url, side):
    fill(url)
    (folder / "empty").mkdir()
    (folder / "bad.json").write_text("{}")
    result = tuner("compare", 1, side)
    assert result.code == 2
    assert side in result.error
    assert result.hint


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ("2999-01-01", 3),
        ("abcdef", 2),
        ("abcdef12345678", 2),
        ("2001-01-01", "no run of campaign 'nightly' had begun by 2001-01-01"),
        ("fedcba", "no run of campaign 'nightly' is of revision fedcba"),
        ("abcde", "no run has the tag 'abcde'"),
        ("2001-31-01", "no run has the tag '2001-31-01'"),
    ],
)
def test_a_date_and_a_revision_name_a_run(tuner, url, text, run):
    for revision in ("1234567", "abcdef123456", "7654321"):
        fill(url, environment={"git": revision})
    result = tuner("compare", text, 1)
    if isinstance(run, int):
        assert f"run 1 against run {run}: " in result.err
    else:
        assert (result.code, result.error) == (2, run)


def test_remeasuring_decides_what_stored_times_cannot(tuner, folder, replay):
    """The stored times contradict the recording that is measured."""
    space = replay()
    (folder / "config.yaml").write_text(f"{SETTINGS}kernels: ['{RECORDED}']\n")
    confirm(folder, space.default, median_us=10.0)
    confirm(folder, space.best.config, median_us=90.0)
    confirm(folder, space.best.config, median_us=95.0)
    confirm(folder, space.best.config, median_us=95.0, launch_hash="0" * 16)
    confirm(folder, space.best.config, median_us=95.0, elsewhere=True)
    result = tuner("compare", 1, 2, "--remeasure", "-f", "json", "--fail-on", "undecided")
    (row,) = json.loads(result.out)
    assert (result.code, row["verdict"], row["why"]) == (0, "faster", "measured again"), result.err
    assert row["ratio"] == pytest.approx(
        space.best.median_us / space[space.default].median_us, rel=0.03
    )
    assert row["b_us"] < row["a_us"]
    (row,) = json.loads(tuner("compare", 2, 3, "--remeasure", "-f", "json").out)
    assert (row["verdict"], row["why"]) == ("same", "same code and config")
    (row,) = json.loads(tuner("compare", 1, 4, "--remeasure", "-f", "json").out)
    assert "not measured again: the code of B is no longer here" in row["why"]
    (row,) = json.loads(tuner("compare", 5, 5, "--remeasure", "-f", "json").out)
    assert row["why"] == "same record"


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('compare') / 'tuner.db'}"
    run = fill(url)
    with Store.open(url) as store:
        (found,) = store.tasks(run)
    return found


@given(st.lists(st.sampled_from("abcd"), max_size=6), st.lists(st.sampled_from("abcd"), max_size=6))
def test_no_task_is_lost_and_equal_code_belongs_together(task, old, new):
    """Several tasks of a run may have the same kernel, workload and device, of different code."""

    def tasks(codes: list[str], first: int):
        key = task.key
        return [
            replace(task, task_id=first + at, key=replace(key, launch_hash=code * 16))
            for at, code in enumerate(codes)
        ]

    a, b = tasks(old, 1), tasks(new, 100)
    found = compare_runs(a, b)
    assert sorted(each.old.task_id for each in found if each.old) == [t.task_id for t in a]
    assert [each.new.task_id for each in found if each.new] == [t.task_id for t in b]
    equal = sum(
        each.old.key.launch_hash == each.new.key.launch_hash
        for each in found
        if each.old and each.new
    )
    assert equal == sum(min(old.count(code), new.count(code)) for code in "abcd")
