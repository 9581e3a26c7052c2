"""`tuner.optimize`: what is worth tuning, what ships, and the whole in the interpreter."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from api_kernels import KERNEL, SETTINGS
from hypothesis import given
from hypothesis import strategies as st

import tuner
from tuner import runtime
from tuner.api import TuneResult
from tuner.api.result import BaselineComparison
from tuner.base.log_ratio import LogRatio
from tuner.optimizing.call_times import CallTime, StepRecord
from tuner.optimizing.candidate_tables import (
    copy_tables,
    is_ahead,
    list_new,
    publish_tables,
    tune_calls,
)
from tuner.optimizing.optimize_result import OptimizeResult
from tuner.optimizing.step_comparison import NEW, PLAIN, TODAY, is_surely_faster, judge
from tuner.optimizing.worthwhile_calls import (
    LEAST_SHARE,
    expected_gain,
    expected_saving,
    rank_calls,
    share_time,
)
from tuner.tables.published_versions import bring_back

HERE = Path(__file__).parent
TIMES = st.lists(st.floats(0.1, 10), min_size=8, max_size=8)


def call(seconds, gain=1.0, known=False, kernel="softmax", rows=4):
    dims = {"rows": rows, "cols": 32, "dtype": "float32"}
    return CallTime(kernel, dims, 1, seconds, gain, known, "")


@given(
    device=st.floats(0.1, 10), saved=st.floats(0, 0.09), hosts=st.tuples(*[st.floats(0, 20)] * 2)
)
def test_a_saving_is_predicted_of_what_a_step_waits_for(device, saved, hosts):
    record = StepRecord(device, (), device - saved, hosts)
    equal = judge({TODAY: [1.0, 1.1], PLAIN: [1.0, 1.1]})
    result = OptimizeResult(record, (), equal, Path("tables"))
    left = (1 - result.predicted) * max(device, hosts[0])
    assert left == pytest.approx(max(device - saved, hosts[1]))
    assert ("waits for the host" in str(result)) == (hosts[0] > device)


def test_the_whole_in_the_interpreter():
    own = [str(HERE.parent / name) for name in ("ops", "tables")]
    paths = os.pathsep.join([*own, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            HERE / "launched_cases.py",
            HERE / "optimized_cases.py",
        ],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:]


# -- what is worth tuning --------------------------------------------------------------------------
@given(
    calls=st.lists(st.builds(call, st.floats(0, 1), st.floats(1, 3), st.booleans()), max_size=6),
    gain=st.floats(1, 3),
)
def test_nothing_known_or_as_fast_already_is_worth_it(calls, gain):
    for each in calls:
        saving = expected_saving(each, gain)
        assert 0 <= saving <= each.seconds
        assert saving == 0 or (not each.known and each.gain < gain)
    ranked = rank_calls(StepRecord(1.0, tuple(calls)))
    savings = [saving for _, saving in ranked]
    assert savings == sorted(savings, reverse=True)
    assert all(saving >= LEAST_SHARE for saving in savings)


def test_the_expected_gain_is_that_of_the_tables():
    facts = runtime.DeviceFacts("a card", "cuda", "cuda:90")
    entries = [
        runtime.Entry({"n": at}, {}, baselines={"eager": gain, "compile": 0.1})
        for at, gain in enumerate((0.5, 4.0))
    ]
    assert expected_gain([runtime.Table("k", "", facts, {}, tuple(entries))]) == pytest.approx(2.0)
    assert expected_gain([]) > 1


@given(left=st.floats(0, 1e5), savings=st.lists(st.floats(1e-6, 1), min_size=1, max_size=5))
def test_time_is_shared_by_what_may_be_saved(left, savings):
    part = share_time(left, savings)
    assert part == 0 or part <= max(left, 5.0) + 1e-6
    assert part == 0 or part >= 5.0


# -- what ships ------------------------------------------------------------------------------------
@given(new=TIMES, today=TIMES, plain=TIMES)
def test_what_ships_beats_both_other_ways(new, today, plain):
    found = judge({NEW: new, TODAY: today, PLAIN: plain})
    assert not judge({TODAY: today, PLAIN: plain}).ships
    assert not judge({NEW: new, TODAY: new, PLAIN: plain}).ships
    if found.ships:
        for other in (today, plain):
            assert sum(map(math.log, new)) < sum(map(math.log, other))
        assert is_surely_faster(found.measured)


@pytest.mark.parametrize(
    ("new", "today", "plain", "ships"),
    [(0.8, 1.0, 1.1, True), (0.8, 1.0, 0.7, False), (1.0, 0.8, 1.1, False), (1.0, 1.0, 1.0, False)],
)
def test_what_ships(new, today, plain, ships):
    noise = [1 + 0.01 * (at % 3) for at in range(12)]
    shifted = [*noise[1:], noise[0]]
    times = {NEW: noise, TODAY: shifted, PLAIN: noise[::-1]}
    scale = {NEW: new, TODAY: today, PLAIN: plain}
    found = judge({name: [scale[name] * each for each in times[name]] for name in times})
    assert found.ships is ships
    used = new if ships else today
    assert found.measured.ratio == pytest.approx(used / plain, rel=0.02)


def test_one_round_is_never_sure():
    assert not is_surely_faster(LogRatio.of(-1.0))


# -- tables ----------------------------------------------------------------------------------------
def test_winners_are_added_to_the_tables_that_are_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    baseline = '{"eager": lambda inputs: {"out": inputs["x"] * 2}}'
    Path("scale.py").write_text(KERNEL.replace(baseline, "{}"))
    tables, made = tmp_path / "tables", tmp_path / "made"
    calls = [CallTime("scale.py:Scale", {"n": n}, 1, 1.0, 1.0, False, "") for n in (100, 200)]
    with tuner.session(settings=SETTINGS, progress=False) as session:
        for at, each in enumerate(calls):
            copy_tables(tables, made)
            assert list_new(made, tables) == {}
            (tuned,) = tune_calls(session, [(each, 0.5)], time.monotonic() + 10, made)
            assert (tuned.note, tuned.after_us is None) == ("", False)
            (path,) = publish_tables(made, tables)
            assert len(runtime.read(path).entries) == at + 1
        assert not tune_calls(session, [(calls[0], 0.5)], 0.0, made)
        unknown = [(call(1.0, kernel="no such"), 0.5)]
        (wrong,) = tune_calls(session, unknown, time.monotonic() + 10, made)
    assert "no such" in wrong.note
    bring_back(tables)
    assert [each.key for each in runtime.read(path).entries] == [{"n": 100}]


def test_ctrl_c_ends_the_tuning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("scale.py").write_text(KERNEL)
    calls = [CallTime("scale.py:Scale", {"n": n}, 1, 1.0, 1.0, False, "") for n in (100, 200)]
    told = []

    def interrupt(progress):
        if not told:
            told.append(progress)
            signal.raise_signal(signal.SIGINT)

    with tuner.session(settings=SETTINGS, progress=False, on_progress=interrupt) as session:
        ranked = [(each, 0.5) for each in calls]
        found = tune_calls(session, ranked, time.monotonic() + 60, tmp_path / "made")
    assert [(each.call, each.note) for each in found] == [(calls[0], "interrupted")]


@pytest.mark.parametrize(
    ("intervals", "ahead"),
    [
        ({}, True),
        ({"eager": (1.01, 1.2), "compile": (0.5, 0.6)}, True),
        ({"eager": (1.01, 1.2), "vendor": (0.99, 1.5)}, False),
        ({"eager": None}, False),
    ],
)
def test_an_entry_is_ahead_of_all_that_a_call_may_run(intervals, ahead):
    compared = {
        name: BaselineComparison(name, "correct", 1.0, 1.1, ends)
        for name, ends in intervals.items()
    }
    result = TuneResult({}, (), "same", 1.0, 1.0, {}, "", comparisons=compared)
    assert is_ahead(result) is ahead
