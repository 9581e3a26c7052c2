"""The evaluation and the command line of `benchmarks/acceptance/gpu.py`, without a GPU."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from acceptance.evaluation import (
    compare,
    evaluate_coverage,
    evaluate_identical,
    evaluate_planted,
    log_ratios,
    quantile,
)
from acceptance.harness import Harness
from acceptance.isolation import Lost, isolated
from acceptance.ncu import by_ncu, durations
from acceptance.result import Result, Row, table
from hypothesis import given
from hypothesis import strategies as st

from workers.measure.timers.timer import Candidate

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
#: For what ends by itself; that of pytest is 300 s.
LIMIT_S = 280.0


def _pairs(ratios, sigma, *, planted=0.0, seed=0, scale=1.0, time_us=100.0):
    """Pairs of 64 samples with given true log-ratios; `scale` widens or narrows the intervals."""
    draw, pairs = random.Random(seed), []
    for at, ratio in enumerate(ratios):
        base = [time_us * math.exp(draw.gauss(0, sigma)) for _ in range(64)]
        more = [time_us * math.exp(ratio + draw.gauss(0, sigma)) for _ in range(64)]
        pair = compare(f"kernel {at % 2}", base, more, 0.0, truth=ratio, planted=planted)
        half = scale * (pair.high - pair.low) / 2
        middle = pair.log_ratio
        pairs.append(replace(pair, low=middle - half, high=middle + half))
    return pairs


def _verdicts(evaluate, pairs):
    result = Result()
    evaluate(result, pairs)
    json.dumps(result.data)
    return {row.what: row.ok for row in result.rows}


def _of(verdicts, start):
    (passed,) = [ok for what, ok in verdicts.items() if what.startswith(start)]
    return passed


def test_identical_pairs_of_a_good_clock_meet_every_bound():
    verdicts = _verdicts(evaluate_identical, _pairs([0.0] * 200, 0.002))
    assert all(verdicts.values()), verdicts


def test_a_clock_that_favours_one_side_fails_the_bounds():
    verdicts = _verdicts(evaluate_identical, _pairs([0.0] * 190 + [0.02] * 10, 0.002))
    assert _of(verdicts, "A/A: identical pairs called different") is False
    # Within the threshold no pair is called different, but the raw test detects the bias.
    verdicts = _verdicts(evaluate_identical, _pairs([0.002] * 200, 0.002))
    assert _of(verdicts, "A/A: identical pairs called different") is True
    assert _of(verdicts, "A/A: raw Wilcoxon") is False


def test_a_clock_with_wide_intervals_fails_the_bounds():
    verdicts = _verdicts(evaluate_identical, _pairs([0.0] * 200, 0.05))
    assert _of(verdicts, "A/A: 95th percentile of the ratio's error, T >= 50") is False


def test_planted_work_is_detected_with_its_size_and_sign():
    pairs = [
        pair
        for share in (0.005, 0.01, 0.02, 0.05)
        for pair in _pairs([math.log1p(share)] * 50, 0.004, planted=share)
    ]
    verdicts = _verdicts(evaluate_planted, pairs)
    assert _of(verdicts, "planted 0.5 %") is None
    assert all(ok for what, ok in verdicts.items() if ok is not None), verdicts


@pytest.mark.parametrize(
    ("true", "truth", "caught"),
    [
        # not detected, detected with the wrong sign, detected with a wrong size
        (0.0, 0.02, ("planted 2.0 %: detected", "planted: mean estimate")),
        (-0.02, 0.02, ("planted 2.0 %: detected", "planted: wrong sign", "planted: mean estimate")),
        (0.03, 0.02, ("planted: mean estimate",)),
    ],
)
def test_a_clock_that_misses_or_misjudges_planted_work_fails_the_bounds(true, truth, caught):
    pairs = [replace(p, truth=truth) for p in _pairs([true] * 50, 0.003, planted=0.02)]
    verdicts = _verdicts(evaluate_planted, pairs)
    failed = {what for what, ok in verdicts.items() if ok is False}
    assert all(any(what.startswith(start) for what in failed) for start in caught), verdicts


@pytest.mark.parametrize(("scale", "fine"), [(1.0, True), (0.4, False), (3.0, False)])
def test_intervals_that_are_too_narrow_or_too_wide_fail_the_bound(scale, fine):
    verdicts = _verdicts(evaluate_coverage, _pairs([0.01] * 400, 0.004, scale=scale, seed=3))
    assert _of(verdicts, "coverage") is fine


class _Drifting:
    """A clock with known times that drifts from pass to pass and is noisy for some candidates."""

    method, cache, quantum_us = "graph", "cold", 0.0

    def __init__(self, us, rough):
        self.us, self.rough, self.passes, self.draw = us, rough, 0, random.Random(5)

    def warm(self, candidate, warm_ms, *, steady=False):
        return 0.0

    def collect(self, candidates, orders):
        rows = [[] for _ in candidates]
        for _ in orders:
            self.passes += 1
            for row, candidate in zip(rows, candidates, strict=True):
                sigma = 0.03 if candidate.name in self.rough else 1e-4
                noise = self.passes / 1000 + self.draw.gauss(0, sigma)
                row.append(self.us[candidate.name] * math.exp(noise))
        return rows


def test_finalists_that_stop_early_are_compared_over_the_passes_both_took():
    us = {"first": 50.0, "known": 50.5, "doubtful": 51.0}
    field = [Candidate(name, lambda: None) for name in us]
    timer = _Drifting(us, ("doubtful",))
    rows = Harness.final(None, timer, field, precision=0.0015)
    assert len(rows[1]) < len(rows[0]) == len(rows[2])
    ratios = log_ratios(rows, timer.quantum_us)
    assert ratios[0] == 0.0
    assert ratios[1] == pytest.approx(math.log(50.5 / 50), abs=2e-4)
    assert ratios[2] == pytest.approx(math.log(51 / 50), abs=5e-3)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_not_exceeded_by_its_share(values, share):
    at = quantile(values, share)
    assert at in values
    assert sum(value <= at for value in values) >= share * len(values) - 1e-9


@given(st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=200))
def test_the_table_truncates_no_cell(text):
    shown = table([("G1", Row("what", "bound", "measured", False, text))])
    assert all(part in "".join(shown.split()) for part in ("FAIL", "measured"))
    note = shown.splitlines()[2:]
    start = shown.splitlines()[0].index("note")
    assert "".join(line[start:] for line in note).replace(" ", "") == text


def test_an_isolated_call_returns_its_result():
    assert isolated(lambda a, b: {"sum": a + b}, 1, 2, limit_s=LIMIT_S) == {"sum": 3}


@pytest.mark.parametrize(
    ("break_it", "limit_s", "expected"),
    [
        (lambda: os._exit(7), LIMIT_S, "exit code 7"),
        (lambda: time.sleep(600), 0.5, "no result within"),
        (lambda: {}["no such thing"], LIMIT_S, "KeyError"),
    ],
)
def test_a_broken_test_reports_its_reason_and_affects_no_other(break_it, limit_s, expected):
    with pytest.raises(Lost, match=expected):
        isolated(break_it, limit_s=limit_s)
    assert isolated(os.getpid, limit_s=LIMIT_S) != os.getpid()


def test_the_cpu_run_writes_a_complete_document(tmp_path):
    out = tmp_path / "found.json"
    command = [f"{BENCHMARKS / 'acceptance/gpu.py'}", "--device", "cpu", "--scale", "0.02"]
    command = [sys.executable, *command, "--out", f"{out}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    document = json.loads(out.read_text())
    assert {"G2", "G3"} <= set(document["tests"])
    for name in ("G2", "G3"):
        assert document["tests"][name]["data"]["kernels"], done.stdout
        assert all(
            row["note"] != "not run: no time left" for row in document["tests"][name]["rows"]
        )
    assert "A/A: identical pairs called different" in done.stdout


def test_an_unknown_test_is_refused_by_name():
    command = [sys.executable, f"{BENCHMARKS / 'acceptance/gpu.py'}", "--only", "G99"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "no test G99" in done.stderr


def test_durations_are_parsed_from_mixed_ncu_output():
    text = (
        "==PROF== Connected to process 7\nhello\n"
        '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
        '"0","7","scaling_kernel","gpu__time_duration.sum","us","60.25"\n'
        '"1","7","scaling_kernel","gpu__time_duration.sum","ns","1,060"\n'
        '"2","7","scaling_kernel","other","ns","5"\n'
    )
    assert durations(text) == [("scaling_kernel", 60.25), ("scaling_kernel", pytest.approx(1.06))]
    assert durations("==ERROR== ERR_NVGPUCTRPERM") == []


@pytest.mark.parametrize(
    ("body", "count", "expected"),
    [
        ("print('==ERROR== ERR_NVGPUCTRPERM'); sys.exit(1)", 0, "ERR_NVGPUCTRPERM"),
        ("sys.exit('no such option')", 0, "no such option"),
        (
            'print(\'"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\')\n'
            "for at in range(42):\n"
            '    print(f\'"{at}","k","gpu__time_duration.sum","ns","{1000 * at}"\')',
            3,
            "",
        ),
    ],
)
def test_ncu_durations_or_the_reason_for_none_are_returned(
    tmp_path, monkeypatch, body, count, expected
):
    program = tmp_path / "ncu"
    program.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    durations_us, problem = by_ncu([1, 2, 3])
    assert len(durations_us) == count
    assert expected in problem
    if count:
        # The first launches of each kernel are warm-up.
        assert durations_us["counting 50 us"] == [float(at) for at in range(4, 14)]
