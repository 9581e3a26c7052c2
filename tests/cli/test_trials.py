"""`tuner trials`: the trials of a run, and conditions on them that are data and never code."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from dataclasses import replace

import pytest
from cli_samples import HOSTILE, fill
from hypothesis import given
from hypothesis import strategies as st

from results_db import Store, TrialRecord
from results_db.stored_records import TrialFilter
from search_spaces.errors import TunerError
from search_spaces.records import Status
from tuner.cli.trials import find_matching, parse_conditions


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> str:
    """A run of four trials: numbers 0 to 3, of which 2 and 3 have failed."""
    url = f"sqlite:///{tmp_path_factory.mktemp('trials') / 'tuner.db'}"
    run = fill(url)
    failed = TrialRecord("a2", 2, {"num_warps": 8}, Status.COMPILE, message=f"no way {HOSTILE}")
    with Store.open(url) as store:
        (task,) = store.tasks(run)
        other = store.begin_run("other", "spec", 8, {}, {})
        store.ensure_task(other.run_id, task.key, flops=1.0, bytes=1.0, tolerance=None)
        (task,) = store.tasks(other.run_id)
        fast = {"num_warps": 4, "fast": True, "mode": "a b"}
        for record in (
            TrialRecord("a0", 0, fast, Status.CORRECT, median_us=40.0, registers=64),
            TrialRecord("a1", 1, {"num_warps": 8, "fast": False}, Status.CORRECT, median_us=2e3),
            failed,
            replace(failed, attempt_id="a3", number=3, config={"num_warps": 16, "fast": None}),
        ):
            store.record_trial(task.task_id, record)
    return url


@pytest.fixture
def listed(tuner, stored, monkeypatch):
    monkeypatch.setenv("TUNER__DATABASE__URL", stored)

    def call(*arguments: str) -> list[int]:
        result = tuner("trials", 2, "--format", "json", *arguments)
        assert result.code == 0, result.err
        return [int(row["trial"].rsplit("/", 1)[1]) for row in json.loads(result.out)]

    return call


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        ("", [0, 1, 2, 3]),
        ("num_warps=8", [1, 2]),
        ("num_warps=8.0", [1, 2]),
        ("num_warps!=8", [0, 3]),
        ("num_warps>4 num_warps<=8", [1, 2]),
        ("status=failed", [2, 3]),
        ("status!=failed", [0, 1]),
        ("status=compile", [2, 3]),
        ("time<50us", [0]),
        ("time>=2ms", [1]),
        ("time<1s", [0, 1]),
        ("registers=64", [0]),
        ("number>=3", [3]),
        ("fast=true", [0]),
        ("fast=None", [3]),
        ("fast!=true", [1, 3]),
        ("fast>0", [0]),
        ("'mode=a b'", [0]),
        ('mode="a b"', [0]),
        ("message~'NO WAY'", [2, 3]),
        ("kernel=softmax rows=8192 dtype=bfloat16", [0, 1, 2, 3]),
        ("rows<8192", []),
        ("dtype<8192", []),
    ],
)
def test_conditions(listed, where, numbers):
    assert listed("--where", where) == numbers
    assert listed(*[word for part in parse_words(where) for word in ("--where", part)]) == numbers


def parse_words(where: str) -> list[str]:
    return [shlex.quote(word) for word in shlex.split(where)]


@pytest.mark.parametrize(
    ("where", "error", "hint"),
    [
        ("num_warp=8", "no trial has 'num_warp'; did you mean 'num_warps'?", "rows, cols"),
        ("tiem<5", "no trial has 'tiem'; did you mean 'time'?", "known here: kernel"),
        ("softmax", "'softmax' is no condition", "'num_warps=8 time<50us'"),
        ("=8", "'=8' is no condition", ""),
        ("time<fast", "'fast' in 'time<fast' is no number", "50us"),
        ("time<1.2.3", "is no number", "50us"),
        ("mode='a", "No closing quotation", "close the quotes"),
        (f"{HOSTILE}=1", "is no condition", ""),
    ],
)
def test_what_is_no_condition_is_one_line_with_a_remedy(tuner, stored, monkeypatch, where, error,
                                                        hint):  # fmt: skip
    monkeypatch.setenv("TUNER__DATABASE__URL", stored)
    result = tuner("trials", 2, "--where", where)
    assert result.code == 2
    assert error in result.error
    assert hint in result.hint
    assert not set(result.err) & set("\x1b\u202e")


def test_none_is_said_with_the_nearest_value(tuner, stored, monkeypatch):
    monkeypatch.setenv("TUNER__DATABASE__URL", stored)
    for where, said in (
        ("kernel=softmx", "no trial has kernel=softmx; did you mean 'softmax'?"),
        ("num_warps=8 time<1us", "no trial matches"),
    ):
        result = tuner("trials", 2, "--where", where)
        assert (result.code, result.out, result.err) == (0, "", f"{said}\n")


@pytest.mark.parametrize("style", ["table", "json", "csv", "md"])
def test_every_format_is_inert_and_its_references_can_be_shown(tuner, stored, monkeypatch, style):
    monkeypatch.setenv("TUNER__DATABASE__URL", stored)
    result = tuner("trials", "--format", style)
    assert result.code == 0, result.err
    assert not set(result.out) & set("\x1b\u202e\r")
    assert "2/1/3" in result.out
    assert tuner("show", "2/1/3").code == 0


@pytest.fixture(scope="module")
def trials(stored):
    with Store.open(stored) as store:
        return store.list_trials(TrialFilter(statuses=tuple(Status)))


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(trials, text):
    with suppress(TunerError):
        found = find_matching(trials, parse_conditions([text]))
        assert all(each in trials for each in found)
